"""A million reminders, and the Spark steps of the test that sends them.

As a program it runs Spark on two cores, with many attempts for each task. Each input line is a step
as JSON, and each output line its answer.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from escapement.message import Int64s
from escapement.pipeline import archive as archives
from escapement.pipeline.archive import ArchiveConfig
from escapement.pipeline.forecast import ForecastConfig, run
from escapement.pipeline.jvm import provide_java

ROWS: Final = 1_000_000
TASKS: Final = 24
TRIES: Final = 8
# The due times are spread over this span.
SPAN_MS: Final = 40_000
_STRIDE: Final = 7919
# A payload is a number and its digest.
_DIGITS: Final = 8
WIDTH: Final = 64

Bytes = npt.NDArray[np.uint8]


def payloads() -> Bytes:
    """Return all payloads; uint8[ROWS, WIDTH]."""
    texts = (b"%0*d" % (_DIGITS, number) for number in range(ROWS))
    data = b"".join(
        text + hashlib.sha256(text).hexdigest()[: WIDTH - _DIGITS].encode() for text in texts
    )
    return np.frombuffer(data, np.uint8).reshape(ROWS, WIDTH)


def numbers(payloads: Bytes) -> Int64s:
    """Return the numbers of payloads."""
    digits = payloads[:, :_DIGITS].astype(np.int64) - ord("0")
    return digits @ 10 ** np.arange(_DIGITS - 1, -1, -1)


def due_ms(begin_ms: int) -> Int64s:
    """Return the due time of each number."""
    return begin_ms + np.arange(ROWS) * _STRIDE % SPAN_MS


def schedule(spark: SparkSession, url: str, topic: str, head_ms: int) -> int:
    """Write all reminders, and return the first due time, ``head_ms`` from now, in Unix ms."""
    begin_ms = time.time_ns() // 1_000_000 + head_ms
    number = F.col("id")
    text = F.lpad(number.cast("string"), _DIGITS, "0")
    digest = F.substring(F.sha2(text, 256), 1, WIDTH - _DIGITS)
    rows = spark.range(ROWS, numPartitions=TASKS).select(
        F.concat(text, digest).alias("payload"),
        F.timestamp_millis(F.lit(begin_ms) + number * _STRIDE % SPAN_MS).alias("deliver_at"),
    )
    writer = rows.write.format("escapement").option("url", url).option("topic", topic)
    writer.mode("append").save()
    return begin_ms


def forecast(spark: SparkSession, url: str, topic: str, until_ms: int) -> dict[str, Any]:
    """Forecast how many messages fall due in each second until ``until_ms``."""
    source = {"url": url, "topic": topic}
    within_ms = until_ms - time.time_ns() // 1_000_000
    found = run(spark, ForecastConfig(source, by_ms=1000, within_ms=within_ms))
    return {
        "from_ms": found.spans.from_ms,
        "first_ms": found.spans.first_ms,
        "by_ms": found.spans.by_ms,
        "messages": found.total.tolist(),
    }


def archive(spark: SparkSession, url: str, topic: str, root: str) -> int:
    """Archive the completed messages of the topic, and return their number."""
    return archives.run(spark, ArchiveConfig({"url": url}, root, [topic], older_than_ms=0)).messages


def read(spark: SparkSession, url: str, topic: str, out: str) -> None:
    """Write all messages of the topic, by offset, as columns to a file."""
    reader = spark.read.format("escapement").option("url", url).option("topic", topic)
    messages = reader.schema("offset BIGINT, deliver_at TIMESTAMP, payload BINARY").load()
    found = messages.selectExpr("offset", "unix_millis(deliver_at) due_ms", "payload").toArrow()
    found = found.sort_by("offset")
    content = b"".join(found["payload"].to_pylist())
    np.savez(
        out,
        offsets=found["offset"].to_numpy(),
        due_ms=found["due_ms"].to_numpy(),
        contents=np.frombuffer(content, np.uint8).reshape(-1, WIDTH),
    )


def main(events: str) -> None:
    began_s = time.monotonic()
    provide_java()
    spark = (
        SparkSession.builder.master(f"local[2, {TRIES}]")
        .appName("a million")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", Path(events).as_uri())
        .getOrCreate()
    )
    spark.read.format("escapement").load()
    print(json.dumps(time.monotonic() - began_s), flush=True)
    steps = {"schedule": schedule, "forecast": forecast, "archive": archive, "read": read}
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(steps[asked.pop("step")](spark, **asked)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
