"""The metrics of the whole broker: their names, meanings and values.

``docs/guides/monitoring.md`` has a table of the same metrics, which a test compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from escapement.broker.metering.totals import COMMIT_US, LATENESS_MS
from escapement.broker.side_port.readings import BrokerReadings, MemberReadings
from escapement.broker.upkeep.census import Census

Readings = TypeVar("Readings", contravariant=True)
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of a histogram."""

    bounds: tuple[float, ...]  # the highest value of each bucket but the last, in seconds
    counts: list[int]  # of each bucket
    total: float  # the sum of all values, in seconds


@dataclass(frozen=True, slots=True)
class Metric(Generic[Readings]):
    """One metric; its value is None while it is not known."""

    name: str
    kind: Kind
    help: str
    value: Callable[[Readings], float | Distribution | None]


def _messages(name: str, what: str) -> Metric[BrokerReadings]:
    return Metric(
        f"escapement_messages_{name}_total", "counter", what, lambda at: getattr(at.totals, name)
    )


def _counted(
    name: str, what: str, value: Callable[[Census, int], float | None]
) -> Metric[BrokerReadings]:
    def of(at: BrokerReadings) -> float | None:
        return None if at.census is None else value(at.census, at.now_ms)

    return Metric(f"escapement_{name}", "gauge", what, of)


def _gauge(name: str, what: str, value: Callable[[Readings], float]) -> Metric[Readings]:
    return Metric(f"escapement_{name}", "gauge", what, value)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _lateness(at: BrokerReadings) -> Distribution:
    counts, total_ms = at.lateness_ms
    return Distribution(tuple(bound / 1e3 for bound in LATENESS_MS), counts, total_ms / 1e3)


def _commits(at: BrokerReadings) -> Distribution:
    counts, total_us = at.commit_us
    return Distribution(tuple(bound / 1e6 for bound in COMMIT_US), counts, total_us / 1e6)


_COMMIT_AGE: Final[Metric[MemberReadings]] = _gauge(
    "commit_age_seconds",
    "Time since the last group commit or renewal of the lease",
    lambda at: at.commit_age_ms / 1e3,
)
_DATABASE_UP: Final[Metric[MemberReadings]] = _gauge(
    "database_up",
    "1 if the database accepts writes, else 0",
    lambda at: int(at.database_up),
)
_LEASE_LEFT: Final[Metric[MemberReadings]] = _gauge(
    "lease_left_seconds",
    "Time until the lease expires if it is not renewed",
    lambda at: at.lease_left_ms / 1e3,
)

# The metrics of a process that owns no bundle. A broker has them too.
MEMBER_METRICS: Final = (_COMMIT_AGE, _DATABASE_UP, _LEASE_LEFT)
METRICS: Final[tuple[Metric[BrokerReadings], ...]] = (
    _messages("published", "Messages stored in topics, dead letters and occurrences included"),
    _messages("delivered", "Deliveries of messages to consumers, the repeated ones included"),
    _messages("redelivered", "Deliveries of messages that had been delivered before"),
    _messages(
        "acknowledged",
        "Messages finished for a subscription, also if they expired, were dropped or dead-lettered",
    ),
    _messages(
        "dead_lettered", "Messages that a subscription gave up, copied to a dead-letter topic"
    ),
    _messages("cancelled", "Messages that were cancelled"),
    _messages("expired", "Messages that were too old for a subscription"),
    _messages("dropped", "Messages dropped from a subscription because of a quota"),
    Metric(
        "escapement_early_deliveries_total",
        "counter",
        "Deliveries of shared subscriptions before the due time; more than 0 is a bug",
        lambda at: at.totals.early,
    ),
    _counted("messages_scheduled", "Messages not yet due", lambda it, now_ms: it.scheduled),
    _counted(
        "messages_due",
        "Due messages that a subscription has not delivered or acknowledged",
        lambda it, now_ms: it.due,
    ),
    _counted(
        "messages_in_flight",
        "Delivered messages that are neither acknowledged nor returned",
        lambda it, now_ms: it.in_flight,
    ),
    _counted(
        "messages_retrying",
        "Messages that wait for their back-off to end",
        lambda it, now_ms: it.retrying,
    ),
    _counted(
        "next_due_timestamp_seconds",
        "Due time of the next message, as a Unix time; absent if none is scheduled",
        lambda it, now_ms: _seconds(it.next_due_ms),
    ),
    _counted(
        "oldest_due_age_seconds",
        "Age of the oldest due message of a shared subscription; 0 if none is due",
        lambda it, now_ms: 0 if it.oldest_due_ms is None else (it.at_ms - it.oldest_due_ms) / 1e3,
    ),
    _counted(
        "census_age_seconds",
        "Age of the numbers of messages scheduled, due, in flight and in retry",
        lambda it, now_ms: max(now_ms - it.at_ms, 0) / 1e3,
    ),
    Metric(
        "escapement_delivery_lateness_seconds",
        "histogram",
        "Time from the due time of a message to its first delivery",
        _lateness,
    ),
    Metric(
        "escapement_commit_seconds",
        "histogram",
        "Time that a group commit took, retries included",
        _commits,
    ),
    _COMMIT_AGE,
    _gauge(
        "commit_waiting_bytes",
        "Memory of publishes that wait for their commit",
        lambda at: at.waiting_bytes,
    ),
    _gauge(
        "commit_waiting_acks",
        "Acknowledgements that wait for their commit",
        lambda at: at.waiting_acks,
    ),
    _DATABASE_UP,
    _LEASE_LEFT,
    _gauge(
        "index_memory_bytes",
        "Memory of index entries that are in no segment yet",
        lambda at: at.index_memory_bytes,
    ),
    _gauge("index_disk_bytes", "Size of the segments of the index", lambda at: at.index_disk_bytes),
    _gauge("index_segments", "Segments of the index", lambda at: at.index_segments),
    _gauge("connections", "Open client connections", lambda at: at.connections),
    _gauge("topics", "Topics", lambda at: at.topics),
    _gauge("active_topics", "Topics with objects in memory", lambda at: at.active_topics),
)
# The metrics that exist without a broker.
READY: Final = ("escapement_ready", "gauge", "1 if the broker is ready, as /readyz says, else 0")
BUILD_INFO: Final = ("escapement_build_info", "gauge", "1, with the version as a label")
