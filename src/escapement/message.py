"""Batches of messages, stored as columns.

A batch is not a list of objects. It consists of a few columns of equal height:

    ============  =========  ==================================================
    payloads      Blobs      the bytes of every message
    keys          Blobs      only if used; empty for a message without a key
    properties    Blobs      only if used; one msgpack map per message, or empty
    priorities    uint8      only if used; lower goes first, 50 is the default
    groups        Blobs      only if used; the group name per message, or empty
    ============  =========  ==================================================

The *body* of a batch is the encoding of these columns (``MessageBatch.encode``). The body
stays unchanged on its way from the producer over the network into the log, and from the
delayed index over the network to the consumer. Times are not part of the body, because only the
broker can turn delays into due times: see :class:`Times`.

The consumer creates an object for a single message only when the application iterates over a
batch. The object is a view of one row of the columns.

This module does no I/O and reads no clock. It raises ``RemoteProtocolError`` for bytes that
do not decode.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from escapement.errors import RemoteProtocolError
from escapement.field import Field

Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
_N = TypeVar("_N", bound=np.generic)
Buffer = bytes | bytearray | memoryview

DEFAULT_PRIORITY: Final = 50
MAX_PRIORITY: Final = 255
# Stands for "no delay" or "no delivery time" in the columns of ``Times``.
NO_TIME: Final = -1
# Strings are copied one by one if there are fewer than _FEW_STRINGS, because each numpy call
# has a fixed cost, or if they are wider than _WIDE_BYTES on average, because the numpy code
# copies each byte twice.
_FEW_STRINGS: Final = 128
_WIDE_BYTES: Final = 1024

# Python's own functions are faster than numpy's for columns of at most this many rows.
FEW_ROWS: Final = 16

_BODY_VERSION: Final = 1
_HEADER = struct.Struct("<BBxxI")  # of a body: its version, its flags, the number of messages
_FLAGS = _HAS_KEYS, _HAS_PROPERTIES, _HAS_PRIORITIES, _HAS_GROUPS = 1, 2, 4, 8


class MessageId(NamedTuple):
    """The permanent id of a message: the full name of its topic, and its offset there."""

    topic: str
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.offset}"


@dataclass(frozen=True, slots=True, eq=False)
class Blobs:
    """A column of byte strings: their lengths, and their bytes joined end to end."""

    lengths: UInt32s
    data: Buffer

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Blobs:
        """Return a column of the byte strings ``values``; O(total bytes)."""
        lengths = np.fromiter(map(len, values), np.uint32, len(values))
        return cls(lengths, b"".join(values))

    @classmethod
    def empty(cls, count: int) -> Blobs:
        """Return a column of ``count`` empty byte strings."""
        return cls(np.zeros(count, np.uint32), b"")

    def __len__(self) -> int:
        return len(self.lengths)

    def starts(self) -> Int64s:
        """Return the index in ``data``, the joined bytes, where each string begins; int64[n]."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        return ends - self.lengths

    def to_list(self) -> list[bytes]:
        """Return the byte strings of this column as a list; O(total bytes)."""
        view = bytes(self.data)
        if len(self.lengths) <= FEW_ROWS:
            ends = list(accumulate(self.lengths.tolist()))
        else:
            ends = np.cumsum(self.lengths, dtype=np.int64).tolist()
        return [view[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] if ends else []

    def take(self, rows: Int64s) -> Blobs:
        """Return a column of the strings in the given rows, in the given order; O(bytes copied)."""
        return gather(self.data, self.starts(), self.lengths, rows)

    def part(self, low: int, high: int) -> Blobs:
        """Return the strings in the rows ``[low, high)`` as a view, without copying."""
        first = int(self.lengths[:low].sum(dtype=np.int64))
        lengths = self.lengths[low:high]
        size = int(lengths.sum(dtype=np.int64))
        return Blobs(lengths, memoryview(self.data)[first : first + size])

    def parts(self, bounds: Sequence[int]) -> list[Blobs]:
        """Return the strings between each two following bounds as views, without copying."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        positions = [int(ends[bound - 1]) if bound else 0 for bound in bounds]
        view = memoryview(self.data)
        return [
            Blobs(self.lengths[low:high], view[first:end])
            for (low, high), (first, end) in zip(pairwise(bounds), pairwise(positions), strict=True)
        ]

    @staticmethod
    def concat(parts: Sequence[Blobs]) -> Blobs:
        """Join columns of byte strings to one column, in order."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([p.lengths for p in parts]) if parts else np.zeros(0, np.uint32)
        return Blobs(lengths, b"".join([p.data for p in parts]))


def gather(data: Buffer, starts: Int64s, lengths: UInt32s, rows: Int64s) -> Blobs:
    """Return a column with ``data[starts[r] : starts[r] + lengths[r]]`` for each row ``r``.

    Strings that are adjacent in ``data`` are copied together. O(bytes copied).
    """
    taken_lengths = lengths[rows]
    if not len(rows):
        return Blobs(taken_lengths, b"")
    begins = starts[rows]
    ends = begins + taken_lengths
    positions = np.cumsum(taken_lengths, dtype=np.int64) - taken_lengths
    size = int(positions[-1]) + int(taken_lengths[-1])
    firsts = np.flatnonzero(np.append(True, begins[1:] != ends[:-1]))
    width = int(taken_lengths[0])
    scattered = 2 * len(firsts) > len(rows) >= _FEW_STRINGS
    if scattered and 0 < width <= _WIDE_BYTES and bool((taken_lengths == width).all()):
        return Blobs(taken_lengths, _windows(data, width)[begins].view(np.uint8).data)
    lasts = np.append(firsts[1:], len(rows)) - 1
    begins, ends, positions = begins[firsts], ends[lasts], positions[firsts]
    taken = np.empty(size, np.uint8)
    copy_strings(taken, positions, data, begins, ends - begins)
    return Blobs(taken_lengths, taken.data)


def copy_strings(
    target: UInt8s, positions: Int64s, source: Buffer, begins: Int64s, widths: Int64s
) -> None:
    """Copy each ``source[begin : begin + width]`` to ``target[position : position + width]``.

    Numpy copies all strings at once, without the interpreter lock. If all strings have the same
    width, each is copied as one element of that size. Otherwise each is copied as two elements,
    one at its beginning and one at its end, of the largest power of two that fits. The two may
    overlap in the middle, as in many a ``memcpy``.
    """
    count = len(widths)
    if count < _FEW_STRINGS or int(widths.sum()) > _WIDE_BYTES * count:
        view, out = memoryview(source), target.data
        columns = (positions.tolist(), begins.tolist(), widths.tolist())
        for position, begin, width in zip(*columns, strict=True):
            out[position : position + width] = view[begin : begin + width]
        return
    first = int(widths[0])
    if (widths == first).all():
        if first:
            _windows(target.data, first)[positions] = _windows(source, first)[begins]
        return
    bits = np.frexp(widths)[1]
    for bit in np.flatnonzero(np.bincount(bits)).tolist():
        if bit:  # bit 0 stands for empty strings: nothing to copy
            size = 1 << (bit - 1)
            rows = np.flatnonzero(bits == bit)
            into, out_of = _windows(target.data, size), _windows(source, size)
            to, begin, rest = positions[rows], begins[rows], widths[rows] - size
            into[to] = out_of[begin]
            into[to + rest] = out_of[begin + rest]


def cells_of(data: Buffer, begins: Int64s, lengths: UInt32s, width: int) -> npt.NDArray[np.void]:
    """Return the first ``width`` bytes of each string in ``data``, as one element each; void[n].

    Args:
      begins: the index in ``data`` at which each string begins.
      lengths: the length of each string. If a string is shorter than ``width``, the rest of its
        element is undefined, and the caller must not use it.
    """
    last = len(data) - width
    if last < 0:
        cells = np.zeros(len(begins), np.dtype((np.void, width)))
        beyond = np.flatnonzero(lengths > 0)
    elif len(begins) and int(begins.max()) > last:
        cells = _windows(data, width)[np.minimum(begins, last)]
        beyond = np.flatnonzero((begins > last) & (lengths > 0))
    else:
        return _windows(data, width)[begins]
    # Elements for strings that begin in the last ``width`` bytes of ``data`` would reach beyond its
    # end. Such strings are few, so they are copied one by one.
    rows = cells.view(np.uint8).reshape(-1, width)
    for row in beyond.tolist():
        begin, length = int(begins[row]), int(lengths[row])
        rows[row, :length] = np.frombuffer(data, np.uint8, length, begin)
    return cells


def _windows(data: Buffer, width: int) -> npt.NDArray[np.void]:
    """Return overlapping elements of ``width`` bytes, one for each position of ``data``."""
    dtype = np.dtype((np.void, width))
    return np.ndarray((len(data) - width + 1,), dtype, data, 0, (1,))


@dataclass(frozen=True, slots=True, eq=False)
class MessageBatch:
    """The columns of a batch of messages, without their times and offsets.

    Attributes:
      payloads: the payload of each message.
      keys: the key of each message in UTF-8, empty if it has none; None if no message has a key.
      properties: a msgpack map of the properties of each message, empty if it has none; None if no
        message has properties.
      priorities: the priority of each message, 0 to 255; None gives all the default, 50.
      groups: the name of each message's group in UTF-8, empty if it has none; None if no message
        is in a group.
      fields: if the messages are rows of a message table, the names and types of the values in
        their payloads; otherwise None. They are not a part of the encoded batch.
    """

    payloads: Blobs
    keys: Blobs | None = None
    properties: Blobs | None = None
    priorities: npt.NDArray[np.uint8] | None = None
    groups: Blobs | None = None
    fields: tuple[Field, ...] | None = None

    def __len__(self) -> int:
        return len(self.payloads.lengths)

    @property
    def size_bytes(self) -> int:
        """The size in bytes of the columns of this batch, including the lengths of strings."""
        count = len(self)
        size = 4 * count + len(self.payloads.data)
        for column in (self.keys, self.properties, self.groups):
            if column is not None:
                size += 4 * count + len(column.data)
        return size + (count if self.priorities is not None else 0)

    def string_sizes(self) -> Int64s:
        """Return the bytes that each message has in all string columns together; int64[n]."""
        sizes = self.payloads.lengths.astype(np.int64)
        for column in (self.keys, self.properties, self.groups):
            if column is not None:
                sizes += column.lengths
        return sizes

    def strings(self, column: Blobs | None) -> list[bytes]:
        """Return ``column``, a string column of this batch, as a list.

        If the column is None, the list has an empty string for each message.
        """
        return [b""] * len(self) if column is None else column.to_list()

    def encode(self) -> bytes:
        """Return this batch encoded as a body: a header of 8 bytes, then the columns.

        A string column has the lengths of all strings first, and then their bytes.
        """
        return b"".join(self.encode_parts())

    def encode_parts(self) -> list[Buffer]:
        """Return this batch encoded as a body, in several buffers, which saves a copy."""
        columns = (self.keys, self.properties, self.priorities, self.groups)
        flags = sum(
            flag for flag, column in zip(_FLAGS, columns, strict=True) if column is not None
        )
        parts: list[Buffer] = [_HEADER.pack(_BODY_VERSION, flags, len(self))]
        for column in (*columns, self.payloads):
            if isinstance(column, Blobs):
                parts += [column.lengths.astype("<u4", copy=False).tobytes(), column.data]
            elif column is not None:
                parts.append(column.tobytes())
        return parts

    @classmethod
    def decode(cls, body: Buffer) -> MessageBatch:
        """Return the batch that is encoded in ``body``, with views of the body as columns.

        The lengths are checked in O(n).

        Raises:
          RemoteProtocolError: if lengths and bytes do not match exactly, or the version or a
            flag is unknown.
        """
        view = memoryview(body)
        if len(view) < _HEADER.size:
            raise RemoteProtocolError(f"a batch body of {len(view)} bytes has no header")
        version, flags, count = _HEADER.unpack_from(view)
        if version != _BODY_VERSION or flags & ~sum(_FLAGS):
            raise RemoteProtocolError(f"unknown batch version {version} or flags {flags:#x}")
        at = _HEADER.size
        keys = properties = priorities = groups = None
        if flags & _HAS_KEYS:
            keys, at = _decode_blobs(view, at, count)
        if flags & _HAS_PROPERTIES:
            properties, at = _decode_blobs(view, at, count)
        if flags & _HAS_PRIORITIES:
            if len(view) - at < count:
                raise RemoteProtocolError("a batch body ends inside its priorities")
            priorities = np.frombuffer(view, np.uint8, count, at)
            at += count
        if flags & _HAS_GROUPS:
            groups, at = _decode_blobs(view, at, count)
        payloads, at = _decode_blobs(view, at, count)
        if at != len(view):
            raise RemoteProtocolError(f"a batch body has {len(view) - at} extra bytes at its end")
        return cls(payloads, keys, properties, priorities, groups)

    def take(self, rows: Int64s) -> MessageBatch:
        """Return a batch of the messages in the given rows, in the given order."""
        return MessageBatch(
            self.payloads.take(rows),
            None if self.keys is None else self.keys.take(rows),
            None if self.properties is None else self.properties.take(rows),
            None if self.priorities is None else self.priorities[rows],
            None if self.groups is None else self.groups.take(rows),
            self.fields,
        )

    def part(self, low: int, high: int) -> MessageBatch:
        """Return a batch of the messages in the rows ``[low, high)``, as views, without copying."""
        return MessageBatch(
            self.payloads.part(low, high),
            None if self.keys is None else self.keys.part(low, high),
            None if self.properties is None else self.properties.part(low, high),
            None if self.priorities is None else self.priorities[low:high],
            None if self.groups is None else self.groups.part(low, high),
            self.fields,
        )

    def parts(self, heights: Sequence[int]) -> list[MessageBatch]:
        """Divide a batch into batches of these heights, as views, without copying."""
        if len(heights) == 1:
            return [self]
        bounds = [0, *accumulate(heights)]
        missing = [None] * len(heights)
        keys, properties, groups = (
            missing if column is None else column.parts(bounds)
            for column in (self.keys, self.properties, self.groups)
        )
        priorities = self.priorities
        levels = missing if priorities is None else [priorities[a:b] for a, b in pairwise(bounds)]
        payloads = self.payloads.parts(bounds)
        columns = zip(payloads, keys, properties, levels, groups, strict=True)
        return [MessageBatch(*column, self.fields) for column in columns]

    @staticmethod
    def concat(parts: Sequence[MessageBatch]) -> MessageBatch:
        """Join batches to one, in order, with every column that one of them uses.

        All batches have the same fields.
        """
        if len(parts) == 1:
            return parts[0]
        fields = parts[0].fields if parts else None
        assert all(part.fields == fields for part in parts), "rows of different fields"
        return MessageBatch(
            Blobs.concat([p.payloads for p in parts]),
            _concat_used([(len(p), p.keys) for p in parts]),
            _concat_used([(len(p), p.properties) for p in parts]),
            concat_columns([(len(p), p.priorities) for p in parts], DEFAULT_PRIORITY, np.uint8),
            _concat_used([(len(p), p.groups) for p in parts]),
            fields,
        )


def cuts(sizes: Int64s, most_bytes: int, most_rows: int) -> Iterator[tuple[int, int]]:
    """Cut a sequence of rows in order, and yield the bounds ``(low, high)`` of each section.

    A section has at most ``most_bytes`` and ``most_rows``. A row larger than ``most_bytes`` is
    a section of its own.

    Args:
      sizes: the size of each row; int64[n].
    """
    ends = np.cumsum(sizes)
    low, before = 0, 0
    while low < len(ends):
        high = int(ends.searchsorted(before + most_bytes, "right"))
        high = min(max(high, low + 1), low + most_rows)
        yield low, high
        low, before = high, int(ends[high - 1])


def _concat_used(parts: list[tuple[int, Blobs | None]]) -> Blobs | None:
    if all(column is None for _, column in parts):
        return None
    return Blobs.concat([Blobs.empty(n) if column is None else column for n, column in parts])


def concat_columns(
    parts: Sequence[tuple[int, npt.NDArray[_N] | None]], missing: int, dtype: type[_N]
) -> npt.NDArray[_N] | None:
    """Join columns, given as pairs (height, column), to one; None if all columns are None.

    A column that is None becomes ``height`` times the value ``missing``.
    """
    if all(column is None for _, column in parts):
        return None
    return np.concatenate(
        [np.full(n, missing, dtype) if column is None else column for n, column in parts]
    )


def _decode_blobs(view: memoryview, at: int, count: int) -> tuple[Blobs, int]:
    if len(view) - at < 4 * count:
        raise RemoteProtocolError("a batch body ends inside a column of lengths")
    lengths = np.frombuffer(view, "<u4", count, at)
    at += 4 * count
    few = count <= FEW_ROWS
    total = sum(lengths.tolist()) if few else int(lengths.sum(dtype=np.uint64))
    if len(view) - at < total:
        raise RemoteProtocolError("a batch body ends inside a column of bytes")
    return Blobs(lengths, view[at : at + total]), at + total


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """The requested delivery times of a batch, which the broker turns into ``due_ms``.

    ``delay_ms`` counts from the moment the broker accepts the batch, so the clock of the
    client does not matter. ``at_ms`` is Unix time in milliseconds. Either column may be
    absent. A message with neither (``NO_TIME`` in both) is due when it is accepted.
    """

    delay_ms: Int64s | None = None
    at_ms: Int64s | None = None

    def resolve(self, accepted_at_ms: int, count: int) -> Int64s:
        """Return the due time of each message, at least ``accepted_at_ms``; int64[count]."""
        due = np.full(count, accepted_at_ms, np.int64)
        if self.delay_ms is not None:
            due += np.maximum(self.delay_ms, 0)
        if self.at_ms is not None:
            np.maximum(due, self.at_ms, out=due)
        return due

    def take(self, rows: Int64s | slice) -> Times:
        """Return the delivery times of the messages in the given rows, in the given order."""
        return Times(
            None if self.delay_ms is None else self.delay_ms[rows],
            None if self.at_ms is None else self.at_ms[rows],
        )

    @property
    def given(self) -> bool:
        """Whether any message has a delay or a delivery time, which a namespace may forbid."""
        return any(c is not None and bool((c >= 0).any()) for c in (self.delay_ms, self.at_ms))


NO_TIMES: Final = Times()
