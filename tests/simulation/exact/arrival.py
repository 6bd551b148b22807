"""A message that a consumer received, with the state of the model at that moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import escapement
from simulation.exact.model import ACK_WAIT_MS, NEVER_MS, NO_ACK_WAIT


@dataclass(frozen=True)
class Arrival:
    """One delivery of a message to a consumer."""

    moment: int  # a number that grows with every event
    now_ms: int
    crashes: int  # the number of crashes before
    name: str
    inbox: int
    key_range: Any
    ranged: bool  # a consumer of the subscription has a key range
    was_held_up: bool  # a database outage may have used up part of its ack wait
    is_active: bool | None  # the consumer is the first of its subscription; None: it is leaving
    policy: Mapping[str, Any] | None  # None: it is being changed
    topic_policy: Mapping[str, Any] | None
    offset: int
    due_ms: int
    attempt: int
    redelivered: bool
    value: bytes
    key: str | None
    priority: int

    @property
    def slot(self) -> int | None:
        """The slot of its key; 0 if the whole topic is in order; None without an order or key."""
        order = (self.policy or {}).get("order", "any")
        if order == "topic":
            return 0
        return slot_of(self.key) if order == "key" else None

    @property
    def until_ms(self) -> int:
        """The earliest time of a redelivery, whether its ack wait ends or it is returned now."""
        if self.name == NO_ACK_WAIT:
            return NEVER_MS
        if self.policy is None or self.was_held_up:
            return self.now_ms
        return self.now_ms + back_off_ms(self.attempt, self.policy)


def back_off_ms(attempt: int, policy: Mapping[str, Any]) -> int:
    """Return the shortest ack wait, or back-off, of this attempt."""
    wait_ms, most_ms = ACK_WAIT_MS << (attempt - 1), policy.get("max_backoff_ms", 0)
    # The longest wait leaves room for its jitter below the bound.
    return min(wait_ms, max(int(most_ms / 1.33), ACK_WAIT_MS)) if most_ms else wait_ms


def slot_of(key: str | None) -> int | None:
    """Return the slot of a key, or None without a key."""
    return escapement.slot_of(key) if key else None
