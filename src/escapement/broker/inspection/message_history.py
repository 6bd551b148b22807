"""The history of a message: when it was published and is due, and its state by subscription.

The message itself is read from the log, which keeps messages after they are done, until their part
of the log is deleted. Its state in a subscription is taken from that subscription's memory, without
waiting (Q2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from escapement.broker.log.log_reader import LogReader
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.errors import NotFound
from escapement.message import DEFAULT_PRIORITY
from escapement.storage.log.published import Published

# The state of a message as a whole. A message is *fired* once it is due or was delivered, and
# *to_be_fired* before. When all subscriptions that are to get it are done with it, it is *acked* if
# at least one acknowledged it, else *lapsed* if it lapsed for at least one, else *cancelled*.
State = Literal["to_be_fired", "fired", "acked", "lapsed", "cancelled"]

_NOT_COVERED: Final = "not covered"
_ACKNOWLEDGED: Final = "acknowledged"
_LAPSED: Final = "lapsed"
_CANCELLED: Final = "cancelled"
_PENDING: Final = "pending"
# The states in which a subscription is done with a message.
_OVER: Final = (_ACKNOWLEDGED, _LAPSED, _CANCELLED)


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """The state of a message in one subscription.

    ``state`` is one of:

    - not covered: the subscription begins later and is not to get the message;
    - pending: not yet due;
    - waiting: to be delivered, but the subscription has not read it yet;
    - ready: to be delivered to the next free consumer;
    - in flight: delivered to ``consumer`` at ``since_at_ms``, and not acknowledged. At
      ``until_at_ms`` its ack deadline ends; None: it has none;
    - in retry: waiting for the next attempt, at ``until_at_ms``;
    - to be dead-lettered: its last attempt failed;
    - acknowledged;
    - lapsed: it expired, or a quota dropped it, before its first delivery;
    - cancelled.

    ``attempts`` is the number of deliveries. It is None for an acknowledged message, because the
    broker does not remember it. Nor does the broker remember whether a consumer acknowledged the
    message, or it expired or was dropped between two attempts, or it became a dead letter.
    """

    subscription: str
    kind: str
    state: str
    attempts: int | None = 0
    consumer: str | None = None
    since_at_ms: int | None = None
    until_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """A message, its state as a whole, and its state in each subscription of its topic.

    ``due_ms`` is its current due time. ``properties`` are encoded, as they were published.
    """

    state: State
    published_ms: int
    due_ms: int
    key: bytes
    properties: bytes
    priority: int
    group: bytes
    payload: bytes
    subscriptions: Sequence[SubscriptionStatus]


async def message_history(topic: Topic, log: LogReader, now_ms: int, offset: int) -> MessageHistory:
    """Look up the history of a message.

    Raises:
      NotFound: if the topic has no message at this offset, or its log no longer has it.
      StorageUnavailable: if the database cannot be reached.
    """
    found = await published(topic, log, offset)
    due_ms = int(topic.amendments.moves.current(found.offsets, found.due_ms)[0])
    batch = found.batch
    statuses = [status(topic, one, due_ms, offset, now_ms) for one in topic.subscriptions()]
    return MessageHistory(
        _state(topic, statuses, due_ms, offset, now_ms),
        int(found.published_ms[0]),
        due_ms,
        batch.strings(batch.keys)[0],
        batch.strings(batch.properties)[0],
        DEFAULT_PRIORITY if batch.priorities is None else int(batch.priorities[0]),
        batch.strings(batch.groups)[0],
        batch.payloads.to_list()[0],
        statuses,
    )


async def published(topic: Topic, log: LogReader, offset: int) -> Published:
    """Return one message as it was published, with its original due time.

    Raises:
      NotFound: if the topic has no message at this offset, or its log no longer has it.
      StorageUnavailable: if the database cannot be reached.
    """
    if offset >= topic.next_offset:
        raise NotFound(
            f"{topic.name.full} has no message {offset}: its next offset is {topic.next_offset}"
        )
    found, _ = await log.published(topic.id, np.array([offset]), topic.amendments.moves, 0)
    if not len(found.offsets):
        raise NotFound(f"the log of {topic.name.full} does not have message {offset} any more")
    return found


def status(
    topic: Topic, subscription: Subscription, due_ms: int, offset: int, now_ms: int
) -> SubscriptionStatus:
    """Return the state of a message in a subscription. O(messages that the subscription holds).

    Args:
      due_ms: the message's current due time.
    """
    name, kind = subscription.record.name, subscription.record.kind
    if offset in subscription.acked:
        if subscription.has_lapsed(np.array([offset])).any():
            return SubscriptionStatus(name, kind, _LAPSED)
        return SubscriptionStatus(name, kind, _ACKNOWLEDGED, None)
    delivery = subscription.in_flight.delivery_of(offset)
    if delivery is not None:
        consumers = {one.id: one.name or f"unnamed, {one.id}" for one in subscription.consumers}
        return SubscriptionStatus(
            name,
            kind,
            "in flight",
            delivery.attempts,
            consumers.get(delivery.consumer_id),
            delivery.since_ms,
            delivery.deadline_ms,
        )
    dead = subscription.dead.rows
    counts = dead.counts[dead.offsets == offset]
    if len(counts):
        return SubscriptionStatus(name, kind, "to be dead-lettered", int(counts[0]))
    if offset in subscription.held:
        attempts, next_ms = subscription.tries_of(offset)
        state = "ready" if next_ms is None else "in retry"
        return SubscriptionStatus(name, kind, state, attempts, until_at_ms=next_ms)
    if (
        offset in topic.amendments.cancelled
        and not subscription.was_handed(np.array([offset])).any()
    ):
        return SubscriptionStatus(name, kind, _CANCELLED)
    if isinstance(subscription, SharedSubscription):
        if not subscription.covers(np.array([due_ms]), np.array([offset]))[0]:
            return SubscriptionStatus(name, kind, _NOT_COVERED)
        if due_ms > now_ms:
            return SubscriptionStatus(name, kind, _PENDING)
    elif offset < subscription.record.start_offset:
        return SubscriptionStatus(name, kind, _NOT_COVERED)
    return SubscriptionStatus(name, kind, "waiting", subscription.tries_of(offset)[0])


def _state(
    topic: Topic, statuses: Sequence[SubscriptionStatus], due_ms: int, offset: int, now_ms: int
) -> State:
    states = [one.state for one in statuses if one.state != _NOT_COVERED]
    if states and all(state in _OVER for state in states):
        if _ACKNOWLEDGED in states:
            return "acked"
        return "lapsed" if _LAPSED in states else "cancelled"
    if not states and offset in topic.amendments.cancelled:
        return "cancelled"
    handed = any(one.attempts for one in statuses)
    return "fired" if handed or due_ms <= now_ms else "to_be_fired"
