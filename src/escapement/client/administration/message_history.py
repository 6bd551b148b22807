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

    ``state`` is one of:

    - not covered: the start position of the subscription excludes the message.
    - pending: the message is not yet due.
    - waiting: it is due, and not yet loaded for delivery.
    - ready: it is loaded for delivery.
    - in flight: it is delivered to ``consumer`` since ``since``, and redelivered at ``until``
      at the latest.
    - in retry: it is redelivered at ``until``.
    - to be dead-lettered: it failed its last attempt.
    - acknowledged: it was acknowledged, was dead-lettered, or expired or was dropped between
      two attempts. The broker keeps no details, so ``attempts`` is None.
    - lapsed: it expired, or a namespace quota dropped it, before its first delivery.
    - cancelled.
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
    """A message, its history, and its state in each subscription.

    ``payload`` holds the first 512 bytes. ``state`` is to_be_fired (not yet due) or fired
    (due). Once every subscription that covers the message has finished it, ``state`` is acked
    (a subscription has acknowledged it), lapsed (it expired or was dropped before its first
    delivery) or cancelled.
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
    def of(cls, answer: dict[str, Any]) -> MessageHistory:
        """Return the history in an answer of the broker."""
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
