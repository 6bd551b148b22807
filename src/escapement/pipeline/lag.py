"""The job ``lag``: percentiles of lateness, time to acknowledgement, and delivery attempts.

The broker counts these with each acknowledgement, by subscription and hour. The counts are
histograms (storage/encoding/lag.py): a *tally* has, for each kind of figure, the number of messages
in each bucket of values. The job reads all counts as of one moment, including those that are only
in the journal, so they cover all acknowledgements up to the last commit. The job reads tallies and
not messages: its cost is O(subscriptions * hours), and it runs in the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from escapement.names import TopicName
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.parquet import write_new
from escapement.storage.encoding.buckets import at_share, value_of
from escapement.storage.encoding.lag import HELD, HOUR_MS, LATE, LATE_AGAIN, TRIED, UNSEEN, Tally
from escapement.storage.inbox.job import now_ms
from escapement.storage.state.lag_table import HourOfLag, read_lags

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# A time after every hour with counts. The current time would not be enough, because a broker's
# clock may be ahead of the database's.
_NO_END_MS: Final = 1 << 60
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
# The figures with percentiles: the prefix of their column names, the kind of the figure in a tally,
# and the suffix of their column names, which is the unit.
_SPREADS: Final = {
    "late": (LATE, "_ms"),
    "late_again": (LATE_AGAIN, "_ms"),
    "acked_after": (HELD, "_ms"),
    "attempts": (TRIED, ""),
}


@dataclass(frozen=True, slots=True)
class LagConfig:
    """The configuration of the job ``lag``.

    Args:
      source: the data source's options for the address of the log.
      topics: names of topics; empty for all topics.
      within_ms: how far to look back from now. The first hour is included as a whole.
      output: the path of the Parquet, which must not exist yet; None to write no Parquet.
    """

    source: Mapping[str, str]
    topics: Sequence[str] = ()
    within_ms: int = 86_400_000
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """The statistics of a subscription for one hour, or for all hours.

    Percentiles above 31 have a relative precision of 1/32. They are None if no message was counted.
    """

    topic: str
    subscription: str
    hour_at_ms: int | None  # the beginning of the hour of the delivery; None for all hours
    acknowledged: int
    unseen: int  # acknowledged while not in flight; not part of the statistics below
    redelivered: int  # messages with more than one delivery
    # The time from the due time (or publication, if the subscription ignores delays) to the last
    # delivery: ``late`` for messages with one delivery, ``late_again`` for those with several.
    late_p50_ms: int | None
    late_p90_ms: int | None
    late_p99_ms: int | None
    late_max_ms: int | None
    late_again_p50_ms: int | None
    late_again_p90_ms: int | None
    late_again_p99_ms: int | None
    late_again_max_ms: int | None
    # The time from the last delivery to the acknowledgement.
    acked_after_p50_ms: int | None
    acked_after_p90_ms: int | None
    acked_after_p99_ms: int | None
    acked_after_max_ms: int | None
    attempts_mean: float | None
    attempts_p50: int | None
    attempts_p90: int | None
    attempts_p99: int | None
    attempts_max: int | None

    @classmethod
    def of(cls, topic: str, subscription: str, hour_ms: int | None, tally: Tally) -> Lag:
        """Compute the statistics of a tally."""
        tries, counts = tally.of_kind(TRIED)
        seen, unseen = int(counts.sum()), int(tally.of_kind(UNSEEN)[1].sum())
        values = value_of(tries)
        said: dict[str, Any] = {
            "acknowledged": seen + unseen,
            "unseen": unseen,
            "redelivered": int(counts[values > 1].sum()),
            "attempts_mean": round(float((values * counts).sum()) / seen, 3) if seen else None,
        }
        for name, (kind, unit) in _SPREADS.items():
            buckets, numbers = tally.of_kind(kind)
            for at, share in _SHARES.items():
                value = at_share(buckets, numbers, share) if len(buckets) else None
                said[f"{name}_{at}{unit}"] = value
        return cls(topic, subscription, hour_ms, **said)


_COLUMNS: Final = [name for name in Lag.__slots__ if name != "hour_at_ms"]


@dataclass(frozen=True, slots=True)
class Lags:
    """The statistics of each subscription by hour, and of all hours together."""

    hours: list[Lag]
    totals: list[Lag]


def run(spark: SparkSession, config: LagConfig) -> Lags:
    """Read the counts, write the Parquet if ``output`` is given, and return the statistics.

    The Parquet has a row for each topic, subscription and hour with counts. It has the columns of
    :class:`Lag`, but the timestamp ``hour_at`` instead of ``hour_at_ms``.

    Raises:
      InvalidRequest: if the address of the log is missing, or ``output`` exists.
      NotFound: if a topic does not exist.
      StorageUnavailable: if the database cannot be reached.
    """
    options = Options(config.source)
    options.check(ADDRESS_OPTIONS)
    topics = list(dict.fromkeys(map(TopicName.parse, config.topics))) or None
    with LogAddress.of(options).connected() as (engine, connection):
        from_ms = now_ms(engine.dialect, connection) - config.within_ms
        read = read_lags(connection, from_ms - from_ms % HOUR_MS, _NO_END_MS, topics)
    hours = [Lag.of(one.topic.full, one.subscription, one.hour_ms, one.tally) for one in read]
    if config.output is not None:
        write_new(spark.createDataFrame(_table(hours)), config.output)
    return Lags(hours, _totals(read))


def _totals(read: Sequence[HourOfLag]) -> list[Lag]:
    parts: dict[tuple[str, str], list[Tally]] = {}
    for one in read:
        parts.setdefault((one.topic.full, one.subscription), []).append(one.tally)
    return [Lag.of(*name, None, Tally.sum(tallies)) for name, tallies in parts.items()]


def _table(hours: Sequence[Lag]) -> pa.Table:
    """Return the rows of the Parquet, one for each of these statistics, as an Arrow table."""
    import pyarrow as pa

    types = {"topic": pa.string(), "subscription": pa.string(), "attempts_mean": pa.float64()}
    fields = [("hour_at", pa.timestamp("us", "UTC"))]
    fields += [(name, types.get(name, pa.int64())) for name in _COLUMNS]
    at = [datetime.fromtimestamp((hour.hour_at_ms or 0) / 1000, UTC) for hour in hours]
    columns = [at, *([getattr(hour, name) for hour in hours] for name in _COLUMNS)]
    return pa.table(columns, pa.schema(fields))
