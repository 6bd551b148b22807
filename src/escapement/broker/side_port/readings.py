"""The values of one scrape, read from the broker in one step without a sum over topics."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from escapement.broker.broker import Broker
from escapement.broker.membership import Membership
from escapement.broker.metering.histogram import Buckets
from escapement.broker.metering.totals import Totals
from escapement.broker.side_port.health import reasons_not_ready, state_of_member
from escapement.broker.side_port.shown import Shown
from escapement.broker.upkeep.census import Census


@dataclass(frozen=True, slots=True)
class MemberReadings:
    """The values of a process without bundles, which a broker has too."""

    lease_left_ms: int
    commit_age_ms: int
    database_up: bool


@dataclass(frozen=True, slots=True)
class BrokerReadings(MemberReadings):
    """The values of a broker that has started."""

    now_ms: int
    totals: Totals  # the counters themselves, to be read in the same step
    lateness_ms: Buckets
    commit_us: Buckets
    index_memory_bytes: int
    index_disk_bytes: int
    index_segments: int
    connections: int
    topics: int
    active_topics: int
    waiting_bytes: int
    waiting_acks: int
    census: Census | None


@dataclass(frozen=True, slots=True)
class Readings:
    """The values of the process.

    Attributes:
      member: the values of the process; None if a broker has them, or none has started yet.
      brokers: the brokers that have started, by the ids of their bundles.
      has_bundles: whether the database has several bundles, so that the values need a label.
    """

    version: str
    ready: bool
    member: MemberReadings | None
    brokers: dict[int, BrokerReadings]
    has_bundles: bool


def take_readings(shown: Shown) -> Readings:
    """Return the present values. O(1) in topics and messages."""
    brokers = shown.brokers
    return Readings(
        version("escapement"),
        not reasons_not_ready(shown),
        None if brokers or shown.membership is None else _member_readings(shown.membership),
        {broker.bundle_id: _broker_readings(shown, broker) for broker in brokers},
        any(broker.directory.count > 1 for broker in brokers),
    )


def _member_readings(membership: Membership) -> MemberReadings:
    state = state_of_member(membership)
    return MemberReadings(state.lease_left_ms, state.commit_age_ms, state.database == "up")


def _broker_readings(shown: Shown, broker: Broker) -> BrokerReadings:
    services = broker.services
    return BrokerReadings(
        now_ms=broker.clock.now_ms(),
        totals=services.totals,
        lateness_ms=services.totals.lateness_ms.read(),
        commit_us=services.totals.commit_us.read(),
        lease_left_ms=broker.lease_left_ms,
        commit_age_ms=broker.commit_age_ms,
        database_up=services.pipeline.reported_state.name == "UP",
        index_memory_bytes=services.index.memory_bytes,
        index_disk_bytes=services.index.disk_bytes,
        index_segments=services.index.segment_count,
        connections=shown.connections(broker),
        topics=len(services.registry.topics),
        active_topics=len(services.registry.active),
        waiting_bytes=services.pipeline.waiting_bytes,
        waiting_acks=services.pipeline.waiting_acks,
        census=services.census.last,
    )
