"""Encoding of replace keys, for the journal and the table ``replace_keys`` of the database.

A message that was published with a *replace key* can be replaced by a later message with the same
key while it is pending. So the broker remembers an entry for it: the digest of the key, the offset
of the message, its due time, since when messages with this key have been put off, and the traits
of the message. Entries are stored in parts, as dedup keys are (``storage/encoding/dedup_keys.py``).
After a header, a part has these columns, little-endian::

    offset i64 x count | due_ms i64 x count | since_ms i64 x count | traits i64 x count |
    digest 16 bytes x count

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from escapement.dedup import DIGEST, Digests
from escapement.message import Buffer, Int64s
from escapement.storage.encoding.attempts import decode_part, encode_part

_NUMBERS: Final = 4
# The encoded size of one entry.
REPLACE_KEY_BYTES: Final = DIGEST.itemsize + 8 * _NUMBERS


class ReplaceTable(NamedTuple):
    """The entries of some replace keys of a topic, as columns.

    ``since_ms`` is when the first message of a chain was published, of which each message replaced
    the one before it. ``traits`` are those of the message (``escapement.traits``).
    """

    digests: Digests
    offsets: Int64s
    due_ms: Int64s
    since_ms: Int64s
    traits: Int64s

    def take(self, rows: Any) -> ReplaceTable:
        """Return a table of some entries, selected by their indexes, a mask or a slice."""
        return ReplaceTable(*(column[rows] for column in self))

    @staticmethod
    def concat(tables: Sequence[ReplaceTable]) -> ReplaceTable:
        """Join tables to one, in order."""
        return ReplaceTable(*map(np.concatenate, zip(*tables, strict=True)))


class Replaceable(NamedTuple):
    """A table of replace keys, and the topic that they belong to."""

    topic_id: int
    keys: ReplaceTable


def encode_replace_keys(table: ReplaceTable) -> bytes:
    """Encode a table of replace keys as a part."""
    columns = [column.astype("<i8", copy=False).tobytes() for column in table[1:]]
    return encode_part(len(table.offsets), b"".join([*columns, table.digests.tobytes()]))


def decode_replace_keys(data: Buffer) -> ReplaceTable:
    """Decode a part to a table of replace keys, whose columns are views of ``data``.

    Raises:
      LogDamaged: if the part is damaged.
    """
    count, columns = decode_part(data, REPLACE_KEY_BYTES)
    numbers = np.frombuffer(columns, "<i8", _NUMBERS * count).reshape(_NUMBERS, count)
    digests = np.frombuffer(columns, DIGEST, count, 8 * _NUMBERS * count)
    return ReplaceTable(digests, *numbers)
