"""What one group commit did besides its log rows' data, as bytes.

Columns throughout: the rows it wrote to the log, the offsets that subscriptions
acknowledged, the attempts counted, and how far each producer has come. Layout,
little-endian::

    version u8 | 0 u8 x3 | rows u32 | acks u32 | attempts u32 | producers u32 | crc32 u32
    rows        5 columns of i64: generation, topic, base offset, messages, size_bytes
    acks        2 columns: subscription i64, length u32
    attempts    5 columns of i64: subscription, offset, attempt, next_ms, due_ms
    producers   3 columns of i64: producer, last sequence, last offset
    offsets     of each ack, end to end (storage/offsetcolumn.py)

The checksum covers everything but itself. No I/O.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.errors import LogDamaged, StorageError
from escapement.message import Buffer, Int64s
from escapement.storage.log import RowKey
from escapement.storage.offsetcolumn import decode_offsets, encode_offsets

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BxxxIIII")
_CRC: Final = struct.Struct("<I")
_START: Final = _HEAD.size + _CRC.size

Table = npt.NDArray[np.int64]


class Acked(NamedTuple):
    """Offsets that a subscription acknowledged; sorted when read back."""

    subscription_id: int
    offsets: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class AttemptColumns:
    """Deliveries that did not end in an acknowledgement; five int64 columns."""

    subscription_id: Int64s
    offset: Int64s
    attempt: Int64s
    next_ms: Int64s
    due_ms: Int64s

    def __len__(self) -> int:
        return len(self.offset)


class ProducerMark(NamedTuple):
    """How far a producer has come: its last sequence, and the last offset given to it."""

    producer_id: int
    last_sequence: int
    last_offset: int


@dataclass(frozen=True, slots=True, eq=False)
class JournalEntry:
    """The content of one journal row."""

    rows: Sequence[RowKey] = ()
    acks: Sequence[Acked] = ()
    attempts: AttemptColumns | None = None
    producers: Sequence[ProducerMark] = ()


def encode_entry(entry: JournalEntry) -> bytes:
    """The bytes of one entry."""
    attempts = entry.attempts
    offsets = [encode_offsets(acked.offsets) for acked in entry.acks]
    parts = [
        _columns(entry.rows, 5),
        np.fromiter((a.subscription_id for a in entry.acks), "<i8", len(entry.acks)).tobytes(),
        np.fromiter(map(len, offsets), "<u4", len(offsets)).tobytes(),
        b"" if attempts is None else _attempts(attempts),
        _columns(entry.producers, 3),
        *offsets,
    ]
    count = 0 if attempts is None else len(attempts)
    head = _HEAD.pack(_VERSION, len(entry.rows), len(entry.acks), count, len(entry.producers))
    crc = zlib.crc32(head)
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join([head, _CRC.pack(crc), *parts])


def decode_entry(data: Buffer) -> JournalEntry:
    """The entry, after checking that it is whole.

    Raises:
      LogDamaged: if the bytes are not what ``encode_entry`` made.
    """
    view = memoryview(data)
    if len(view) < _START:
        raise LogDamaged(f"a journal entry of {len(view)} bytes has no header")
    version, rows, acks, attempts, producers = _HEAD.unpack_from(view)
    (crc,) = _CRC.unpack_from(view, _HEAD.size)
    if zlib.crc32(view[_START:], zlib.crc32(view[: _HEAD.size])) != crc:
        raise LogDamaged("a journal entry fails its checksum")
    if version != _VERSION:
        raise LogDamaged(f"a journal entry has the unknown version {version}")
    if len(view) - _START < 40 * rows + 12 * acks + 40 * attempts + 24 * producers:
        raise LogDamaged("a journal entry ends inside its columns")
    at = _START
    row_table, at = _table(view, at, 5, rows)
    subscriptions, at = _table(view, at, 1, acks)
    lengths = np.frombuffer(view, "<u4", acks, at).tolist()
    at += 4 * acks
    attempt_table, at = _table(view, at, 5, attempts)
    producer_table, at = _table(view, at, 3, producers)
    if len(view) - at != sum(lengths):
        raise LogDamaged("a journal entry's offsets are not as long as it says")
    acked = []
    for subscription_id, length in zip(subscriptions[0].tolist(), lengths, strict=True):
        acked.append(Acked(subscription_id, _offsets(view[at : at + length])))
        at += length
    return JournalEntry(
        [RowKey(*row) for row in row_table.T.tolist()],
        acked,
        AttemptColumns(*attempt_table) if attempts else None,
        [ProducerMark(*row) for row in producer_table.T.tolist()],
    )


def _columns(records: Sequence[tuple[int, ...]], width: int) -> bytes:
    """Records as columns of i64, one after the other."""
    if not records:
        return b""
    return np.array(records, "<i8").reshape(-1, width).T.tobytes()


def _attempts(attempts: AttemptColumns) -> bytes:
    columns = (
        attempts.subscription_id,
        attempts.offset,
        attempts.attempt,
        attempts.next_ms,
        attempts.due_ms,
    )
    assert len({len(column) for column in columns}) == 1, "columns of unequal height"
    return b"".join([column.astype("<i8", copy=False).tobytes() for column in columns])


def _table(view: memoryview, at: int, columns: int, rows: int) -> tuple[Table, int]:
    table = np.frombuffer(view, "<i8", columns * rows, at).reshape(columns, rows)
    return table.astype(np.int64, copy=False), at + 8 * columns * rows


def _offsets(view: memoryview) -> Int64s:
    try:
        return decode_offsets(view)
    except StorageError as error:
        raise LogDamaged(f"a journal entry's offsets do not decode: {error}") from error
