"""The Spark session that a command runs its job on.

It is the session that this process already has, or one on the master that the command or
spark-submit names, or else one on all cores of this machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from escapement.errors import InvalidRequest, StorageError
from escapement.interrupt import put_off
from escapement.pipeline.jvm import provide_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDS_SPARK: Final = (
    "this needs Spark: install escapement[spark], and also escapement[spark-jvm] if Java is missing"
)
# The masters that Spark accepts. Spark refuses others only after some seconds, with many lines.
_MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn"
)
# The environment variable from which Spark's scripts take options for Java.
_JAVA_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
# The environment variable in which spark-submit gives Python the port of the running Java. If it is
# set, spark-submit has started this process, and the user configures the Python of the workers.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"


def is_submitted() -> bool:
    """Return whether spark-submit runs this process."""
    return _SUBMITTED in os.environ


@contextmanager
def session(
    name: str, master: str | None = None, *, bar: bool = True, java_options: str | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session for one job. A session created for the job is stopped afterwards.

    Args:
      name: the name of the job.
      master: the Spark master; None for that of spark-submit, or all cores of this machine.
      bar: whether Spark shows a progress bar on a terminal. Set it to false for a job that shows
        its own progress. Under spark-submit, Spark's settings decide.
      java_options: Java options, if this function starts Java and the environment has none.

    Raises:
      InvalidRequest: if Spark or Java is not installed, or the master is not valid.
      StorageError: if Spark does not start. Spark prints the reason on standard error.
    """
    if master is not None and not _MASTER.fullmatch(master):
        raise InvalidRequest(
            f"{master!r} is not a Spark master: use local[*], spark://host:7077, yarn or"
            " k8s://https://host:6443"
        )
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise InvalidRequest(NEEDS_SPARK) from None
    spark = SparkSession.getActiveSession()
    if spark is not None:
        yield spark
        return
    if not is_submitted():
        provide_java()
        # Workers on this machine use the packages installed here.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if java_options is not None:
            os.environ.setdefault(_JAVA_OPTIONS, java_options)
    try:
        # If an interrupt ended this process before Java has reported its port, Java could not be
        # stopped and would run forever. So interrupts are put off until Spark has started.
        with put_off():
            spark = _started(name, master, progress_of(bar))
        yield spark
    finally:
        if spark is not None:
            spark.stop()


def progress_of(bar: bool) -> dict[str, str]:
    """Return the setting that shows or hides Spark's progress bar, as a mapping.

    The mapping is empty under spark-submit. There Python cannot see whether standard error is a
    terminal, so Spark's own settings decide.

    Args:
      bar: whether to show the progress bar if standard error is a terminal.
    """
    if is_submitted():
        return {}
    return {"spark.ui.showConsoleProgress": str(bar and sys.stderr.isatty()).lower()}


def _started(name: str, master: str | None, progress: dict[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"escapement {name}")
    if master is not None:
        builder = builder.master(master)
    try:
        return (
            builder.config(map=progress)
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
    except (Py4JError, PySparkException):
        where = "" if master is None else f" on {master}"
        raise StorageError(
            f"Spark does not start{where}: see its own error messages above"
        ) from None
