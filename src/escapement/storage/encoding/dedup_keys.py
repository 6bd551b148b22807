"""Encoding of stored dedup keys, for the journal and the table ``dedup_keys``.

For each message that was published with a dedup key, a row has the digest of the key, the offset
of the message, and when it was published. A checkpoint writes the new rows as a part of the
topic, and sometimes all rows again, as it does for attempts (``Parts`` of
``storage/encoding/attempts.py`` decides). Layout, little-endian::

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
# Encoded size of one key.
KEY_BYTES: Final = 32


class KeyTable(NamedTuple):
    """Three columns of equal length."""

    digests: Digests
    offsets: Int64s
    published_ms: Int64s

    def take(self, rows: Any) -> KeyTable:
        """Return rows, selected by number, mask or slice."""
        return KeyTable(self.digests[rows], self.offsets[rows], self.published_ms[rows])

    @staticmethod
    def concat(tables: Sequence[KeyTable]) -> KeyTable:
        """Concatenate tables."""
        return KeyTable(
            np.concatenate([table.digests for table in tables]),
            np.concatenate([table.offsets for table in tables]),
            np.concatenate([table.published_ms for table in tables]),
        )


class Keyed(NamedTuple):
    """Dedup keys of one topic."""

    topic_id: int
    keys: KeyTable


def encode_keys(table: KeyTable) -> bytes:
    """Encode a table."""
    body = b"".join(
        [
            table.offsets.astype("<i8", copy=False).tobytes(),
            table.published_ms.astype("<i8", copy=False).tobytes(),
            table.digests.tobytes(),
        ]
    )
    return _HEAD.pack(_VERSION, len(table.offsets), crc32(body)) + body


def decode_keys(data: Buffer) -> KeyTable:
    """Decode a table, as views of ``data``.

    Raises:
      LogDamaged: if ``encode_keys`` did not produce these bytes.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise LogDamaged(f"a table of dedup keys of {len(view)} bytes has no header")
    version, count, crc = _HEAD.unpack_from(view)
    body = view[_HEAD.size :]
    if version != _VERSION or len(body) != KEY_BYTES * count or crc32(body) != crc:
        raise LogDamaged("a table of dedup keys fails its checksum, or has another version")
    return KeyTable(
        np.frombuffer(body, DIGEST, count, 16 * count),
        np.frombuffer(body, "<i8", count),
        np.frombuffer(body, "<i8", count, 8 * count),
    )
