"""Encoding of dedup keys, for the journal and the table ``dedup_keys`` of the database.

A topic stores only the first of several messages with the same *dedup key*. So it remembers, for
each message that was published with one, an entry: the digest of the dedup key, the offset of the
message, and when it was published. A checkpoint stores the new entries of a topic as a numbered
*part*, and sometimes writes all entries again, as it does for attempts
(``storage/encoding/attempts.py``). After a header, a part has these columns, little-endian::

    offset i64 x count | published_ms i64 x count | digest 16 bytes x count

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from escapement.dedup import DIGEST, Digests
from escapement.message import Buffer, Int64s
from escapement.storage.encoding.attempts import ROW_BYTES, decode_part, encode_part

# The encoded size of one entry.
KEY_BYTES: Final = ROW_BYTES


class KeyTable(NamedTuple):
    """The entries of some dedup keys of a topic, as three columns."""

    digests: Digests
    offsets: Int64s
    published_ms: Int64s

    def take(self, rows: Any) -> KeyTable:
        """Return a table of some entries, selected by their indexes, a mask or a slice."""
        return KeyTable(self.digests[rows], self.offsets[rows], self.published_ms[rows])

    @staticmethod
    def concat(tables: Sequence[KeyTable]) -> KeyTable:
        """Join tables to one, in order."""
        return KeyTable(
            np.concatenate([table.digests for table in tables]),
            np.concatenate([table.offsets for table in tables]),
            np.concatenate([table.published_ms for table in tables]),
        )


class Keyed(NamedTuple):
    """A table of dedup keys, and the topic that they belong to."""

    topic_id: int
    keys: KeyTable


def encode_keys(table: KeyTable) -> bytes:
    """Encode a table of dedup keys as a part."""
    columns = [
        table.offsets.astype("<i8", copy=False).tobytes(),
        table.published_ms.astype("<i8", copy=False).tobytes(),
        table.digests.tobytes(),
    ]
    return encode_part(len(table.offsets), b"".join(columns))


def decode_keys(data: Buffer) -> KeyTable:
    """Decode a part to a table of dedup keys, whose columns are views of ``data``.

    Raises:
      LogDamaged: if the part is damaged.
    """
    count, columns = decode_part(data)
    return KeyTable(
        np.frombuffer(columns, DIGEST, count, 16 * count),
        np.frombuffer(columns, "<i8", count),
        np.frombuffer(columns, "<i8", count, 8 * count),
    )
