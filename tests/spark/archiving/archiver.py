"""A driver program that archives a log one topic at a time, so that tests can kill it."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from escapement.pipeline import archive
from escapement.pipeline.archive import ArchiveConfig
from escapement.pipeline.jvm import provide_java


def main(url: str, root: str) -> None:
    provide_java()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    # The quick compiler, because a short session spends most of its time compiling.
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    spark = builder.config("spark.driver.extraJavaOptions", quick).getOrCreate()
    archive._TOPICS_AT_ONCE = 1  # type: ignore[misc]
    archive.run(spark, ArchiveConfig({"url": url}, root, older_than_ms=0))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
