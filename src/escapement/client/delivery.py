"""Received messages in columns, and the *rows* of these columns, each of which is one message.

A *column* has one field of all messages, such as their due times. A row is an object for one
message. It is created when the application iterates over the columns, and it reads a field from
its column only when the application asks for the field. So unused fields cost nothing.

The classes here are the base of the async client (``escapement.client.consuming.batch``) and of
the blocking client (``escapement.sync``), which add methods to acknowledge messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import repeat
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from escapement.client.ack_deadlines import AckDeadlines
from escapement.clock import moment
from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY, Blobs, Int64s, MessageBatch, MessageId
from escapement.properties import read_properties
from escapement.tables.fields import read_row

AnyRow = TypeVar("AnyRow", bound="Row", covariant=True)

_NONE: Final = AckDeadlines()


class Origin(Protocol):
    """The consumer or reader that received messages, which knows their topic and serializer."""

    @property
    def topic(self) -> str:
        """The full name of the topic."""
        ...

    def _loads(self, payload: bytes) -> Any:
        """Convert a payload to a value, with the serializer that the application chose."""
        ...


class Columns(Generic[AnyRow]):
    """Messages of one topic in columns. As a sequence, it has one row object per message.

    ``offsets`` and ``due_ms`` (Unix milliseconds) are int64 columns. ``messages`` has the columns
    of payloads, keys, properties, priorities and groups.
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
        return self._row_type()(self, row % len(self))

    def __iter__(self) -> Iterator[AnyRow]:
        return map(self._row_type(), repeat(self), range(len(self)))

    def _row_type(self) -> type[AnyRow]:
        """Return the class of the objects for single messages."""
        raise NotImplementedError

    @property
    def topic(self) -> str:
        """The full name of the topic."""
        return self._origin.topic

    @property
    def payloads(self) -> Blobs:
        """The payloads of all messages, as one column of byte strings."""
        return self.messages.payloads

    def values(self) -> list[Any]:
        """Return the values of all messages: their payloads, converted by the serializer.

        The value of a message of a message table is its row, whatever the serializer.
        """
        fields = self.messages.fields
        if fields is not None:
            return [read_row(fields, payload) for payload in self._strings("payloads")]
        loads = self._origin._loads
        return [loads(payload) for payload in self._strings("payloads")]

    def _strings(self, name: str) -> list[bytes]:
        """Return the column ``name`` of ``messages`` as a list of byte strings, made only once."""
        try:
            return self._lists[name]
        except KeyError:
            strings = self._lists[name] = self.messages.strings(getattr(self.messages, name))
            return strings


class Source(NamedTuple):
    """The subscription that delivered messages, and when.

    ``log`` is the id of the broker's log, and ``subscription_id`` the id of the subscription in it,
    which changes with each seek. The broker sent the messages at ``sent_after_ms`` or later.
    """

    log: bytes
    subscription_id: int
    subscription: str
    sent_after_ms: int


class Delivery(Columns[AnyRow]):
    """Messages that the broker delivered to a consumer, in columns.

    In addition to the columns of ``Columns`` there are ``attempts`` (uint16, counted from 1)
    and ``redelivered`` (bool).
    """

    __slots__ = ("_attempts", "_deadlines", "_redelivered", "_source")

    def __init__(
        self,
        origin: Origin,
        offsets: Int64s,
        due_ms: Int64s,
        attempts: npt.NDArray[np.uint16] | None,
        redelivered: npt.NDArray[np.uint8] | None,
        messages: MessageBatch,
        source: Source,
        deadlines: AckDeadlines = _NONE,
    ) -> None:
        super().__init__(origin, offsets, due_ms, messages)
        self._source = source
        self._attempts = attempts
        self._redelivered = redelivered
        self._deadlines = deadlines

    @property
    def attempts(self) -> npt.NDArray[np.uint16]:
        """The number of deliveries of each message that count as attempts, including this one."""
        if self._attempts is None:
            self._attempts = np.ones(len(self), np.uint16)
        return self._attempts

    @property
    def redelivered(self) -> npt.NDArray[np.bool_]:
        """Whether each message may have been delivered before; after a crash possibly in error."""
        if self._redelivered is None:
            return np.zeros(len(self), np.bool_)
        return self._redelivered.astype(np.bool_)

    def _rest(self, row: int) -> Self:
        """Return a delivery of the messages from ``row`` on, without copying."""
        if row == 0:
            return self
        return self._some(slice(row, None), self.messages.part(row, len(self)))

    def _in_time(self, now_s: float) -> Self | None:
        """Return a delivery of the messages whose ack deadline has not passed, or None."""
        first_s, each_s = self._deadlines
        if now_s <= first_s:
            return self
        if each_s is None:
            return None
        rows = np.flatnonzero(each_s >= now_s)
        return self._some(rows, self.messages.take(rows)) if len(rows) else None

    def _some(self, rows: Int64s | slice, messages: MessageBatch) -> Self:
        """Return a delivery of some of the messages, at least one; ``messages`` are theirs."""
        return type(self)(
            self._origin,
            self.offsets[rows],
            self.due_ms[rows],
            None if self._attempts is None else self._attempts[rows],
            None if self._redelivered is None else self._redelivered[rows],
            messages,
            self._source,
            self._deadlines.left(rows),
        )


class Row:
    """One message: a row of columns, whose fields are read from the columns on access."""

    __slots__ = ("_columns", "_read", "_row")

    _read: dict[str, Any]  # unset until ``row`` is used

    def __init__(self, columns: Columns[Row], row: int) -> None:
        self._columns = columns
        self._row = row

    @property
    def value(self) -> Any:
        """The value of the message: its payload, converted by the serializer.

        The value of a message of a message table is its ``row``, whatever the serializer.
        """
        if self._columns.messages.fields is not None:
            return self.row
        return self._columns._origin._loads(self.payload)

    @property
    def row(self) -> dict[str, Any]:
        """The row of a message of a message table: typed values by the names of the columns.

        It is the same dict each time. Values are of the types in the guide to message tables, such
        as Decimal or datetime, and None for NULL. The names and types are those that the table had
        when the broker sent the message.

        Raises:
          InvalidRequest: if the message is not of a message table.
          ProtocolError: if the payload is not a row.
        """
        try:
            return self._read
        except AttributeError:
            pass
        fields = self._columns.messages.fields
        if fields is None:
            raise InvalidRequest(
                f"Message {self.id} is not of a message table, so it has no row. Use its value or"
                " payload."
            )
        self._read = row = read_row(fields, self.payload)
        return row

    @property
    def payload(self) -> bytes:
        """The payload of the message as bytes."""
        return self._columns._strings("payloads")[self._row]

    @property
    def key(self) -> str | None:
        """The key of the message, or None."""
        key = self._columns._strings("keys")[self._row]
        return key.decode(errors="backslashreplace") if key else None

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the message. Bytes that are not valid UTF-8 appear as ``\\xff``."""
        return read_properties(self._columns._strings("properties")[self._row])

    @property
    def priority(self) -> int:
        """The priority of the message, 0 to 255. Lower numbers are delivered first."""
        column = self._columns.messages.priorities
        return DEFAULT_PRIORITY if column is None else int(column[self._row])

    @property
    def group(self) -> str | None:
        """The name of the message's group, or None."""
        group = self._columns._strings("groups")[self._row]
        return group.decode() if group else None

    @property
    def id(self) -> MessageId:
        """The permanent id of the message: its topic and offset."""
        return MessageId(self._columns.topic, self.offset)

    @property
    def offset(self) -> int:
        """The offset of the message in its topic."""
        return self._columns.offsets.item(self._row)

    @property
    def due_ms(self) -> int:
        """The due time of the message in Unix milliseconds."""
        return self._columns.due_ms.item(self._row)

    @property
    def deliver_at(self) -> datetime:
        """The due time of the message as a datetime in UTC."""
        return moment(self.due_ms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class DeliveredRow(Row):
    """One message that the broker delivered to a consumer: a row of a ``Delivery``."""

    __slots__ = ()

    _columns: Delivery[DeliveredRow]

    @property
    def attempt(self) -> int:
        """The number of deliveries of the message that count as attempts, including this one."""
        column = self._columns._attempts
        return 1 if column is None else int(column[self._row])

    @property
    def redelivered(self) -> bool:
        """Whether the message may have been delivered before.

        After a crash of the broker, this may be True although the message was not delivered.
        """
        column = self._columns._redelivered
        return column is not None and bool(column[self._row])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} attempt {self.attempt}>"
