"""Schedule reminders for the appointments in a CSV file, in each customer's time zone.

The file has a header and the columns ``customer``, ``phone``, ``at`` (the local time of the
appointment, such as 2030-03-31 09:30) and ``zone`` (such as Europe/Berlin). Each customer is
reminded one day before, with a message whose key is the customer::

    pip install 'escapement[spark]'
    export ESCAPEMENT_PASSWORD=…
    python examples/spark_reminders.py appointments.csv \\
        --url mysql://escapement@db/escapement --topic shop/eu/reminders

A second run for the same file and topic adds nothing, because the job id is made from both.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from escapement.pipeline.jvm import provide_java

COLUMNS = "customer STRING, phone STRING, at STRING, zone STRING"


def reminders(spark: SparkSession, file: Path) -> DataFrame:
    """Return a row for each appointment, with the columns that escapement writes."""
    # The header must match the columns. A row without a value fails the job with the text of the
    # row. A time that cannot be parsed becomes null, which escapement refuses.
    appointments = spark.read.csv(
        str(file), schema=COLUMNS, header=True, enforceSchema=False, mode="FAILFAST"
    )
    whole = F.col("customer").isNotNull() & F.col("at").isNotNull() & F.col("zone").isNotNull()
    refusal = F.concat(F.lit("this row has missing values: "), F.to_json(F.struct("*")))
    appointments = appointments.withColumn(
        "at", F.when(whole, F.col("at")).otherwise(F.raise_error(refusal))
    )
    # The session's time zone is UTC, so a time without a zone is kept as the local time.
    on_the_wall = F.to_timestamp("at", "yyyy-MM-dd HH:mm") - F.expr("INTERVAL 1 DAY")
    return appointments.select(
        F.to_json(F.struct("customer", "phone", "at")).alias("payload"),
        F.to_utc_timestamp(on_the_wall, F.col("zone")).alias("deliver_at"),
        F.col("customer").alias("key"),
        F.create_map(F.lit("zone"), F.col("zone")).alias("properties"),
    )


def schedule(spark: SparkSession, file: Path, url: str, topic: str) -> None:
    """Write the reminders. The driver prints their number on standard error."""
    digest = hashlib.sha256(topic.encode() + b"\0" + file.read_bytes()).hexdigest()
    (
        reminders(spark, file)
        .write.format("escapement")
        .option("url", url)
        .option("topic", topic)
        .option("createTopics", "true")
        .option("jobId", f"reminders-{digest[:32]}")
        .mode("append")
        .save()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", required=True, help="URL of the log: mysql://user@host/database")
    parser.add_argument("--topic", required=True, help="topic name: tenant/namespace/topic")
    given = parser.parse_args()
    provide_java()
    builder = SparkSession.builder.appName("reminders")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    schedule(spark, given.file, given.url, given.topic)
    spark.stop()


if __name__ == "__main__":
    main()
