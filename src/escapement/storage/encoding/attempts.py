"""Encoding of attempts: the rows of the table ``attempts``.

For each message of a subscription that was delivered and is not acknowledged, a row has the
number of its deliveries, the time of its next attempt, and its due time (by which the index
finds it). The rows of a subscription are stored in *parts* with ascending numbers. A checkpoint
adds a part with the changes since the last one. If several parts have a message, the highest
part counts. Entries of acknowledged messages are ignored. When ``Parts`` decides so, a checkpoint
writes all rows again in parts of bounded size, and deletes the older parts. So the cost of a
checkpoint is proportional to the changes, not to the number of messages in retry. Layout of a
part, little-endian::

    version u8 | 0 u8 x3 | count u32 | crc32 of the columns u32
    4 columns of i64: offset, attempt, next_ms, due_ms

Dedup keys are stored in parts too (``storage/encoding/dedup_keys.py``).

No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BxxxII")
_COLUMNS: Final = 4
# The size of a row in each kind of part.
ROW_BYTES: Final = 8 * _COLUMNS
# The lower 15 of 16 bits are the count. The highest bit marks a message that was returned without
# an attempt, so it counts as redelivered on its first attempt. The count stops at a maximum, which
# is far beyond where waits stop growing and leaves room for one more.
RELEASED: Final = 0x8000
MOST_ATTEMPTS: Final = 0x7FFE
# Rows of one part: 2 MiB, which fits any packet and does not hold up a transaction.
PART_ROWS: Final = 65_536
# All rows are written again when there are more parts than this, or more rows than twice those
# in use and a reserve.
MOST_PARTS: Final = 64
_SPARE_ROWS: Final = 65_536


class AttemptTable(NamedTuple):
    """Four int64 columns of equal length.

    The lower 16 bits of ``attempts`` are the count and the flag ``RELEASED``. The bits above
    them are the message's traits.
    """

    offsets: Int64s
    attempts: Int64s
    next_ms: Int64s
    due_ms: Int64s

    @property
    def counts(self) -> Int64s:
        """Number of deliveries of each message; int64[n]."""
        return self.attempts & (RELEASED - 1)

    def pieces(self) -> list[AttemptTable]:
        """Split into tables of ``PART_ROWS`` rows at most."""
        return [
            AttemptTable(*(column[low : low + PART_ROWS] for column in self))
            for low in range(0, len(self.offsets), PART_ROWS)
        ]


def last_stated(offsets: Int64s) -> Int64s:
    """Return the index of each offset's last occurrence, by ascending offset; int64[m]."""
    _, last = np.unique(offsets[::-1], return_index=True)
    at: Int64s = len(offsets) - 1 - last
    return at


@dataclass(slots=True)
class Parts:
    """The number and size of one subscription's stored parts, and the number of the next."""

    next_part: int = 0
    parts: int = 0
    rows: int = 0

    @classmethod
    def of(cls, stored: Sequence[tuple[int, Buffer]]) -> Parts:
        """Sum up stored ``(part, data)`` rows."""
        rows = sum(max(0, len(data) - _HEAD.size) // ROW_BYTES for _, data in stored)
        return cls(max((part for part, _ in stored), default=-1) + 1, len(stored), rows)

    def add(self, rows: int) -> int:
        """Count a new part of ``rows`` rows, and return its number."""
        self.next_part += 1
        self.parts += 1
        self.rows += rows
        return self.next_part - 1

    def wants_rewrite(self, live: int) -> bool:
        """Return whether to write all rows again, given that at most ``live`` are in use."""
        if not live:
            return self.parts > 0
        full = -(-live // PART_ROWS)
        return self.parts > MOST_PARTS + full or self.rows > _SPARE_ROWS + 2 * live

    def rewrite(self) -> int:
        """Forget all stored parts, and return the number of the first part to replace them."""
        self.parts = self.rows = 0
        return self.next_part


def encode_part(rows: int, columns: bytes) -> bytes:
    """Return a part of this many rows."""
    return _HEAD.pack(_VERSION, rows, crc32(columns)) + columns


def decode_part(data: Buffer) -> tuple[int, memoryview]:
    """Return the number of rows of a part, and its columns.

    Raises:
      LogDamaged: if ``encode_part`` did not produce these bytes.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise LogDamaged(f"a part of {len(view)} bytes has no header")
    version, rows, crc = _HEAD.unpack_from(view)
    columns = view[_HEAD.size :]
    if version != _VERSION or len(columns) != ROW_BYTES * rows or crc32(columns) != crc:
        raise LogDamaged("a part fails its checksum, or has another version")
    return rows, columns


def encode_attempts(table: AttemptTable) -> bytes:
    """Encode a table."""
    columns = np.stack([np.asarray(column, "<i8") for column in table]).tobytes()
    return encode_part(len(table.offsets), columns)


def decode_attempts(data: Buffer) -> AttemptTable:
    """Decode a table. Raises ``LogDamaged``."""
    rows, columns = decode_part(data)
    return AttemptTable(*np.frombuffer(columns, "<i8").reshape(_COLUMNS, rows))
