"""Tests of how Spark finds the data source."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.source.batch_reader import check_types


def test_spark_finds_the_data_source_by_itself(spark: SparkSession) -> None:
    """B7: with the same columns if the default timestamp type has no time zone."""
    found = spark.read.format("escapement").load().schema
    assert found.fieldNames() == list(READ_COLUMNS)
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert spark.read.format("escapement").load().schema == found
        check_types(found)
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_thread_with_an_active_session_finds_the_data_source_for_a_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    """B7: docs/spark-cluster.md says so. A read finds it in any thread."""

    def write() -> None:
        spark.createDataFrame([], "payload STRING")
        rows = spark.range(1).selectExpr("cast(id as string) payload")
        writer = rows.write.format("escapement").option("data", str(tmp_path))
        writer.option("topic", "shop/eu/a").mode("append").save()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(spark.read.format("escapement").load).result().columns
        with pytest.raises(PySparkException, match="MySQL or MariaDB"):
            threads.submit(write).result()
