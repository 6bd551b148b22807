"""A builder that describes a message step by step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from escapement.durations import of

Sent = TypeVar("Sent")


class MessageBuilder(Generic[Sent]):
    """A builder of one message, created by ``Producer.message``.

    Each step returns the builder; ``send`` sends the message.
    """

    def __init__(self, send: Callable[..., Sent], value: Any) -> None:
        self._send = send
        self._value = value
        self._options: dict[str, Any] = {}
        self._properties: dict[str, Any] = {}

    def delay_at(self, amount: int | float | timedelta, unit: str | None = None) -> Self:
        """Deliver the message after a delay: ``delay_at(3, "minutes")``.

        The delay counts from the moment the broker accepts the message.
        """
        self._options["delay"] = (of(amount, unit), "ms")
        return self

    def schedule_at(self, at: datetime) -> Self:
        """Deliver the message at this time, an aware datetime."""
        self._options["at"] = at
        return self

    def key(self, key: str) -> Self:
        """Set the key of the message."""
        self._options["key"] = key
        return self

    def property(self, name: str, value: Any) -> Self:
        """Set one property of the message; call again for more properties."""
        self._properties[name] = value
        return self

    def priority(self, priority: int) -> Self:
        """Set the priority, 0 to 255; of messages due together, the lower goes first."""
        self._options["priority"] = priority
        return self

    def dedup(self, key: str) -> Self:
        """Set the dedup key: store the message only if the key is not in the dedup window."""
        self._options["dedup"] = key
        return self

    def group(self, name: str) -> Self:
        """Make the message a member of a group."""
        self._options["group"] = name
        return self

    def send(self) -> Sent:
        """Send the message and return the result of ``Producer.send``."""
        return self._send(self._value, properties=self._properties, **self._options)
