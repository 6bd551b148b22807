"""The administrative operation (*verb*) that shows how late messages were delivered."""

from __future__ import annotations

from typing import Final, NamedTuple, TypedDict

import numpy as np
import trio

from escapement.access.coverage import Coverage
from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import MAX_ROWS, Verb, beginning_of
from escapement.broker.broker import Broker
from escapement.broker.metering.lateness_history import KEPT_MINUTES, MINUTE_MS, Lateness
from escapement.errors import InvalidRequest
from escapement.names import TableName, TopicName

_HOUR_MS: Final = 3_600_000
_COUNT: Final = 50
# How many topics are named, and how many subscriptions summed up, in one step, which takes a
# millisecond or two.
_NAMED: Final = 1_000
_SUMMED: Final = 250


class LatenessFigures(TypedDict):
    """How late messages were when a subscription got them for the first time."""

    delivered: int
    p50_ms: int
    p99_ms: int
    max_ms: int


class LatenessOfMinute(LatenessFigures):
    """The lateness of the messages of one minute, which began at ``at_ms``."""

    at_ms: int


class LatenessByMinute(TypedDict):
    """The minutes in which a subscription delivered messages for the first time."""

    topic: str
    subscription: str
    within_ms: int
    minutes: list[LatenessOfMinute]


class LatenessOfSubscription(LatenessFigures):
    """The lateness of the messages of one subscription."""

    topic: str
    subscription: str


class WorstLateness(TypedDict):
    """The subscriptions with the highest p99, at most ``count``."""

    within_ms: int
    count: int
    worst: list[LatenessOfSubscription]


class _Named(NamedTuple):
    """A subscription, with the full name of its topic."""

    topic: str
    subscription: str
    id: int


async def _lateness(broker: Broker, given: Arguments) -> LatenessByMinute | WorstLateness:
    topic, subscription = given.optional_text("topic"), given.optional_text("subscription")
    within = given.optional_text("namespace")
    within_ms = given.optional_number("within_ms") or _HOUR_MS
    count = min(given.optional_number("count") or _COUNT, MAX_ROWS)
    given.end()
    within_ms = min(within_ms, KEPT_MINUTES * MINUTE_MS)
    if topic is None and subscription is None:
        seen = given.caller.coverage("peek")
        return await _worst(broker, seen, beginning_of(broker, within, seen), within_ms, count)
    if topic is None or subscription is None or within is not None:
        raise InvalidRequest(
            "subscriptions.lateness needs 'topic' and 'subscription' without 'namespace', or "
            "neither of them."
        )
    return _by_minute(broker, await _find(broker, topic, subscription), within_ms)


async def _find(broker: Broker, topic: str, subscription: str) -> _Named:
    """Return the subscription with these names. Raises ``NotFound``."""
    if TableName.is_meant(topic):
        table = await broker.services.tables.to_consume(topic, subscription)
        return _Named(table.name.full, subscription, table.id)
    found = broker.registry.topic(TopicName.parse(topic))
    record = broker.registry.subscription_record(found, subscription)
    return _Named(found.name.full, subscription, record.origin_id)


def _by_minute(broker: Broker, named: _Named, within_ms: int) -> LatenessByMinute:
    first, last = _range(broker, within_ms)
    minutes, found = broker.services.totals.lateness_history.minutes(named.id, first, last)
    return {
        "topic": named.topic,
        "subscription": named.subscription,
        "within_ms": within_ms,
        "minutes": [
            {"at_ms": minute * MINUTE_MS, **_figures(found, at)}
            for at, minute in enumerate(minutes.tolist())
        ],
    }


async def _worst(
    broker: Broker, seen: Coverage, prefix: str, within_ms: int, count: int
) -> WorstLateness:
    first, last = _range(broker, within_ms)
    history = broker.services.totals.lateness_history
    named = await _named(broker, history.subscriptions(first), seen, prefix)
    parts = []
    for at in range(0, len(named), _SUMMED):
        ids = np.array([one.id for one in named[at : at + _SUMMED]], np.int64)
        parts.append(history.over(ids, first, last))
        await trio.lowlevel.checkpoint()
    if not parts:
        return {"within_ms": within_ms, "count": count, "worst": []}
    found = Lateness(*map(np.concatenate, zip(*parts, strict=True)))
    order = np.lexsort((-found.max_ms, -found.p99_ms))
    order = order[found.delivered[order] > 0][:count]
    async with broker.answering:
        return {
            "within_ms": within_ms,
            "count": count,
            "worst": [
                {
                    "topic": named[at].topic,
                    "subscription": named[at].subscription,
                    **_figures(found, at),
                }
                for at in order.tolist()
            ],
        }


def _figures(found: Lateness, at: int) -> LatenessFigures:
    return {
        "delivered": int(found.delivered[at]),
        "p50_ms": int(found.p50_ms[at]),
        "p99_ms": int(found.p99_ms[at]),
        "max_ms": int(found.max_ms[at]),
    }


def _range(broker: Broker, within_ms: int) -> tuple[int, int]:
    """Return the numbers of the first and the last minute to show. The last one is not over."""
    now_ms = broker.clock.now_ms()
    last = now_ms // MINUTE_MS
    return min((now_ms - within_ms) // MINUTE_MS + 1, last), last


async def _named(
    broker: Broker, topic_ids: dict[int, int], seen: Coverage, prefix: str
) -> list[_Named]:
    """Return those of some subscriptions that exist and may be shown, by ascending ids.

    Works in steps, so subscriptions that are deleted meanwhile may be there or not.

    Args:
      topic_ids: the topic id of each subscription.
    """
    found = []
    for number, topic_id in enumerate(set(topic_ids.values())):
        if number % _NAMED == 0:
            await trio.lowlevel.checkpoint()
        name, subscriptions = _topic(broker, topic_id)
        if name.startswith(prefix) and name in seen:
            found += [_Named(name, *one) for one in subscriptions if one[1] in topic_ids]
    return sorted(found, key=lambda one: one.id)


def _topic(broker: Broker, topic_id: int) -> tuple[str, list[tuple[str, int]]]:
    """Return the full name of a topic, and the names and origin ids of its subscriptions.

    If the topic does not exist any more, there are none.
    """
    registry = broker.registry
    if registry.exists(topic_id):
        records = registry.subscriptions_of(topic_id)
        return registry.full_name(topic_id), [(one.name, one.origin_id) for one in records]
    table = broker.services.tables.topic(topic_id)
    if table is None:
        return "", []
    found = [(one.record.name, one.record.origin_id) for one in table.subscriptions()]
    return table.name.full, found


VERBS: Final[dict[str, Verb]] = {"subscriptions.lateness": _lateness}
