"""The state and the counters of subscriptions, as rows of listings and of metrics.

A passive topic has no objects in memory. Its subscriptions have no consumers and no messages in
flight, and their number of unacknowledged messages is an estimate from the catalog and from the
sizes of the sets of acknowledged messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from escapement.broker.broker import Broker
from escapement.broker.subscription.counts import Counts
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.names import SubscriptionKind
from escapement.storage.catalog.catalog import SubscriptionRecord, TopicRecord


class Counters(TypedDict):
    """How often something happened to messages of a subscription, since its broker began."""

    delivered: int
    redelivered: int
    acknowledged: int
    nacked: int
    released: int
    timed_out: int
    expired: int
    dropped: int
    dead_lettered: int


class State(TypedDict):
    """The messages of a subscription at this time."""

    ready: int
    behind: bool
    in_flight: int
    retrying: int
    unacknowledged: int
    dead_waiting: int


class SubscriptionFigures(State, Counters):
    """The state and the counters of a subscription."""

    subscription: str
    kind: SubscriptionKind
    consumers: list[str]


class SubscriptionRow(State, Counters):
    """A subscription among those of many topics. ``active`` is false if its topic is passive."""

    topic: str
    subscription: str
    kind: SubscriptionKind
    paused_until_ms: int
    active: bool
    consumers: int


def figures(topic: Topic, subscription: Subscription) -> SubscriptionFigures:
    """Return the state and the counters of a subscription of an active topic."""
    return {
        "subscription": subscription.record.name,
        "kind": subscription.record.kind,
        "consumers": [consumer.name for consumer in subscription.consumers],
        **_state(topic, subscription),
        **_counters(subscription.counts),
    }


def rows(broker: Broker, name: str, record: TopicRecord) -> Iterator[SubscriptionRow]:
    """Yield the subscriptions of a topic, which does not become active."""
    for one in list(broker.registry.subscriptions_of(record.id)):
        yield row(broker, name, record, one)


def row(broker: Broker, name: str, record: TopicRecord, one: SubscriptionRecord) -> SubscriptionRow:
    """Return a subscription of a topic, which does not become active."""
    topic = broker.registry.active.get(record.id)
    subscription = None if topic is None else topic.subscription(one.name)
    if topic is None or subscription is None:
        state, counters, consumers = *_passive(broker, record, one), 0
    else:
        state, counters = _state(topic, subscription), _counters(subscription.counts)
        consumers = len(subscription.consumers)
    return {
        "topic": name,
        "subscription": one.name,
        "kind": one.kind,
        "paused_until_ms": max(record.policy.paused_until_ms, one.policy.paused_until_ms),
        "active": topic is not None,
        "consumers": consumers,
        **state,
        **counters,
    }


def _state(topic: Topic, subscription: Subscription) -> State:
    shared = subscription if isinstance(subscription, SharedSubscription) else None
    return {
        "ready": 0 if shared is None else shared.ready_count,
        "behind": shared is not None and shared.bands.are_behind,
        "in_flight": len(subscription.in_flight),
        "retrying": subscription.retrying,
        "unacknowledged": topic.unacknowledged(subscription),
        "dead_waiting": len(subscription.dead),
    }


def _counters(counts: Counts) -> Counters:
    return {
        "delivered": counts.delivered,
        "redelivered": counts.redelivered,
        "acknowledged": counts.acknowledged,
        "nacked": counts.nacked,
        "released": counts.released,
        "timed_out": counts.timed_out,
        "expired": counts.expired,
        "dropped": counts.dropped,
        "dead_lettered": counts.dead_lettered,
    }


def _passive(
    broker: Broker, record: TopicRecord, one: SubscriptionRecord
) -> tuple[State, Counters]:
    passive = broker.services.passive_topics
    kept = passive.figures(record.id)
    counts = None if kept is None else kept.counts.get(one.id)
    state: State = {
        "ready": 0,
        "behind": False,
        "in_flight": 0,
        "retrying": 0,
        "unacknowledged": max(record.next_offset - passive.done(one.id), 0),
        "dead_waiting": 0,
    }
    return state, _counters(counts or Counts())
