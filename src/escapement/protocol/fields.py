"""The kinds of fields that commands of the protocol have.

Each class here is a *kind*. ``read`` converts a received value, as msgpack has decoded it, into the
value of the command's field. ``write`` converts it back. Both raise ``ValueError`` if the value is
not valid. A command names the kind of each field in the annotation of the field,
``Annotated[int, Integer(0, 9)]``. So the dataclass of a command describes its frame completely.

A *plain value* is None, a bool, a number, a str, bytes, or a list or map of plain values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from escapement.dedup import DIGEST, Digests
from escapement.errors import InvalidRequest
from escapement.message import FEW_ROWS, Buffer, Int64s
from escapement.names import SUBSCRIPTION_KINDS
from escapement.position import Position
from escapement.protocol.limits import (
    LOG_ID_BYTES,
    MAX_ACK_ROWS,
    MAX_BATCH_MESSAGES,
    MAX_CODE_CHARS,
    MAX_DEPTH,
    MAX_DETAIL_CHARS,
    MAX_FIELDS,
    MAX_FRAME_BYTES,
    MAX_ID,
    MAX_INT64,
    MAX_MESSAGE_CHARS,
    MAX_NAME_CHARS,
    MAX_REASON_CHARS,
    MAX_REPLY_CONTAINERS,
    MAX_REQUEST_CONTAINERS,
    MAX_REQUEST_ITEMS,
    MAX_TABLE_FIELDS,
    MAX_TOPIC_CHARS,
)
from escapement.replacement import FIRST
from escapement.traits import KeyRange, check_key_range


class Kind(Protocol):
    """The interface of a kind of field."""

    def read(self, value: Any) -> Any:
        """Convert a received value to the value of the field, or raise ``ValueError``."""
        ...

    def write(self, value: Any) -> Any:
        """Convert the value of the field to a value to send, or raise ``ValueError``."""
        ...


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from ``low`` to ``high``, both included."""

    low: int
    high: int

    def read(self, value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"is {type(value).__name__}, not an integer")
        if not self.low <= value <= self.high:
            raise ValueError(f"is {value}, outside {self.low}..{self.high}")
        return value

    write = read


class Flag:
    """A boolean."""

    def read(self, value: Any) -> bool:
        if type(value) is not bool:
            raise ValueError(f"is {type(value).__name__}, not a boolean")
        return value

    write = read


@dataclass(frozen=True, slots=True)
class Text:
    """A string of ``low`` to ``high`` characters."""

    high: int
    low: int = 0

    def read(self, value: Any) -> str:
        if type(value) is not str:
            raise ValueError(f"is {type(value).__name__}, not a string")
        if not self.low <= len(value) <= self.high:
            raise ValueError(f"has {len(value)} characters, outside {self.low}..{self.high}")
        return value

    write = read


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of at most ``most`` strings of 1 to ``high`` characters each."""

    most: int
    high: int

    def read(self, value: Any) -> tuple[str, ...]:
        if type(value) not in (list, tuple):
            raise ValueError(f"is {type(value).__name__}, not a list")
        if len(value) > self.most:
            raise ValueError(f"has {len(value)} items, more than {self.most}")
        item = Text(self.high, low=1)
        return tuple(map(item.read, value))

    write = read


@dataclass(frozen=True, slots=True)
class Choice:
    """A string that is one of ``words``."""

    words: tuple[str, ...]

    def read(self, value: Any) -> str:
        if type(value) is not str or value not in self.words:
            raise ValueError(f"is not one of {', '.join(self.words)}")
        return value

    write = read


class StartPosition:
    """The position where a subscription begins, in its text form (see ``escapement.position``)."""

    def read(self, value: Any) -> str:
        if type(value) is not str:
            raise ValueError(f"is {type(value).__name__}, not a string")
        try:
            Position.parse(value)
        except InvalidRequest as error:
            raise ValueError(f"is not valid: {error}") from None
        return value

    write = read


class Keys:
    """The key range of a consumer: two slots, "auto" or None (see ``escapement.traits``)."""

    def read(self, value: Any) -> KeyRange:
        try:
            return check_key_range(value)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None

    def write(self, value: Any) -> Any:
        checked = self.read(value)
        return list(checked) if isinstance(checked, tuple) else checked


class Body:
    """The bytes of an encoded ``MessageBatch``. Reading does not decode them."""

    def read(self, value: Any) -> bytes:
        if type(value) is not bytes:
            raise ValueError(f"is {type(value).__name__}, not bytes")
        return value

    def write(self, value: Buffer) -> Buffer:
        if len(value) > MAX_FRAME_BYTES:
            raise ValueError(f"has {len(value)} bytes, more than {MAX_FRAME_BYTES}")
        return value


@dataclass(frozen=True, slots=True)
class ByteString:
    """A byte string of ``size`` bytes."""

    size: int

    def read(self, value: Any) -> bytes:
        if type(value) is not bytes:
            raise ValueError(f"is {type(value).__name__}, not bytes")
        if len(value) != self.size:
            raise ValueError(f"has {len(value)} bytes, not {self.size}")
        return value

    write = read


@dataclass(frozen=True, slots=True)
class Column:
    """A numpy column, sent as the bytes of its elements: little-endian, one after the other.

    Reading makes no copy: the array is a read-only view of the received bytes. A column has at most
    ``max_rows`` elements, none below ``low``. If it is ``optional``, None stands for no column.
    """

    dtype: np.dtype[Any]
    max_rows: int
    low: int | None = None
    optional: bool = False

    def read(self, value: Any) -> npt.NDArray[Any] | None:
        if value is None and self.optional:
            return None
        if type(value) is not bytes:
            raise ValueError(f"is {type(value).__name__}, not a column")
        rows, rest = divmod(len(value), self.dtype.itemsize)
        if rest:
            raise ValueError(f"has {len(value)} bytes, not rows of {self.dtype.itemsize} each")
        if rows > self.max_rows:
            raise ValueError(f"has {rows} rows, more than {self.max_rows}")
        column = np.frombuffer(value, self.dtype)
        if self.low is not None and rows:
            lowest = min(column.tolist()) if rows <= FEW_ROWS else column.min()
            if lowest < self.low:
                raise ValueError(f"holds {lowest}, below {self.low}")
        return column

    def write(self, value: npt.NDArray[Any] | None) -> bytes | None:
        if value is None and self.optional:
            return None
        assert value is not None, "this column is not optional"
        if len(value) > self.max_rows:
            raise ValueError(f"has {len(value)} rows, more than {self.max_rows}")
        return value.astype(self.dtype, copy=False).tobytes()


class Map:
    """A map from strings to plain values."""

    def read(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"is {type(value).__name__}, not a map")
        _check_containers(value, MAX_REQUEST_CONTAINERS)
        return value

    def write(self, value: Any) -> dict[str, Any]:
        checked = self.read(value)
        most = MAX_REQUEST_ITEMS - MAX_FIELDS  # the fields of the frame count too
        if (items := _items_of(checked)) > most:
            raise ValueError(f"has {items} items in lists and maps, more than {most}")
        return checked


class Plain:
    """Any plain value."""

    def read(self, value: Any) -> Any:
        _check_containers(value, MAX_REPLY_CONTAINERS)
        return value

    write = read


# The types of plain values that have no items.
_SIMPLE: Final = frozenset([type(None), bool, int, float, str, bytes])


def _check_containers(value: Any, most: int) -> None:
    containers = check_plain(value) + 1  # the frame itself is one
    if containers > most:
        raise ValueError(f"holds {containers} lists and maps, more than {most}")


def _items_of(value: Any) -> int:
    """Return the number of items in a list or map and in all that are nested in it."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0
    return len(value) + sum(map(_items_of, value))


def check_plain(value: Any, depth: int = 0) -> int:
    """Check that a value is plain and nested at most ``MAX_DEPTH`` deep.

    Args:
      depth: how many lists and maps ``value`` itself is nested in.

    Returns:
      The number of lists and maps in the value, with the value itself.

    Raises:
      ValueError: if the value is not plain, or is nested too deep.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nests deeper than {MAX_DEPTH}")
    if type(value) in _SIMPLE:
        if type(value) is int:
            _check_range([value])
        return 0
    if type(value) is dict:
        if set(map(type, value)) - {str}:
            raise ValueError("has a map whose keys are not all strings")
        return 1 + _check_items(value.values(), depth + 1)
    if type(value) in (list, tuple):
        return 1 + _check_items(value, depth + 1)
    raise ValueError(f"holds a {type(value).__name__}, which is not a plain value")


def _check_items(items: Collection[Any], depth: int) -> int:
    """Check the items of a list or map, as ``check_plain`` does; return the sum of its results.

    Items that are not lists or maps are checked together, which is several times as fast.
    """
    types = set(map(type, items))
    if depth > MAX_DEPTH or not types <= _SIMPLE:
        return sum(check_plain(item, depth) for item in items)
    if int in types:
        _check_range([item for item in items if type(item) is int])
    return 0


def _check_range(numbers: list[int]) -> None:
    if min(numbers) < -(1 << 63) or max(numbers) >= 1 << 64:
        raise ValueError("holds a number of more than 64 bits")


_INT64 = np.dtype("<i8")

Id = Annotated[int, Integer(1, MAX_ID)]
OptionalId = Annotated[int, Integer(0, MAX_ID)]
Count = Annotated[int, Integer(0, MAX_INT64)]
# A count, an offset or a time, or -1 for none or unknown.
CountOrNone = Annotated[int, Integer(-1, MAX_INT64)]
Boolean = Annotated[bool, Flag()]
Topic = Annotated[str, Text(MAX_TOPIC_CHARS, low=1)]
Name = Annotated[str, Text(MAX_NAME_CHARS, low=1)]
OptionalName = Annotated[str, Text(MAX_NAME_CHARS)]
FieldTexts = Annotated[tuple[str, ...], Texts(MAX_TABLE_FIELDS, MAX_NAME_CHARS)]
SubscriptionKind = Annotated[str, Choice(SUBSCRIPTION_KINDS)]
Code = Annotated[str, Text(MAX_CODE_CHARS, low=1)]
Reason = Annotated[str, Text(MAX_REASON_CHARS)]
Detail = Annotated[str, Text(MAX_DETAIL_CHARS)]
Explanation = Annotated[str, Text(MAX_MESSAGE_CHARS)]
LogId = Annotated[bytes, ByteString(LOG_ID_BYTES)]
BodyBytes = Annotated[Buffer, Body()]
PlainMap = Annotated[dict[str, Any], Map()]
PlainValue = Annotated[Any, Plain()]

Int64Column = Annotated[Int64s, Column(_INT64, MAX_BATCH_MESSAGES, low=0)]
OptionalInt64Column = Annotated[
    Int64s | None, Column(_INT64, MAX_BATCH_MESSAGES, low=-1, optional=True)
]
ReplaceModes = Annotated[
    Int64s | None, Column(_INT64, MAX_BATCH_MESSAGES, low=FIRST, optional=True)
]
AttemptColumn = Annotated[
    npt.NDArray[np.uint16] | None, Column(np.dtype("<u2"), MAX_BATCH_MESSAGES, optional=True)
]
FlagColumn = Annotated[
    npt.NDArray[np.uint8] | None, Column(np.dtype("u1"), MAX_BATCH_MESSAGES, optional=True)
]
FoundColumn = Annotated[Int64s, Column(_INT64, MAX_BATCH_MESSAGES, low=-1)]
DigestColumn = Annotated[Digests, Column(DIGEST, MAX_BATCH_MESSAGES)]
OptionalDigests = Annotated[Digests | None, Column(DIGEST, MAX_BATCH_MESSAGES, optional=True)]
AmendStatusColumn = Annotated[npt.NDArray[np.uint8], Column(np.dtype("u1"), MAX_ACK_ROWS)]
AckColumn = Annotated[Int64s, Column(_INT64, MAX_ACK_ROWS, low=0)]
OptionalAckColumn = Annotated[Int64s | None, Column(_INT64, MAX_ACK_ROWS, low=0, optional=True)]
