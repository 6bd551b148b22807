"""Encoding of stored dedup keys, for the journal and the table ``dedup_keys``.

For each message that was published with a dedup key, a row has the digest of the key, the offset
of the message, and when it was published. A checkpoint writes the new rows as a part of the
topic, and sometimes all rows again, as it does for attempts (``storage/encoding/attempts.py``).
The columns of a part, little-endian::

    offset i64 x count | published_ms i64 x count | digest 16 bytes x count

No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from escapement.dedup import DIGEST, Digests
from escapement.message import Buffer, Int64s
from escapement.storage.encoding.attempts import ROW_BYTES, decode_part, encode_part

# Encoded size of one key.
KEY_BYTES: Final = ROW_BYTES


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
    columns = [
        table.offsets.astype("<i8", copy=False).tobytes(),
        table.published_ms.astype("<i8", copy=False).tobytes(),
        table.digests.tobytes(),
    ]
    return encode_part(len(table.offsets), b"".join(columns))


def decode_keys(data: Buffer) -> KeyTable:
    """Decode a table, as views of ``data``. Raises ``LogDamaged``."""
    count, columns = decode_part(data)
    return KeyTable(
        np.frombuffer(columns, DIGEST, count, 16 * count),
        np.frombuffer(columns, "<i8", count),
        np.frombuffer(columns, "<i8", count, 8 * count),
    )
