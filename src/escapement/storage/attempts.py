"""Attempts counted so far, as bytes: one row of the table ``retries``.

For each message of a subscription that was delivered and is not acknowledged: how often,
when it may be tried next, and when it was due (by which the index finds it). Layout,
little-endian::

    version u8 | 0 u8 x3 | count u32 | crc32 u32
    4 columns of i64: offset, attempt, next_ms, due_ms

Nothing to remember is no bytes at all. No I/O.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import numpy as np

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BxxxII")
_COLUMNS: Final = 4


class AttemptTable(NamedTuple):
    """Four int64 columns of one height."""

    offsets: Int64s
    attempts: Int64s
    next_ms: Int64s
    due_ms: Int64s


def encode_attempts(table: AttemptTable) -> bytes:
    """The bytes of a table; none for an empty one."""
    count = len(table.offsets)
    if not count:
        return b""
    body = np.stack([np.asarray(column, "<i8") for column in table]).tobytes()
    return _HEAD.pack(_VERSION, count, zlib.crc32(body)) + body


def decode_attempts(data: Buffer) -> AttemptTable:
    """The table.

    Raises:
      LogDamaged: if the bytes are not what ``encode_attempts`` made.
    """
    view = memoryview(data)
    if not len(view):
        nothing = np.zeros(0, np.int64)
        return AttemptTable(nothing, nothing, nothing, nothing)
    if len(view) < _HEAD.size:
        raise LogDamaged(f"a table of attempts of {len(view)} bytes has no header")
    version, count, crc = _HEAD.unpack_from(view)
    body = view[_HEAD.size :]
    if version != _VERSION or len(body) != 8 * _COLUMNS * count or zlib.crc32(body) != crc:
        raise LogDamaged("a table of attempts fails its checksum, or is of another version")
    return AttemptTable(*np.frombuffer(body, "<i8").reshape(_COLUMNS, count))
