"""Attempts counted so far, as bytes: the rows of the table ``attempts``.

For each message of a subscription that was delivered and is not acknowledged: how often,
when it may be tried next, and when it was due (by which the index finds it). A
subscription has *parts*, numbered upwards. A checkpoint adds one that states what has
changed since the last; of several statements about a message that of the highest part
counts, and what is acknowledged is stated in vain. Now and then, as ``Parts`` decides, all
is stated anew in parts of bounded size, and the older ones go. So a checkpoint costs
what has changed, however many messages wait for another attempt. Layout of a part,
little-endian::

    version u8 | 0 u8 x3 | count u32 | crc32 u32
    4 columns of i64: offset, attempt, next_ms, due_ms

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
# Of 16 bits the lower 15 count. The highest says that the message was handed back untried, so
# that it counts as redelivered on its first attempt. The count ends where waits stopped growing
# long before; one more still fits.
RELEASED: Final = 0x8000
MOST_ATTEMPTS: Final = 0x7FFE
# Rows of one part: 2 MiB, which fits any packet and holds up no transaction.
PART_ROWS: Final = 65_536
# All is stated anew once there are so many parts, or so many rows and twice what lives.
MOST_PARTS: Final = 64
_SPARE_ROWS: Final = 65_536


class AttemptTable(NamedTuple):
    """Four int64 columns of one height.

    Of ``attempts`` the lower 16 bits are those that ``RELEASED`` and ``MOST_ATTEMPTS`` speak
    of; above them stand the message's traits.
    """

    offsets: Int64s
    attempts: Int64s
    next_ms: Int64s
    due_ms: Int64s

    @property
    def counts(self) -> Int64s:
        """How often each was delivered; int64[n]."""
        return self.attempts & (RELEASED - 1)

    def pieces(self) -> list[AttemptTable]:
        """The same in tables of ``PART_ROWS`` rows at most."""
        return [
            AttemptTable(*(column[low : low + PART_ROWS] for column in self))
            for low in range(0, len(self.offsets), PART_ROWS)
        ]


def last_stated(offsets: Int64s) -> Int64s:
    """Where in a column each offset stands for the last time, by ascending offset; int64[m]."""
    _, last = np.unique(offsets[::-1], return_index=True)
    at: Int64s = len(offsets) - 1 - last
    return at


@dataclass(slots=True)
class Parts:
    """What is stored of one subscription: the number of the next part, and how much."""

    next_part: int = 0
    parts: int = 0
    rows: int = 0

    @classmethod
    def of(cls, stored: Sequence[tuple[int, Buffer]]) -> Parts:
        """What ``(part, data)`` rows amount to."""
        rows = sum(max(0, len(data) - _HEAD.size) // (8 * _COLUMNS) for _, data in stored)
        return cls(max((part for part, _ in stored), default=-1) + 1, len(stored), rows)

    def add(self, rows: int) -> int:
        """The number of a new part with so many rows."""
        self.next_part += 1
        self.parts += 1
        self.rows += rows
        return self.next_part - 1

    def wants_rewrite(self, live: int) -> bool:
        """Whether to state all anew, of which ``live`` messages at most matter."""
        if not live:
            return self.parts > 0
        full = -(-live // PART_ROWS)
        return self.parts > MOST_PARTS + full or self.rows > _SPARE_ROWS + 2 * live

    def rewrite(self) -> int:
        """What is stored so far is to go; the number of the first part that follows."""
        self.parts = self.rows = 0
        return self.next_part


def encode_attempts(table: AttemptTable) -> bytes:
    """The bytes of a table."""
    count = len(table.offsets)
    body = np.stack([np.asarray(column, "<i8") for column in table]).tobytes()
    return _HEAD.pack(_VERSION, count, crc32(body)) + body


def decode_attempts(data: Buffer) -> AttemptTable:
    """The table.

    Raises:
      LogDamaged: if the bytes are not what ``encode_attempts`` made.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise LogDamaged(f"a table of attempts of {len(view)} bytes has no header")
    version, count, crc = _HEAD.unpack_from(view)
    body = view[_HEAD.size :]
    if version != _VERSION or len(body) != 8 * _COLUMNS * count or crc32(body) != crc:
        raise LogDamaged("a table of attempts fails its checksum, or is of another version")
    return AttemptTable(*np.frombuffer(body, "<i8").reshape(_COLUMNS, count))
