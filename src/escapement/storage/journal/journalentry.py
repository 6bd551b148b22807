"""What one group commit did besides its log rows' data, as bytes.

Columns throughout: the rows it wrote to the log, the offsets that subscriptions
acknowledged, the attempts counted, how far each producer has come, which dedup keys its
messages had, which groups they belong to, and what the acknowledgements add to the lag. Layout,
little-endian::

    version u8 | 0 u8 x3 | rows u32 | acks u32 | attempts u32 | producers u32 | crc32 u32
    rows        5 columns of i64: generation, topic, base offset, messages, size_bytes
    acks        2 columns: subscription i64, length u32
    attempts    up to version 4, 5 columns of i64: subscription, offset, attempt, next_ms, due_ms
    producers   3 columns of i64: producer, last sequence, last offset
    offsets     of each ack, end to end (storage/offsets/offsetcolumn.py)
    size        from version 3 on: of the keys that follow, u32; 0: there are none
    size        from version 4 on: of the groups that follow the keys, u32; 0: there are none
    size        version 5 only: of the lags that follow the groups, u32; 0: there are none
    keys        from version 2 on: topics u32, then 2 columns: topic i64, length u32, then
                the tables of each, end to end (storage/dedupkeys.py)
    groups      from version 3 on: count u32, then 3 columns: topic i64, length of the name u32,
                size u32; then the names, then the offsets of each (as above), end to end
    lags        from version 4 on: count u32, then 3 columns: origin i64, hour i64, length u32;
                then the tally of each (storage/lag.py), end to end
    attempts    version 5 only, where the head says none: count u32, then the 5 columns, end to
                end (storage/narrowcolumn.py)

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
from escapement.storage.lag import Lag, decode_tally, encode_tally
from escapement.storage.log.logtable import RowKey
from escapement.storage.narrowcolumn import decode_narrow, encode_narrow
from escapement.storage.offsets.offsetcolumn import decode_offsets, encode_offsets
from escapement.storage.seal import SEAL_BYTES, is_whole, sealed

# The first; the others have one part more each: dedup keys, groups, lags, attempts. An entry has
# the version of the last part that it needs.
_VERSION: Final = 1
_KEYED: Final = 2
_TRIED: Final = 5
_ATTEMPT_COLUMNS: Final = 5
_HEAD: Final = struct.Struct("<BxxxIIII")
_START: Final = _HEAD.size + SEAL_BYTES
_COUNT: Final = struct.Struct("<I")

# No subscription has so high an id.
_LAPSED: Final = 1 << 62

Table = npt.NDArray[np.int64]


def cancellations_id(topic_id: int) -> int:
    """Under which id the cancelled messages of a topic stand where acknowledgements stand."""
    return -topic_id


def lapses_id(subscription_id: int) -> int:
    """Under which id those stand of which nobody was handed any; its own inverse."""
    return subscription_id ^ _LAPSED


class Acked(NamedTuple):
    """Offsets that a subscription acknowledged; sorted when read back.

    The id may be that of a topic's cancellations, which is negative, or of a subscription's lapses.
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
    lags: Sequence[Lag] = ()


def encode_entry(entry: JournalEntry) -> bytes:
    """The bytes of one entry."""
    offsets = [encode_offsets(acked.offsets) for acked in entry.acks]
    parts = [
        _columns(entry.rows, 5),
        np.fromiter((a.subscription_id for a in entry.acks), "<i8", len(entry.acks)).tobytes(),
        np.fromiter(map(len, offsets), "<u4", len(offsets)).tobytes(),
        _columns(entry.producers, 3),
        *offsets,
    ]
    keys = _encode_keyed(entry.keyed) if entry.keyed else []
    groups = _encode_grouped(entry.grouped) if entry.grouped else []
    lags = _encode_lags(entry.lags) if entry.lags else []
    attempts = _encode_attempts(entry.attempts) if entry.attempts is not None else []
    # The last that there is gives the version; of those before it the size is said.
    tail = [keys, groups, lags, attempts]
    count = max((number for number, part in enumerate(tail, 1) if part), default=0)
    for part in tail[: max(0, count - 1)]:
        parts.append(_COUNT.pack(sum(map(len, part))))
    for part in tail:
        parts += part
    head = _HEAD.pack(_VERSION + count, len(entry.rows), len(entry.acks), 0, len(entry.producers))
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
    if not _VERSION <= version <= _TRIED:
        raise LogDamaged(f"a journal entry has the unknown version {version}")
    if len(view) - _START < 40 * rows + 12 * acks + 40 * attempts + 24 * producers or (
        attempts and version == _TRIED
    ):
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
    keys, groups, lags, tried = _parts(view[at:], version)
    return JournalEntry(
        [RowKey(*row) for row in row_table.T.tolist()],
        acked,
        AttemptColumns(*attempt_table) if attempts else _decode_attempts(tried),
        [ProducerMark(*row) for row in producer_table.T.tolist()],
        _decode_keyed(keys) if keys is not None else [],
        _decode_grouped(groups) if groups is not None else [],
        _decode_lags(lags) if lags is not None else [],
    )


def _parts(view: memoryview, version: int) -> list[memoryview | None]:
    """Where the dedup keys are said, the groups, the lags, the attempts; None: nothing is."""
    sizes = []
    at = _COUNT.size * max(0, version - _KEYED)
    if len(view) < at:
        raise LogDamaged("a journal entry ends before its dedup keys")
    for number in range(version - _KEYED):
        sizes.append(_COUNT.unpack_from(view, _COUNT.size * number)[0])
    if at + sum(sizes) > len(view):
        raise LogDamaged("a journal entry ends inside its dedup keys, groups or lags")
    found: list[memoryview | None] = []
    for size in sizes:
        found.append(view[at : at + size] if size else None)
        at += size
    if version > _VERSION:
        found.append(view[at:])
    return found + [None] * (4 - len(found))


def _encode_keyed(keyed: Sequence[Keyed]) -> list[bytes]:
    tables = [encode_keys(one.keys) for one in keyed]
    return [
        _COUNT.pack(len(keyed)),
        np.fromiter((one.topic_id for one in keyed), "<i8", len(keyed)).tobytes(),
        np.fromiter(map(len, tables), "<u4", len(keyed)).tobytes(),
        *tables,
    ]


def _decode_keyed(view: memoryview) -> list[Keyed]:
    (topics,), (keys,) = _split(view, 1, 1, "dedup keys")
    return [Keyed(topic_id, decode_keys(one)) for topic_id, one in zip(topics, keys, strict=True)]


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
    (topics,), (names, offsets) = _split(view, 1, 2, "groups")
    return [
        Grouped(topic_id, bytes(name).decode(), _offsets(one))
        for topic_id, name, one in zip(topics, names, offsets, strict=True)
    ]


def _encode_lags(lags: Sequence[Lag]) -> list[bytes]:
    tallies = [encode_tally(lag.tally) for lag in lags]
    return [
        _COUNT.pack(len(lags)),
        np.fromiter((lag.origin_id for lag in lags), "<i8", len(lags)).tobytes(),
        np.fromiter((lag.hour_ms for lag in lags), "<i8", len(lags)).tobytes(),
        np.fromiter(map(len, tallies), "<u4", len(lags)).tobytes(),
        *tallies,
    ]


def _decode_lags(view: memoryview) -> list[Lag]:
    (origins, hours), (tallies,) = _split(view, 2, 1, "lags")
    return [
        Lag(origin_id, hour_ms, decode_tally(one))
        for origin_id, hour_ms, one in zip(origins, hours, tallies, strict=True)
    ]


def _encode_attempts(attempts: AttemptColumns) -> list[bytes]:
    columns = (
        attempts.subscription_id,
        attempts.offset,
        attempts.attempt,
        attempts.next_ms,
        attempts.due_ms,
    )
    assert len({len(column) for column in columns}) == 1, "columns of unequal height"
    return [_COUNT.pack(len(attempts)), *map(encode_narrow, columns)]


def _decode_attempts(view: memoryview | None) -> AttemptColumns | None:
    if view is None:
        return None
    count = _COUNT.unpack_from(view)[0] if len(view) >= _COUNT.size else 0
    if not count:
        raise LogDamaged("a journal entry ends before its attempts")
    columns = []
    rest = view[_COUNT.size :]
    try:
        for _ in range(_ATTEMPT_COLUMNS):
            column, rest = decode_narrow(rest, count)
            columns.append(column)
    except ValueError as error:
        raise LogDamaged(f"a journal entry's attempts do not decode: {error}") from error
    if len(rest):
        raise LogDamaged("a journal entry's attempts are not as long as it says")
    return AttemptColumns(*columns)


def _split(
    view: memoryview, numbers: int, pieces: int, what: str
) -> tuple[list[list[int]], list[list[memoryview]]]:
    """A part of an entry that has a count, so many columns of i64, and then pieces of bytes.

    Args:
      pieces: columns of them; their lengths, u32, come before them all.

    Raises:
      LogDamaged: if it is not as long as it says, or has none.
    """
    count = _COUNT.unpack_from(view)[0] if len(view) >= _COUNT.size else 0
    lengths_at = _COUNT.size + 8 * numbers * count
    at = lengths_at + 4 * pieces * count
    if not count or len(view) < at:
        raise LogDamaged(f"a journal entry ends inside its {what}")
    columns = np.frombuffer(view, "<i8", numbers * count, _COUNT.size).reshape(numbers, count)
    lengths = np.frombuffer(view, "<u4", pieces * count, lengths_at).tolist()
    if len(view) - at != sum(lengths):
        raise LogDamaged(f"a journal entry's {what} are not as long as it says")
    found = []
    for length in lengths:
        found.append(view[at : at + length])
        at += length
    return columns.tolist(), [found[n * count : (n + 1) * count] for n in range(pieces)]


def _columns(records: Sequence[tuple[int, ...]], width: int) -> bytes:
    """Records as columns of i64, one after the other."""
    if not records:
        return b""
    return np.array(records, "<i8").reshape(-1, width).T.tobytes()


def _table(view: memoryview, at: int, columns: int, rows: int) -> tuple[Table, int]:
    table = np.frombuffer(view, "<i8", columns * rows, at).reshape(columns, rows)
    return table.astype(np.int64, copy=False), at + 8 * columns * rows


def _offsets(view: memoryview) -> Int64s:
    try:
        return decode_offsets(view)
    except StorageError as error:
        raise LogDamaged(f"a journal entry's offsets do not decode: {error}") from error
