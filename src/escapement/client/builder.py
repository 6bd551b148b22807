"""A message described step by step, for those who like to read it so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from escapement.client.schedule import Delay
from escapement.durations import of
from escapement.message import DEFAULT_PRIORITY

Sent = TypeVar("Sent")


class MessageBuilder(Generic[Sent]):
    """Made by ``Producer.message``; each step returns the builder, ``send`` ends it."""

    def __init__(self, send: Callable[..., Sent], value: Any) -> None:
        self._send = send
        self._value = value
        self._delay: Delay | None = None
        self._at: datetime | None = None
        self._key: str | None = None
        self._properties: dict[str, Any] = {}
        self._priority = DEFAULT_PRIORITY
        self._dedup: str | None = None
        self._group: str | None = None

    def delay_at(self, amount: int | float | timedelta, unit: str | None = None) -> Self:
        """Deliver it so long after the broker has taken it: ``delay_at(3, "minutes")``."""
        self._delay = (of(amount, unit), "ms")
        return self

    def schedule_at(self, at: datetime) -> Self:
        """Deliver it at this time, an aware datetime."""
        self._at = at
        return self

    def key(self, key: str) -> Self:
        """Send it with a key."""
        self._key = key
        return self

    def property(self, name: str, value: Any) -> Self:
        """Send it with a property; call again for more."""
        self._properties[name] = value
        return self

    def priority(self, priority: int) -> Self:
        """Of messages due together, the lower goes first; 0 to 255."""
        self._priority = priority
        return self

    def dedup(self, key: str) -> Self:
        """Store it only if no message with this dedup key was stored lately."""
        self._dedup = key
        return self

    def group(self, name: str) -> Self:
        """Send it as one of a group."""
        self._group = name
        return self

    def send(self) -> Sent:
        """Send it; see ``Producer.send``, whose result is returned (to be awaited, or not)."""
        return self._send(
            self._value,
            delay=self._delay,
            at=self._at,
            key=self._key,
            properties=self._properties,
            priority=self._priority,
            dedup=self._dedup,
            group=self._group,
        )
