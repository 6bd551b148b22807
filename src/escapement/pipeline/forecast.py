"""The job ``forecast``: counts the messages that fall due in each span of time, from the log.

The job counts messages that fall due after the start of the job and are not finished. A message is
finished if it is cancelled, or if all subscriptions that receive it have acknowledged it. Exclusive
and failover subscriptions ignore delays, so they may acknowledge a message before it is due.

``escapement forecast`` asks a running broker about one topic. This job reads the database, for any
number of topics, and can write its result as Parquet.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from escapement.errors import EscapementError
from escapement.message import Int64s
from escapement.pipeline.columns import INSTANT
from escapement.pipeline.options import LogAddress, Options
from escapement.pipeline.parquet import write_new
from escapement.spans import Spans
from escapement.storage.inbox.job import now_ms

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_READ: Final = f"topic STRING, deliver_at {INSTANT}, state STRING"
_LIVE: Final = "state IN ('to_be_fired', 'fired')"


@dataclass(frozen=True, slots=True)
class ForecastConfig:
    """The configuration of the job ``forecast``.

    Args:
      source: options of the data source: the address of the log, and ``topic`` or ``topics``.
      by_ms: the length of a span of time.
      within_ms: the duration of the forecast, from the start of the job.
      origin_ms: a time at which a span begins, such as a midnight.
      capacity: the number of messages a second that consumers can handle, for all these topics
        together; None if it is unknown.
      output: the path of the Parquet, which must not exist yet; None to write no Parquet.
    """

    source: Mapping[str, str]
    by_ms: int = 3_600_000
    within_ms: int = 86_400_000
    origin_ms: int = 0
    capacity: int | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ForecastResult:
    """The result of a forecast."""

    spans: Spans
    # The number of messages that consumers can handle in each span; None if it is unknown.
    capacities: list[int] | None
    # The number of messages that fall due in each span; int64[spans] for each topic that has any.
    counts: Mapping[str, Int64s] = field(default_factory=dict)

    @property
    def total(self) -> Int64s:
        """The number of messages of all topics that fall due in each span; int64[spans]."""
        return sum(self.counts.values(), np.zeros(self.spans.count, np.int64))


def run(spark: SparkSession, config: ForecastConfig) -> ForecastResult:
    """Count the messages, write the Parquet if ``output`` is given, and return the counts.

    The Parquet has a row for each topic and span in which messages fall due. Its columns are topic,
    begins_at, ends_at, messages, and capacity (of the span, or null).

    Raises:
      InvalidRequest: if the address of the log is missing, ``output`` exists, or there are too many
        spans.
      StorageUnavailable: if the database cannot be reached.
      PySparkException: if the data source fails, for example because a topic does not exist.
    """
    spans = Spans.after(
        _database_ms(spark, LogAddress.of(Options(config.source))),
        by_ms=config.by_ms,
        within_ms=config.within_ms,
        origin_ms=config.origin_ms,
    )
    found = _counted(spark, config, spans)
    if config.output is not None:
        write_new(found, config.output)
        found = spark.read.schema(found.schema).parquet(config.output)
    counts: dict[str, Int64s] = {}
    begins = found.selectExpr("topic", "unix_millis(begins_at) AS begins_ms", "messages")
    for row in sorted(begins.collect()):
        column = counts.setdefault(row.topic, np.zeros(spans.count, np.int64))
        column[(row.begins_ms - spans.first_ms) // spans.by_ms] = row.messages
    capacities = None
    if config.capacity is not None:
        capacities = [
            config.capacity * spans.length_ms(span) // 1000 for span in range(spans.count)
        ]
    return ForecastResult(spans, capacities, counts)


def _database_ms(spark: SparkSession, address: LogAddress) -> int:
    """Return the time of the database's clock, which determines the states of messages.

    A Spark task reads the clock, because over Spark Connect this process may be unable to reach the
    database. The task returns an error instead of raising it, because Spark reports a failed task
    in many lines.
    """

    def ask(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in rows:
            pass
        try:
            with address.connected() as (engine, connection):
                answer: int | EscapementError = now_ms(engine.dialect, connection)
        except EscapementError as error:
            answer = error
        yield pa.record_batch([pa.array([pickle.dumps(answer)])], ["answer"])

    ((answer,),) = spark.range(0, 1, 1, 1).mapInArrow(ask, "answer BINARY").collect()
    found = pickle.loads(answer)
    if isinstance(found, EscapementError):
        raise found
    return int(found)


def _counted(spark: SparkSession, config: ForecastConfig, spans: Spans) -> DataFrame:
    """Return a DataFrame with a row for each topic and each span in which messages fall due."""
    coming = (
        spark.read.format("escapement")
        .options(**config.source)
        .option("archived", "false")  # archived messages are finished
        .option("startingDeliverAt", str(spans.from_ms + 1))
        .option("endingDeliverAt", str(spans.until_ms))
        .schema(_READ)
        .load()
        .where(_LIVE)
    )
    span = f"((unix_millis(deliver_at) - {spans.first_ms}) DIV {spans.by_ms})"
    begins_ms = f"{spans.first_ms} + span * {spans.by_ms}"
    ends_ms = f"least({begins_ms} + {spans.by_ms}, {spans.until_ms})"
    looked_at_ms = f"({ends_ms} - greatest({begins_ms}, {spans.from_ms}))"
    capacity = "NULL" if config.capacity is None else f"{config.capacity} * {looked_at_ms} DIV 1000"
    return (
        coming.selectExpr("topic", f"{span} AS span")
        .groupBy("topic", "span")
        .count()
        .selectExpr(
            "topic",
            f"timestamp_millis({begins_ms}) AS begins_at",
            f"timestamp_millis({ends_ms}) AS ends_at",
            "count AS messages",
            f"CAST({capacity} AS BIGINT) AS capacity",
        )
    )
