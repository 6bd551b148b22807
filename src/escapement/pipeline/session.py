"""The Spark that a command runs its job on.

It is one that this process has already, or what spark-submit says, or else all cores of this
machine.
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
    "this needs Spark: install escapement[spark], and escapement[spark-jvm] where there is no Java"
)
# What Spark starts on; others it refuses after some seconds, and many lines.
_MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn"
)
# Where Spark's scripts look for options of the Java that they start.
_JAVA_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
# spark-submit has a Java running when it starts Python, and tells it where; which Python its
# workers have is said by whoever submits.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"


def is_submitted() -> bool:
    """Whether spark-submit runs this process."""
    return _SUBMITTED in os.environ


@contextmanager
def session(
    name: str, master: str | None = None, *, bar: bool = True, java_options: str | None = None
) -> Iterator[SparkSession]:
    """A session for the time of one job.

    Args:
      master: instead of what spark-submit says, or all cores of this machine.
      bar: whether Spark shows on a terminal how far it is; not beside a job that does. For
        spark-submit its own settings say that.
      java_options: of a Java that is started for it, unless the environment has some.

    Raises:
      InvalidRequest: if there is no Spark here, no Java for it, or no such master.
      StorageError: if Spark does not start; it has said why on standard error.
    """
    if master is not None and not _MASTER.fullmatch(master):
        raise InvalidRequest(
            f"Spark knows no master {master!r}: say local[*], spark://host:7077, yarn or"
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
        # Workers on this machine are to have what is installed here.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if java_options is not None:
            os.environ.setdefault(_JAVA_OPTIONS, java_options)
    try:
        # A Java that was left before it has said where to reach it would stay for ever.
        with put_off():
            spark = _started(name, master, progress_of(bar))
        yield spark
    finally:
        if spark is not None:
            spark.stop()


def progress_of(bar: bool) -> dict[str, str]:
    """Whether Spark shows how far it is. To spark-submit says so whoever submits: what Python
    sees as standard error is no terminal there.
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
        raise StorageError(f"Spark does not start{where}: what it says of it is above") from None
