"""A program for spark-submit in the cluster test: writes a topic to a file as JSON.

It prints where its own Python and the Python of a task found the package.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import escapement


def main(url: str, topic: str, password_file: str, out: str) -> None:
    spark = SparkSession.builder.appName("read back").getOrCreate()
    (there,) = spark.sparkContext.parallelize([0], 1).map(lambda _: escapement.__file__).collect()
    print(escapement.__file__, there)
    reader = spark.read.format("escapement").option("url", url).option("topic", topic)
    messages = reader.option("passwordFile", password_file).option("minPartitions", "2").load()
    messages.selectExpr(
        "offset", "state", "cast(payload as string) payload", "unix_millis(deliver_at) due_ms"
    ).write.json(out)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
