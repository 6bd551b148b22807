"""Encoding of attempts (deliveries of messages that are not acknowledged) for the database.

For each message of a subscription that was delivered and is not acknowledged, an *entry* has the
number of its deliveries, the time of its next delivery, and its due time (by which the delayed
index finds it). The entries of a subscription are stored in *parts*, numbered rows of the table
``attempts``. A checkpoint adds a part with the entries that changed since the last checkpoint. If
several parts have a message, the part with the highest number counts. Entries of acknowledged
messages are ignored. When :class:`Parts` decides so, a checkpoint writes all entries again in new
parts of bounded size, and deletes the older parts. So the cost of a checkpoint is proportional to
the changes, not to the number of messages in retry. Layout of a part, little-endian::

    version u8 | 0 u8 x3 | count u32 | crc32 of the columns u32
    4 columns of i64: offset, attempt, next_ms, due_ms

Dedup keys and replace keys are stored in such parts too (``storage/encoding/dedup_keys.py``,
``replace_keys.py``). This module does no I/O.
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
# The size of an entry in a part of attempts, or of dedup keys.
ROW_BYTES: Final = 8 * _COLUMNS
# The lowest 15 bits of ``attempt`` are the number of deliveries. The next bit, ``RELEASED``, marks
# a message with a delivery that does not count: a consumer returned the message unprocessed, or an
# earlier broker may have delivered it. The next delivery is then marked as a redelivery. The number
# stops at ``MOST_ATTEMPTS``, far beyond the number at which back-offs stop growing. One more than
# that still fits into the bits.
RELEASED: Final = 0x8000
MOST_ATTEMPTS: Final = 0x7FFE
# The most entries of a part: 2 MiB, which fits into any packet and takes a transaction little time.
PART_ROWS: Final = 65_536
# All entries of a subscription are written again when it has this many parts more than its entries
# in use fill, or more entries than twice those in use plus ``_SPARE_ROWS``.
MOST_PARTS: Final = 64
_SPARE_ROWS: Final = 65_536


class AttemptTable(NamedTuple):
    """The entries of some messages of one subscription, as four columns.

    The lower 16 bits of ``attempts`` are the number of deliveries and the flag ``RELEASED``. The
    bits above them are the traits of the message: its priority and a hash of its key.
    """

    offsets: Int64s
    attempts: Int64s
    next_ms: Int64s
    due_ms: Int64s

    @property
    def counts(self) -> Int64s:
        """The number of deliveries of each message; int64[n]."""
        return self.attempts & (RELEASED - 1)

    def pieces(self) -> list[AttemptTable]:
        """Split the table into tables of at most ``PART_ROWS`` entries."""
        return [
            AttemptTable(*(column[low : low + PART_ROWS] for column in self))
            for low in range(0, len(self.offsets), PART_ROWS)
        ]


def last_stated(offsets: Int64s) -> Int64s:
    """Return, for each distinct offset in ascending order, the index at which it occurs last.

    Args:
      offsets: offsets in any order, with repeats; int64[n].
    """
    _, last = np.unique(offsets[::-1], return_index=True)
    at: Int64s = len(offsets) - 1 - last
    return at


@dataclass(slots=True)
class Parts:
    """The stored parts of a subscription (or, for keys, of a topic) in numbers.

    From them ``wants_rewrite`` decides when to write all entries again.
    """

    next_part: int = 0  # the number of the next part
    parts: int = 0  # how many parts are stored
    rows: int = 0  # how many entries they have together

    @classmethod
    def of(cls, stored: Sequence[tuple[int, Buffer]], row_bytes: int = ROW_BYTES) -> Parts:
        """Count the parts and entries of stored rows.

        Args:
          stored: pairs of part number and bytes.
          row_bytes: the size of an entry.
        """
        rows = sum(max(0, len(data) - _HEAD.size) // row_bytes for _, data in stored)
        return cls(max((part for part, _ in stored), default=-1) + 1, len(stored), rows)

    def add(self, rows: int) -> int:
        """Record that a part with ``rows`` entries is added, and return its number."""
        self.next_part += 1
        self.parts += 1
        self.rows += rows
        return self.next_part - 1

    def wants_rewrite(self, live: int) -> bool:
        """Return whether to write all entries again, because the stored ones are too many.

        Args:
          live: an upper bound of the number of entries that are still in use.
        """
        if not live:
            return self.parts > 0
        full = -(-live // PART_ROWS)
        return self.parts > MOST_PARTS + full or self.rows > _SPARE_ROWS + 2 * live

    def rewrite(self) -> int:
        """Record that new parts replace all stored ones, and return the number of the first."""
        self.parts = self.rows = 0
        return self.next_part


def encode_part(rows: int, columns: bytes) -> bytes:
    """Encode a part: a header with a checksum, then the columns.

    Args:
      rows: the number of entries.
      columns: the encoded columns.
    """
    return _HEAD.pack(_VERSION, rows, crc32(columns)) + columns


def decode_part(data: Buffer, row_bytes: int = ROW_BYTES) -> tuple[int, memoryview]:
    """Verify a part, and return the number of its entries and its encoded columns.

    Args:
      row_bytes: the size of an entry.

    Raises:
      LogDamaged: if the part is damaged or has an unknown version.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise LogDamaged(f"a part of {len(view)} bytes has no header")
    version, rows, crc = _HEAD.unpack_from(view)
    columns = view[_HEAD.size :]
    if version != _VERSION or len(columns) != row_bytes * rows or crc32(columns) != crc:
        raise LogDamaged("a part fails its checksum, or has another version")
    return rows, columns


def encode_attempts(table: AttemptTable) -> bytes:
    """Encode a table of attempts as a part."""
    columns = np.stack([np.asarray(column, "<i8") for column in table]).tobytes()
    return encode_part(len(table.offsets), columns)


def decode_attempts(data: Buffer) -> AttemptTable:
    """Decode a part to a table of attempts. Raises ``LogDamaged`` if the part is damaged."""
    rows, columns = decode_part(data)
    return AttemptTable(*np.frombuffer(columns, "<i8").reshape(_COLUMNS, rows))
