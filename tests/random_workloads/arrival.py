"""A message that came to a consumer: what it was, and what was settled then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import escapement
from random_workloads.model import ACK_WAIT_MS, NEVER_MS, WITHOUT_END


@dataclass(frozen=True)
class Arrival:
    """What came, when, and what was settled then."""

    moment: int  # counts everything that happens
    now_ms: int
    crashes: int  # how many there were before
    name: str
    inbox: int
    key_range: Any
    ranged: bool  # a consumer of the subscription has asked for some keys only
    was_held_up: bool  # perhaps it waited for the database with its deadline running
    is_active: bool | None  # it is the first of those there are; None: it is leaving
    policy: Mapping[str, Any] | None  # None: it is just being changed
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
        """Of its key, or 0 where all of the topic is in order; None: it waits for none."""
        order = (self.policy or {}).get("order", "any")
        if order == "topic":
            return 0
        return slot_of(self.key) if order == "key" else None

    @property
    def until_ms(self) -> int:
        """It is not taken back before then, and not tried again if it is given back now."""
        if self.policy is None or self.was_held_up:
            return self.now_ms
        if self.name == WITHOUT_END:
            return NEVER_MS
        return self.now_ms + back_off_ms(self.attempt, self.policy)


def back_off_ms(attempt: int, policy: Mapping[str, Any]) -> int:
    """How long at least it goes unacknowledged, or waits, after so many attempts."""
    wait_ms, most_ms = ACK_WAIT_MS << (attempt - 1), policy.get("max_backoff_ms", 0)
    # The longest wait leaves room for its jitter below the bound.
    return min(wait_ms, max(int(most_ms / 1.33), ACK_WAIT_MS)) if most_ms else wait_ms


def slot_of(key: str | None) -> int | None:
    """What stands for a key; None for none."""
    return escapement.slot_of(key) if key else None
