"""Received messages in columns, and rows, which are views of one message.

A row is created when the application iterates, and decodes a column only on access: unused
fields cost nothing. The classes here do not acknowledge messages, because the async client
(``batch``) and the sync client (``escapement.sync``) do so in different ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from escapement.clock import moment
from escapement.message import DEFAULT_PRIORITY, Blobs, Int64s, MessageBatch, MessageId
from escapement.properties import read_properties

AnyRow = TypeVar("AnyRow", bound="Row", covariant=True)


class Origin(Protocol):
    """The source of messages: their topic, and the deserializer of their payloads."""

    @property
    def topic(self) -> str: ...

    def loads(self, payload: bytes) -> Any: ...


class Columns(Generic[AnyRow]):
    """Messages in columns of equal height, and a sequence of rows.

    ``offsets`` and ``due_ms`` (Unix milliseconds) are int64 columns.
    """

    __slots__ = ("_lists", "_origin", "due_ms", "messages", "offsets")

    def __init__(
        self,
        origin: Origin,
        offsets: Int64s,
        due_ms: Int64s,
        messages: MessageBatch,
    ) -> None:
        self.offsets = offsets
        self.due_ms = due_ms
        self.messages = messages
        self._origin = origin
        self._lists: dict[str, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, row: int) -> AnyRow:
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return self._view(row % len(self))

    def __iter__(self) -> Iterator[AnyRow]:
        return map(self._view, range(len(self)))

    def _view(self, row: int) -> AnyRow:
        """Return one row."""
        raise NotImplementedError

    @property
    def topic(self) -> str:
        """The full name of the topic."""
        return self._origin.topic

    @property
    def payloads(self) -> Blobs:
        """The payloads as one column."""
        return self.messages.payloads

    def values(self) -> list[Any]:
        """Return the deserialized values of all messages."""
        loads = self._origin.loads
        return [loads(payload) for payload in self._strings("payloads")]

    def _strings(self, name: str) -> list[bytes]:
        """Return a column of strings of the batch as a list, decoded on the first access."""
        try:
            return self._lists[name]
        except KeyError:
            strings = self._lists[name] = self.messages.strings(getattr(self.messages, name))
            return strings


class Delivery(Columns[AnyRow]):
    """Delivered messages in columns of equal height.

    In addition to the columns of ``Columns`` there are ``attempts`` (uint16, counted from 1)
    and ``redelivered`` (bool).
    """

    __slots__ = ("_attempts", "_redelivered")

    def __init__(
        self,
        origin: Origin,
        offsets: Int64s,
        due_ms: Int64s,
        attempts: npt.NDArray[np.uint16] | None,
        redelivered: npt.NDArray[np.uint8] | None,
        messages: MessageBatch,
    ) -> None:
        super().__init__(origin, offsets, due_ms, messages)
        self._attempts = attempts
        self._redelivered = redelivered

    @property
    def attempts(self) -> npt.NDArray[np.uint16]:
        """The number of deliveries of each message, including this one."""
        if self._attempts is None:
            self._attempts = np.ones(len(self), np.uint16)
        return self._attempts

    @property
    def redelivered(self) -> npt.NDArray[np.bool_]:
        """Whether each message may have been delivered before."""
        if self._redelivered is None:
            return np.zeros(len(self), np.bool_)
        return self._redelivered.astype(np.bool_)

    def rest(self, row: int) -> Self:
        """Return the messages from ``row`` on as a batch."""
        if row == 0:
            return self
        return type(self)(
            self._origin,
            self.offsets[row:],
            self.due_ms[row:],
            None if self._attempts is None else self._attempts[row:],
            None if self._redelivered is None else self._redelivered[row:],
            self.messages.part(row, len(self)),
        )


class Row:
    """One message, as a view of columns that are decoded on access."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Columns[Row], row: int) -> None:
        self._columns = columns
        self._row = row

    @property
    def value(self) -> Any:
        """The deserialized payload."""
        return self._columns._origin.loads(self.payload)

    @property
    def payload(self) -> bytes:
        """The payload as bytes."""
        return self._columns._strings("payloads")[self._row]

    @property
    def key(self) -> str | None:
        """The key of the message, or None."""
        key = self._columns._strings("keys")[self._row]
        return key.decode(errors="backslashreplace") if key else None

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the message; bytes that are not valid UTF-8 appear as ``\\xff``."""
        return read_properties(self._columns._strings("properties")[self._row])

    @property
    def priority(self) -> int:
        """The priority of the message; lower goes first."""
        column = self._columns.messages.priorities
        return DEFAULT_PRIORITY if column is None else int(column[self._row])

    @property
    def group(self) -> str | None:
        """The name of the message's group, or None."""
        group = self._columns._strings("groups")[self._row]
        return group.decode() if group else None

    @property
    def id(self) -> MessageId:
        """The permanent id of the message."""
        return MessageId(self._columns.topic, self.offset)

    @property
    def offset(self) -> int:
        """The offset of the message in its topic."""
        return self._columns.offsets.item(self._row)

    @property
    def due_ms(self) -> int:
        """The due time in Unix milliseconds."""
        return self._columns.due_ms.item(self._row)

    @property
    def deliver_at(self) -> datetime:
        """The due time as a datetime in UTC."""
        return moment(self.due_ms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class DeliveredRow(Row):
    """One delivered message, as a view of a delivery."""

    __slots__ = ()

    _columns: Delivery[DeliveredRow]

    @property
    def attempt(self) -> int:
        """The number of deliveries of the message, including this one."""
        column = self._columns._attempts
        return 1 if column is None else int(column[self._row])

    @property
    def redelivered(self) -> bool:
        """Whether the message may have been delivered before.

        After a crash this may be True although it was not.
        """
        column = self._columns._redelivered
        return column is not None and bool(column[self._row])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} attempt {self.attempt}>"
