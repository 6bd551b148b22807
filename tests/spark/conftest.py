"""One Spark for the whole test session, on this machine: two tasks at a time, three tries each."""

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

# Most of what a short session costs is loading classes, which need not be verified each time, and
# compiling: half of it with the quick compiler.
QUICK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Of Spark's jars those that nothing here uses, by words in their names: its Java opens all that
# there are, and looks through them for each class that there is not, of which it asks for many.
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
    """Spark as it is installed, but for many jars, and for its zip of Python sources.

    That would come before the installed package in each Python that Spark starts, and Python
    keeps nothing compiled of a zip: two thirds of what such a process takes to start.
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
    """It finds the data source by itself, as it does for users."""
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
