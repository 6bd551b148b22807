"""One message's life: when it was published and is due, and how each subscription stands to it.

What it is comes from the log, where every message is whatever has become of it; how a
subscription stands to it from that subscription's memory, without waiting (Q2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from escapement.broker.log.logreader import LogReader
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.errors import NotFound
from escapement.message import DEFAULT_PRIORITY, Blobs
from escapement.storage.log.published import Published

# Of one message as a whole. Cancelled: for everyone who had not been handed it.
State = Literal["to_be_fired", "fired", "acked", "lapsed", "cancelled"]

_NOT_COVERED: Final = "not covered"
_ACKNOWLEDGED: Final = "acknowledged"
_LAPSED: Final = "lapsed"
_CANCELLED: Final = "cancelled"
_PENDING: Final = "pending"
# The message is not for it, or it is done with it.
_OVER: Final = (_ACKNOWLEDGED, _LAPSED, _CANCELLED)


@dataclass(frozen=True, slots=True)
class Standing:
    """How one subscription stands to a message.

    ``state`` is one of: not covered (it begins elsewhere), pending (not yet due), waiting
    (due, not taken up yet), ready, in flight (with ``consumer``, ``since_ms``, and
    ``until_ms`` if it is taken back then), in retry (``until_ms`` is when it is tried
    again), to be dead-lettered, acknowledged, lapsed (it expired, or a quota dropped it, before
    anybody was handed it), cancelled. ``attempts`` counts deliveries; None once it is
    acknowledged: of what is done no more is remembered, nor whether it was a consumer who did it,
    or it expired or was dropped between two attempts, or became a dead letter.
    """

    subscription: str
    kind: str
    state: str
    attempts: int | None = 0
    consumer: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """What a message is, and what became of it; keys and properties as they are stored."""

    state: State
    published_ms: int
    due_ms: int
    key: bytes
    properties: bytes
    priority: int
    group: bytes
    payload: bytes
    subscriptions: Sequence[Standing]


async def life(topic: Topic, log: LogReader, now_ms: int, offset: int) -> Life:
    """Look a message up.

    Raises:
      NotFound: if the topic has no message of this offset, or none any more.
      StorageUnavailable: when the database cannot be reached.
    """
    found = await published(topic, log, offset)
    due_ms = int(topic.amendments.moves.current(found.offsets, found.due_ms)[0])
    batch = found.batch
    standings = [standing(topic, one, due_ms, offset, now_ms) for one in topic.subscriptions()]
    return Life(
        _state(topic, standings, due_ms, offset, now_ms),
        int(found.published_ms[0]),
        due_ms,
        (batch.keys or Blobs.empty(1)).to_list()[0],
        (batch.properties or Blobs.empty(1)).to_list()[0],
        DEFAULT_PRIORITY if batch.priorities is None else int(batch.priorities[0]),
        (batch.groups or Blobs.empty(1)).to_list()[0],
        batch.payloads.to_list()[0],
        standings,
    )


async def published(topic: Topic, log: LogReader, offset: int) -> Published:
    """One message as it was published. Raises as ``life``."""
    if offset >= topic.next_offset:
        raise NotFound(
            f"{topic.name.full} has no message {offset}: the next is {topic.next_offset}"
        )
    found, _ = await log.published(topic.id, np.array([offset]), topic.amendments.moves, 0)
    if not len(found.offsets):
        raise NotFound(f"the log of {topic.name.full} does not have message {offset} any more")
    return found


def standing(
    topic: Topic, subscription: Subscription, due_ms: int, offset: int, now_ms: int
) -> Standing:
    """How a subscription stands to a message; O(what it has in its hands)."""
    name, kind = subscription.record.name, subscription.record.kind
    if offset in subscription.acked:
        if subscription.has_lapsed(np.array([offset])).any():
            return Standing(name, kind, _LAPSED)
        return Standing(name, kind, _ACKNOWLEDGED, None)
    hand = subscription.in_flight.hand_of(offset)
    if hand is not None:
        consumers = {one.id: one.name or f"unnamed, {one.id}" for one in subscription.consumers}
        return Standing(
            name,
            kind,
            "in flight",
            hand.attempts,
            consumers.get(hand.consumer_id),
            hand.since_ms,
            hand.deadline_ms,
        )
    dead = subscription.dead.rows
    counts = dead.counts[dead.offsets == offset]
    if len(counts):
        return Standing(name, kind, "to be dead-lettered", int(counts[0]))
    if offset in subscription.held:
        attempts, next_ms = subscription.tries_of(offset)
        state = "ready" if next_ms is None else "in retry"
        return Standing(name, kind, state, attempts, until_ms=next_ms)
    if (
        offset in topic.amendments.cancelled
        and not subscription.was_handed(np.array([offset])).any()
    ):
        return Standing(name, kind, _CANCELLED)
    shared = isinstance(subscription, SharedSubscription)
    if not (
        subscription.covers(np.array([due_ms]), np.array([offset]))[0]
        if isinstance(subscription, SharedSubscription)
        else offset >= subscription.record.start_offset
    ):
        return Standing(name, kind, _NOT_COVERED)
    if shared and due_ms > now_ms:
        return Standing(name, kind, _PENDING)
    return Standing(name, kind, "waiting", subscription.tries_of(offset)[0])


def _state(
    topic: Topic, standings: Sequence[Standing], due_ms: int, offset: int, now_ms: int
) -> State:
    states = [one.state for one in standings if one.state != _NOT_COVERED]
    if states and all(state in _OVER for state in states):
        if _ACKNOWLEDGED in states:
            return "acked"
        return "lapsed" if _LAPSED in states else "cancelled"
    if not states and offset in topic.amendments.cancelled:
        return "cancelled"
    handed = any(one.attempts for one in standings)
    return "fired" if handed or due_ms <= now_ms else "to_be_fired"
