"""Given to spark-submit by the test of a cluster: reads a topic into a file, as JSON.

It says where its Python and that of a task found the package.
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
