"""Appointments in a CSV, reminders at the right moment in each customer's time zone.

The file has a header and the columns ``customer``, ``phone``, ``at`` (the appointment as a clock
on the wall there shows it: 2030-03-31 09:30) and ``zone`` (Europe/Berlin). Each customer is
reminded a day before, with a message whose key is the customer::

    pip install 'escapement[spark]'
    export ESCAPEMENT_PASSWORD=…
    python examples/spark_reminders.py appointments.csv \\
        --url mysql://escapement@db/escapement --topic shop/eu/reminders

Run again for the same file and topic, it adds nothing: the job is named after both.
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
    """A row for each appointment, as escapement wants it."""
    # The header is held against the columns, and a row that lacks something is refused with its
    # text. A time that cannot be parsed is null, which escapement refuses.
    appointments = spark.read.csv(
        str(file), schema=COLUMNS, header=True, enforceSchema=False, mode="FAILFAST"
    )
    whole = F.col("customer").isNotNull() & F.col("at").isNotNull() & F.col("zone").isNotNull()
    refusal = F.concat(F.lit("this row lacks something: "), F.to_json(F.struct("*")))
    appointments = appointments.withColumn(
        "at", F.when(whole, F.col("at")).otherwise(F.raise_error(refusal))
    )
    # The session's time zone is UTC, so a time without a zone is what the wall shows.
    on_the_wall = F.to_timestamp("at", "yyyy-MM-dd HH:mm") - F.expr("INTERVAL 1 DAY")
    return appointments.select(
        F.to_json(F.struct("customer", "phone", "at")).alias("payload"),
        F.to_utc_timestamp(on_the_wall, F.col("zone")).alias("deliver_at"),
        F.col("customer").alias("key"),
        F.create_map(F.lit("zone"), F.col("zone")).alias("properties"),
    )


def schedule(spark: SparkSession, file: Path, url: str, topic: str) -> None:
    """Write them; the driver says on its standard error how many there were."""
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
    parser.add_argument("--url", required=True, help="of the log: mysql://user@host/database")
    parser.add_argument("--topic", required=True, help="tenant/namespace/topic")
    given = parser.parse_args()
    provide_java()
    builder = SparkSession.builder.appName("reminders")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    schedule(spark, given.file, given.url, given.topic)
    spark.stop()


if __name__ == "__main__":
    main()
