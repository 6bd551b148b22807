"""The history of one message, as returned by ``Broker.show``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from escapement.client.delivery_times import moment_or_none
from escapement.clock import moment
from escapement.message import MessageId


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """The state of a message in one subscription.

    ``kind`` is the kind of the subscription: shared, exclusive or failover. ``attempts`` is the
    number of deliveries that count as attempts. ``state`` is one of:

    - not covered: the start position of the subscription excludes the message.
    - pending: the message is not yet due.
    - waiting: the message is due, and the broker has not loaded it for delivery yet.
    - ready: the message is loaded, and is delivered when a consumer has room.
    - in flight: the message was delivered to ``consumer`` at ``since``. If it is not
      acknowledged, the broker redelivers it at ``until`` (None: not before the consumer leaves).
    - in retry: an attempt failed, and the broker redelivers the message at ``until``.
    - to be dead-lettered: the last allowed attempt failed, and the dead letter is not written
      yet.
    - acknowledged: a consumer acknowledged the message, or it was dead-lettered, or it expired
      or was dropped after an attempt. The broker does not keep which, so ``attempts`` is None.
      ``await broker.admin("dlq.find", topic=…, subscription=…, offset=…)`` finds its dead letters.
    - lapsed: the message expired, or a backlog quota dropped it, before its first delivery.
    - cancelled: the message was cancelled before it was delivered to the subscription.
    """

    subscription: str
    kind: str
    state: str
    attempts: int | None
    consumer: str | None
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """A message, and its state in each subscription.

    ``payload`` has the first 512 bytes of the payload, and ``size_bytes`` is the size of the whole
    payload. ``state`` is to_be_fired while the message is not yet due, and then fired. Once every
    subscription that gets the message has finished it, ``state`` is the first of these that is
    true for any subscription: acked (acknowledged), lapsed (expired or dropped before its first
    delivery), cancelled.
    """

    id: MessageId
    state: str
    published_at: datetime
    due_at: datetime
    key: str | None
    properties: dict[str, Any]
    priority: int
    group: str | None
    size_bytes: int
    payload: bytes
    subscriptions: list[SubscriptionStatus]

    @classmethod
    def _of(cls, answer: dict[str, Any]) -> MessageHistory:
        """Return the history that the broker's answer to ``messages.show`` contains."""
        return cls(
            MessageId(answer["topic"], answer["offset"]),
            answer["state"],
            moment(answer["published_at_ms"]),
            moment(answer["due_at_ms"]),
            answer["key"],
            answer["properties"],
            answer["priority"],
            answer["group"],
            answer["size_bytes"],
            answer["payload"],
            [
                SubscriptionStatus(
                    one["subscription"],
                    one["kind"],
                    one["state"],
                    one["attempts"],
                    one["consumer"],
                    moment_or_none(one["since_at_ms"]),
                    moment_or_none(one["until_at_ms"]),
                )
                for one in answer["subscriptions"]
            ],
        )
