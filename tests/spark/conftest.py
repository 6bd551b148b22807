"""One local Spark session for all tests: two tasks at a time, three attempts each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from escapement.pipeline.jvm import provide_java

# A short session spends most of its time loading and compiling classes. Skip their verification,
# and use the quick compiler, which halves the time.
QUICK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Words in the names of Spark's jars that the tests do not use. Java opens all jars, and searches
# all of them for each missing class. Spark asks for many missing classes.
_UNUSED: Final = (
    *("algebra", "arpack", "blas", "breeze", "cats", "graphx", "JLarge", "JTransforms", "lapack"),
    *("mllib", "spire"),
    *("datanucleus", "derby", "HikariCP", "hive", "jdo", "jline", "thrift"),
    *("jjwt", "kubernetes", "vertx", "volcano", "yarn"),
    *("aarch", "osx", "riscv", "tcnative"),
    *("connect", "curator", "hk2", "jersey", "repl", "tink", "zookeeper"),
)


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The installed Spark without unused jars and without its zip of Python sources.

    The zip would precede the installed package in each Python process that Spark starts. Python
    does not cache compiled modules of a zip, which takes two thirds of the start of a process.
    """
    home, installed = tmp_path_factory.mktemp("spark"), Path(pyspark.__file__).parent
    (home / "bin").symlink_to(installed / "bin")
    (home / "jars").mkdir()
    for jar in (installed / "jars").iterdir():
        if not any(word in jar.name for word in _UNUSED):
            (home / "jars" / jar.name).symlink_to(jar)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "warm"), prepend=os.pathsep)
        yield home


@pytest.fixture(scope="session")
def spark(spark_home: Path) -> Iterator[SparkSession]:
    """A session that finds the data source by itself, as for users."""
    provide_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2, 3]")
        .appName("escapement tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
