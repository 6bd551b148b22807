"""Dedup keys that were stored, as bytes: in the journal, and in the table ``dedup_keys``.

For each message that was published with a dedup key: the key's digest, the message's
offset, and when it was published. A checkpoint writes what came since the last as a part of
the topic, and now and then all anew, as with attempts (``storage/attempts.py``, whose
``Parts`` decides). Layout, little-endian::

    version u8 | 0 u8 x3 | count u32 | crc32 u32
    offset i64 x count | published_ms i64 x count | digest 16 bytes x count

No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from escapement.dedup import DIGEST, Digests
from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BxxxII")
# What one key takes.
KEY_BYTES: Final = 32


class KeyTable(NamedTuple):
    """Three columns of one height."""

    digests: Digests
    offsets: Int64s
    published_ms: Int64s

    def take(self, rows: Any) -> KeyTable:
        """The rows named, by number, as a mask, or as a slice."""
        return KeyTable(self.digests[rows], self.offsets[rows], self.published_ms[rows])

    @staticmethod
    def concat(tables: Sequence[KeyTable]) -> KeyTable:
        """The tables one below the other."""
        return KeyTable(
            np.concatenate([table.digests for table in tables]),
            np.concatenate([table.offsets for table in tables]),
            np.concatenate([table.published_ms for table in tables]),
        )


class Keyed(NamedTuple):
    """Keys of one topic."""

    topic_id: int
    keys: KeyTable


def encode_keys(table: KeyTable) -> bytes:
    """The bytes of a table."""
    body = b"".join(
        [
            table.offsets.astype("<i8", copy=False).tobytes(),
            table.published_ms.astype("<i8", copy=False).tobytes(),
            table.digests.tobytes(),
        ]
    )
    return _HEAD.pack(_VERSION, len(table.offsets), crc32(body)) + body


def decode_keys(data: Buffer) -> KeyTable:
    """The table, as views of ``data``.

    Raises:
      LogDamaged: if the bytes are not what ``encode_keys`` made.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise LogDamaged(f"a table of dedup keys of {len(view)} bytes has no header")
    version, count, crc = _HEAD.unpack_from(view)
    body = view[_HEAD.size :]
    if version != _VERSION or len(body) != KEY_BYTES * count or crc32(body) != crc:
        raise LogDamaged("a table of dedup keys fails its checksum, or is of another version")
    return KeyTable(
        np.frombuffer(body, DIGEST, count, 16 * count),
        np.frombuffer(body, "<i8", count),
        np.frombuffer(body, "<i8", count, 8 * count),
    )
