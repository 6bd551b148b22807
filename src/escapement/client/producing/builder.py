"""A builder that describes a message step by step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from escapement.client.constructor import internal
from escapement.client.producing.replace import Replace
from escapement.durations import of

Sent = TypeVar("Sent")


class MessageBuilder(Generic[Sent]):
    """A builder of one message, created by ``Producer.message``.

    Each method sets one part of the message and returns the builder, so that calls can be chained.
    ``send`` sends the message.
    """

    @internal
    def __init__(self, send: Callable[..., Sent], value: Any) -> None:
        self._send = send
        self._value = value
        self._options: dict[str, Any] = {}
        self._properties: dict[str, Any] = {}

    def delay_at(self, amount: int | float | timedelta, unit: str | None = None) -> Self:
        """Set the delay before delivery, for example ``delay_at(3, "minutes")``.

        The delay counts from the moment the broker accepts the message.
        """
        self._options["delay"] = (of(amount, unit), "ms")
        return self

    def schedule_at(self, at: datetime) -> Self:
        """Set the time of delivery, an aware datetime."""
        self._options["at"] = at
        return self

    def spread(self, amount: int | float | timedelta, unit: str | None = None) -> Self:
        """Set the span over which messages are scattered, for example ``spread(10, "minutes")``.

        See ``Producer.send``.
        """
        self._options["spread"] = (of(amount, unit), "ms")
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
        """Set the priority, 0 to 255. Of several due messages, the lowest number goes first."""
        self._options["priority"] = priority
        return self

    def dedup(self, key: str) -> Self:
        """Set the dedup key: of several messages with the same key, only the first is stored.

        This holds within the topic's dedup window; see ``Producer.send``.
        """
        self._options["dedup"] = key
        return self

    def group(self, name: str) -> Self:
        """Make the message a member of the group ``name``; see ``Groups``."""
        self._options["group"] = name
        return self

    def replace(self, replace: Replace | str) -> Self:
        """Set the replace key: what happens to a pending message that has the same one.

        See ``Producer.send``.
        """
        self._options["replace"] = replace
        return self

    def send(self) -> Sent:
        """Send the message with ``Producer.send`` and return its result.

        In the async client this is a coroutine, which must be awaited for the receipt.
        """
        return self._send(self._value, properties=self._properties, **self._options)
