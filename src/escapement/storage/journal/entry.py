"""A journal entry as bytes: what one group commit did, except the data of its log rows.

An entry consists of columns: the keys of the rows written to the log, the offsets that
subscriptions acknowledged, the attempts of messages, the progress of each producer, the dedup keys
of new messages, the event groups of new messages, the *lag* of the acknowledgements (how late
they were, storage/encoding/lag.py), and the replace keys of new messages. Cancelled and *lapsed*
offsets are stored among the acknowledged ones, under other ids (:func:`cancellations_id`,
:func:`lapses_id`). Layout, little-endian::

    version u8 | 0 u8 x3 | rows u32 | acks u32 | producers u32
    keys size u32 | groups size u32 | lags size u32 | attempts size u32 |
    version 2: replace keys size u32 | crc32 u32
    rows        5 columns of i64: generation, topic, base offset, messages, size_bytes
    acks        2 columns: subscription i64, length u32
    producers   3 columns of i64: producer, last sequence, last offset
    offsets     of each ack, end to end (storage/offsets/offset_column.py)
    keys        topics u32, then 2 columns: topic i64, length u32, then
                the tables of each, end to end (storage/encoding/dedup_keys.py)
    groups      count u32, then 3 columns: topic i64, length of the name u32,
                size u32; then the names, then the offsets of each (as above), end to end
    lags        count u32, then 3 columns: origin i64, hour i64, length u32;
                then the tally of each (storage/encoding/lag.py), end to end
    attempts    count u32, then 5 columns: subscription, offset, attempt, next_ms, due_ms,
                end to end (storage/encoding/narrow_column.py)
    replace keys  as keys (storage/encoding/replace_keys.py)

An entry has version 2 if it has replace keys, else version 1, which older programs know too.
The last five parts are optional: an entry that has nothing of a kind has 0 bytes of it.
The checksum covers everything but itself. No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s
from escapement.storage.encoding.dedup_keys import Keyed, decode_keys, encode_keys
from escapement.storage.encoding.lag import Lag, decode_tally, encode_tally
from escapement.storage.encoding.narrow_column import decode_narrow, encode_narrow
from escapement.storage.encoding.replace_keys import (
    Replaceable,
    decode_replace_keys,
    encode_replace_keys,
)
from escapement.storage.encoding.seal import SEAL_BYTES, sealed, unsealed
from escapement.storage.log.log_table import RowKey
from escapement.storage.offsets.offset_column import decode_offsets, encode_offsets

# The heads of the versions. Version 2 has one more size, that of the replace keys.
_HEADS: Final = {1: struct.Struct("<BxxxIIIIIII"), 2: struct.Struct("<BxxxIIIIIIII")}
_ATTEMPT_COLUMNS: Final = 5
# An entry has far fewer attempts. The decoder checks this before it allocates memory.
_MOST_ATTEMPTS: Final = 1 << 24
_COUNT: Final = struct.Struct("<I")

# The bit that marks the id for a subscription's lapsed offsets. Subscription ids are lower.
_LAPSED: Final = 1 << 62

Table = npt.NDArray[np.int64]


def cancellations_id(topic_id: int) -> int:
    """Return the id under which the offsets of a topic's cancelled messages are stored.

    It takes the place of a subscription's id.
    """
    return -topic_id


def lapses_id(subscription_id: int) -> int:
    """Return the id under which the lapsed offsets of a subscription are stored.

    *Lapsed* messages expired or were dropped before any delivery. The function is its own inverse:
    it returns the subscription's id for the id of its lapsed offsets.
    """
    return subscription_id ^ _LAPSED


class Acked(NamedTuple):
    """Offsets that a subscription acknowledged. They ascend if they come from :func:`decode_entry`.

    Instead of a subscription's id, ``subscription_id`` may be that of a topic's cancelled offsets
    or of a subscription's lapsed offsets.
    """

    subscription_id: int
    offsets: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class AttemptColumns:
    """Messages that were delivered and not acknowledged, as five int64 columns of equal length.

    ``attempt`` is the number of deliveries with flags, and ``next_ms`` is the time of the next one.
    """

    subscription_id: Int64s
    offset: Int64s
    attempt: Int64s
    next_ms: Int64s
    due_ms: Int64s

    def __len__(self) -> int:
        return len(self.offset)


class ProducerMark(NamedTuple):
    """The progress of a named producer: the sequence and the offset of its last message."""

    producer_id: int
    last_sequence: int
    last_offset: int


class Grouped(NamedTuple):
    """New messages of an event group of a topic. Without offsets: the event group was deleted.

    The deletion takes effect after the rest of the journal entry.
    """

    topic_id: int
    group: str
    offsets: Int64s  # ascending


@dataclass(frozen=True, slots=True, eq=False)
class JournalEntry:
    """The effects of one group commit: the decoded content of one journal row."""

    rows: Sequence[RowKey] = ()
    acks: Sequence[Acked] = ()
    attempts: AttemptColumns | None = None
    producers: Sequence[ProducerMark] = ()
    keyed: Sequence[Keyed] = ()
    grouped: Sequence[Grouped] = ()
    lags: Sequence[Lag] = ()
    replaceable: Sequence[Replaceable] = ()


def encode_entry(entry: JournalEntry) -> bytes:
    """Return a journal entry as bytes."""
    offsets = [encode_offsets(acked.offsets) for acked in entry.acks]
    parts = [
        _columns(entry.rows, 5),
        np.fromiter((a.subscription_id for a in entry.acks), "<i8", len(entry.acks)).tobytes(),
        np.fromiter(map(len, offsets), "<u4", len(offsets)).tobytes(),
        _columns(entry.producers, 3),
        *offsets,
    ]
    keyed, grouped, lags = entry.keyed, entry.grouped, entry.lags
    optional = [
        _joined([one.topic_id for one in keyed], pieces=[[encode_keys(one.keys) for one in keyed]]),
        _joined(
            [one.topic_id for one in grouped],
            pieces=[
                [one.group.encode() for one in grouped],
                [encode_offsets(one.offsets) for one in grouped],
            ],
        ),
        _joined(
            [lag.origin_id for lag in lags],
            [lag.hour_ms for lag in lags],
            pieces=[[encode_tally(lag.tally) for lag in lags]],
        ),
        _encode_attempts(entry.attempts) if entry.attempts is not None else [],
    ]
    version = 1
    if entry.replaceable:
        version = 2
        tables = [encode_replace_keys(one.keys) for one in entry.replaceable]
        optional.append(_joined([one.topic_id for one in entry.replaceable], pieces=[tables]))
    head = _HEADS[version].pack(
        version,
        len(entry.rows),
        len(entry.acks),
        len(entry.producers),
        *(sum(map(len, part)) for part in optional),
    )
    parts += chain.from_iterable(optional)
    return sealed(head, parts)


def decode_entry(data: Buffer) -> JournalEntry:
    """Return the journal entry that :func:`encode_entry` has encoded, after verifying its checksum.

    Raises:
      LogDamaged: if ``encode_entry`` did not produce these bytes.
    """
    version = data[0] if len(data) else 1
    known = _HEADS.get(version)
    if known is None:
        raise LogDamaged(f"a journal entry has the unknown version {version}")
    start = known.size + SEAL_BYTES
    view = unsealed(data, known.size, start, "a journal entry")
    _, rows, acks, producers, *sizes = known.unpack_from(view)
    if len(view) - start < 40 * rows + 12 * acks + 24 * producers:
        raise LogDamaged("a journal entry ends inside its columns")
    at = start
    row_table, at = _table(view, at, 5, rows)
    subscriptions, at = _table(view, at, 1, acks)
    lengths = np.frombuffer(view, "<u4", acks, at).tolist()
    at += 4 * acks
    producer_table, at = _table(view, at, 3, producers)
    if len(view) - at != sum(lengths) + sum(sizes):
        raise LogDamaged("a journal entry has the wrong length")
    acked = []
    for subscription_id, length in zip(subscriptions[0].tolist(), lengths, strict=True):
        acked.append(Acked(subscription_id, decode_offsets(view[at : at + length])))
        at += length
    optional: list[memoryview | None] = []
    for size in sizes:
        optional.append(view[at : at + size] if size else None)
        at += size
    keys, groups, lags, attempts, *newer = optional
    return JournalEntry(
        [RowKey(*row) for row in row_table.T.tolist()],
        acked,
        _decode_attempts(attempts),
        [ProducerMark(*row) for row in producer_table.T.tolist()],
        _decode_keyed(keys),
        _decode_grouped(groups),
        _decode_lags(lags),
        _decode_replaceable(newer[0]) if newer else [],
    )


def _decode_keyed(view: memoryview | None) -> list[Keyed]:
    (topics,), (keys,) = _split(view, 1, 1, "dedup keys")
    return [Keyed(topic_id, decode_keys(one)) for topic_id, one in zip(topics, keys, strict=True)]


def _decode_replaceable(view: memoryview | None) -> list[Replaceable]:
    (topics,), (tables,) = _split(view, 1, 1, "replace keys")
    return [
        Replaceable(topic_id, decode_replace_keys(one))
        for topic_id, one in zip(topics, tables, strict=True)
    ]


def _decode_grouped(view: memoryview | None) -> list[Grouped]:
    (topics,), (names, offsets) = _split(view, 1, 2, "groups")
    try:
        texts = [bytes(name).decode() for name in names]
    except UnicodeDecodeError as error:
        raise LogDamaged(f"a journal entry has a group whose name is not text: {error}") from error
    return [
        Grouped(topic_id, name, decode_offsets(one))
        for topic_id, name, one in zip(topics, texts, offsets, strict=True)
    ]


def _decode_lags(view: memoryview | None) -> list[Lag]:
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
    assert len(attempts) <= _MOST_ATTEMPTS, len(attempts)
    return [_COUNT.pack(len(attempts)), *map(encode_narrow, columns)]


def _decode_attempts(view: memoryview | None) -> AttemptColumns | None:
    if view is None:
        return None
    count = _COUNT.unpack_from(view)[0] if len(view) >= _COUNT.size else 0
    if not 0 < count <= _MOST_ATTEMPTS:
        raise LogDamaged(f"a journal entry has {count} attempts")
    columns = []
    rest = view[_COUNT.size :]
    try:
        for _ in range(_ATTEMPT_COLUMNS):
            column, rest = decode_narrow(rest, count)
            columns.append(column)
    except ValueError as error:
        raise LogDamaged(f"a journal entry's attempts do not decode: {error}") from error
    if len(rest):
        raise LogDamaged("a journal entry's attempts have the wrong length")
    return AttemptColumns(*columns)


def _joined(*numbers: Sequence[int], pieces: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Encode an optional part of an entry: columns of integers, then columns of byte strings.

    :func:`_split` decodes it. If the columns are empty, the result is empty.

    Args:
      numbers: the columns of integers.
      pieces: the columns of byte strings.
    """
    count = len(numbers[0])
    if not count:
        return []
    lengths = [np.fromiter(map(len, column), "<u4", count).tobytes() for column in pieces]
    columns = [np.array(column, "<i8").tobytes() for column in numbers]
    return [_COUNT.pack(count), *columns, *lengths, *chain.from_iterable(pieces)]


def _split(
    view: memoryview | None, numbers: int, pieces: int, what: str
) -> tuple[list[list[int]], list[list[memoryview]]]:
    """Decode an optional part of an entry into columns of integers and columns of byte strings.

    The part consists of the count of elements in each column (u32), the columns of integers (i64),
    the lengths of all byte strings (u32), and the byte strings.

    Args:
      view: the part. If it is None, the columns are empty.
      numbers: how many columns of integers the part has.
      pieces: how many columns of byte strings the part has.
      what: the name of the part, for error messages.

    Raises:
      LogDamaged: if the part has the wrong length, or its count is 0.
    """
    if view is None:
        return [[]] * numbers, [[]] * pieces
    count = _COUNT.unpack_from(view)[0] if len(view) >= _COUNT.size else 0
    lengths_at = _COUNT.size + 8 * numbers * count
    at = lengths_at + 4 * pieces * count
    if not count or len(view) < at:
        raise LogDamaged(f"a journal entry ends inside its {what}")
    columns = np.frombuffer(view, "<i8", numbers * count, _COUNT.size).reshape(numbers, count)
    lengths = np.frombuffer(view, "<u4", pieces * count, lengths_at).tolist()
    if len(view) - at != sum(lengths):
        raise LogDamaged(f"a journal entry's {what} have the wrong length")
    found = []
    for length in lengths:
        found.append(view[at : at + length])
        at += length
    return columns.tolist(), [found[n * count : (n + 1) * count] for n in range(pieces)]


def _columns(records: Sequence[tuple[int, ...]], width: int) -> bytes:
    """Return the bytes of records of ``width`` integers, as columns of i64, end to end."""
    if not records:
        return b""
    numbers = np.fromiter(chain.from_iterable(records), "<i8", width * len(records))
    return numbers.reshape(-1, width).T.tobytes()


def _table(view: memoryview, at: int, columns: int, rows: int) -> tuple[Table, int]:
    table = np.frombuffer(view, "<i8", columns * rows, at).reshape(columns, rows)
    return table.astype(np.int64, copy=False), at + 8 * columns * rows
