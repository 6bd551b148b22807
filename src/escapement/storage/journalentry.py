"""What one group commit did besides its log rows' data, as bytes.

Columns throughout: the rows it wrote to the log, the offsets that subscriptions
acknowledged, the attempts counted, how far each producer has come, which dedup keys its
messages had, and which groups they belong to. Layout, little-endian::

    version u8 | 0 u8 x3 | rows u32 | acks u32 | attempts u32 | producers u32 | crc32 u32
    rows        5 columns of i64: generation, topic, base offset, messages, size_bytes
    acks        2 columns: subscription i64, length u32
    attempts    5 columns of i64: subscription, offset, attempt, next_ms, due_ms
    producers   3 columns of i64: producer, last sequence, last offset
    offsets     of each ack, end to end (storage/offsetcolumn.py)
    size        version 3 only: of the keys that follow, u32; 0: there are none
    keys        from version 2 on: topics u32, then 2 columns: topic i64, length u32, then
                the tables of each, end to end (storage/dedupkeys.py)
    groups      version 3 only: count u32, then 3 columns: topic i64, length of the name u32,
                size u32; then the names, then the offsets of each (as above), end to end

The checksum covers everything but itself. No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.errors import LogDamaged, StorageError
from escapement.message import Buffer, Int64s
from escapement.storage.dedupkeys import Keyed, decode_keys, encode_keys
from escapement.storage.logtable import RowKey
from escapement.storage.offsetcolumn import decode_offsets, encode_offsets
from escapement.storage.seal import SEAL_BYTES, is_whole, sealed

_VERSION: Final = 1
# With dedup keys; else it is as the first version was.
_KEYED: Final = 2
# With groups, and perhaps dedup keys.
_GROUPED: Final = 3
_HEAD: Final = struct.Struct("<BxxxIIII")
_START: Final = _HEAD.size + SEAL_BYTES
_COUNT: Final = struct.Struct("<I")

Table = npt.NDArray[np.int64]


def cancellations_id(topic_id: int) -> int:
    """Under which id the cancelled messages of a topic stand where acknowledgements stand."""
    return -topic_id


class Acked(NamedTuple):
    """Offsets that a subscription acknowledged; sorted when read back.

    The id may be that of a topic's cancellations, which is negative.
    """

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


class Grouped(NamedTuple):
    """Messages that belong to a group of a topic; none: the group was forgotten.

    It is forgotten behind what else the entry says of it.
    """

    topic_id: int
    group: str
    offsets: Int64s  # ascending


@dataclass(frozen=True, slots=True, eq=False)
class JournalEntry:
    """The content of one journal row."""

    rows: Sequence[RowKey] = ()
    acks: Sequence[Acked] = ()
    attempts: AttemptColumns | None = None
    producers: Sequence[ProducerMark] = ()
    keyed: Sequence[Keyed] = ()
    grouped: Sequence[Grouped] = ()


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
    keys = _encode_keyed(entry.keyed) if entry.keyed else []
    if entry.grouped:
        parts.append(_COUNT.pack(sum(map(len, keys))))
    parts += keys
    if entry.grouped:
        parts += _encode_grouped(entry.grouped)
    count = 0 if attempts is None else len(attempts)
    version = _GROUPED if entry.grouped else _KEYED if entry.keyed else _VERSION
    head = _HEAD.pack(version, len(entry.rows), len(entry.acks), count, len(entry.producers))
    return sealed(head, parts)


def decode_entry(data: Buffer) -> JournalEntry:
    """The entry, after checking that it is whole.

    Raises:
      LogDamaged: if the bytes are not what ``encode_entry`` made.
    """
    view = memoryview(data)
    if len(view) < _START:
        raise LogDamaged(f"a journal entry of {len(view)} bytes has no header")
    version, rows, acks, attempts, producers = _HEAD.unpack_from(view)
    if not is_whole(view, _HEAD.size):
        raise LogDamaged("a journal entry fails its checksum")
    if version not in (_VERSION, _KEYED, _GROUPED):
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
    rest = len(view) - at - sum(lengths)
    if rest < 0 or (rest and version == _VERSION):
        raise LogDamaged("a journal entry's offsets are not as long as it says")
    acked = []
    for subscription_id, length in zip(subscriptions[0].tolist(), lengths, strict=True):
        acked.append(Acked(subscription_id, _offsets(view[at : at + length])))
        at += length
    keys, groups = _parts(view[at:], version)
    return JournalEntry(
        [RowKey(*row) for row in row_table.T.tolist()],
        acked,
        AttemptColumns(*attempt_table) if attempts else None,
        [ProducerMark(*row) for row in producer_table.T.tolist()],
        _decode_keyed(keys) if keys is not None else [],
        _decode_grouped(groups) if groups is not None else [],
    )


def _parts(view: memoryview, version: int) -> tuple[memoryview | None, memoryview | None]:
    """Where the dedup keys are said, and the groups."""
    if version != _GROUPED:
        return (view if version == _KEYED else None), None
    size = _COUNT.unpack_from(view)[0] if len(view) >= _COUNT.size else len(view)
    if _COUNT.size + size > len(view):
        raise LogDamaged("a journal entry ends inside its dedup keys")
    end = _COUNT.size + size
    return (view[_COUNT.size : end] if size else None), view[end:]


def _encode_keyed(keyed: Sequence[Keyed]) -> list[bytes]:
    tables = [encode_keys(one.keys) for one in keyed]
    return [
        _COUNT.pack(len(keyed)),
        np.fromiter((one.topic_id for one in keyed), "<i8", len(keyed)).tobytes(),
        np.fromiter(map(len, tables), "<u4", len(keyed)).tobytes(),
        *tables,
    ]


def _decode_keyed(view: memoryview) -> list[Keyed]:
    count = _COUNT.unpack_from(view)[0] if len(view) >= _COUNT.size else 0
    at = _COUNT.size + 12 * count
    if not count or len(view) < at:
        raise LogDamaged("a journal entry ends inside its dedup keys")
    topics = np.frombuffer(view, "<i8", count, _COUNT.size).tolist()
    lengths = np.frombuffer(view, "<u4", count, _COUNT.size + 8 * count).tolist()
    if len(view) - at != sum(lengths):
        raise LogDamaged("a journal entry's dedup keys are not as long as it says")
    keyed = []
    for topic_id, length in zip(topics, lengths, strict=True):
        keyed.append(Keyed(topic_id, decode_keys(view[at : at + length])))
        at += length
    return keyed


def _encode_grouped(grouped: Sequence[Grouped]) -> list[bytes]:
    names = [one.group.encode() for one in grouped]
    offsets = [encode_offsets(one.offsets) for one in grouped]
    return [
        _COUNT.pack(len(grouped)),
        np.fromiter((one.topic_id for one in grouped), "<i8", len(grouped)).tobytes(),
        np.fromiter(map(len, names), "<u4", len(grouped)).tobytes(),
        np.fromiter(map(len, offsets), "<u4", len(grouped)).tobytes(),
        *names,
        *offsets,
    ]


def _decode_grouped(view: memoryview) -> list[Grouped]:
    count = _COUNT.unpack_from(view)[0] if len(view) >= _COUNT.size else 0
    at = _COUNT.size + 16 * count
    if not count or len(view) < at:
        raise LogDamaged("a journal entry ends inside its groups")
    topics = np.frombuffer(view, "<i8", count, _COUNT.size).tolist()
    lengths = np.frombuffer(view, "<u4", 2 * count, _COUNT.size + 8 * count).tolist()
    if len(view) - at != sum(lengths):
        raise LogDamaged("a journal entry's groups are not as long as it says")
    pieces = []
    for length in lengths:
        pieces.append(view[at : at + length])
        at += length
    return [
        Grouped(topic_id, bytes(name).decode(), _offsets(offsets))
        for topic_id, name, offsets in zip(topics, pieces[:count], pieces[count:], strict=True)
    ]


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
