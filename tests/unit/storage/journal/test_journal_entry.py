"""The encoding of journal entries, and the detection of damage."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.dedup import DIGEST
from escapement.errors import LogDamaged
from escapement.storage.encoding.dedup_keys import Keyed, KeyTable
from escapement.storage.encoding.lag import Lag, Tally
from escapement.storage.encoding.replace_keys import Replaceable, ReplaceTable
from escapement.storage.encoding.seal import SEAL_BYTES, sealed
from escapement.storage.journal.entry import (
    Acked,
    AttemptColumns,
    Grouped,
    JournalEntry,
    ProducerMark,
    decode_entry,
    encode_entry,
)
from escapement.storage.log.log_table import RowKey
from support.faults.damaged_bytes import damaged

ids = st.integers(0, 2**62)
offsets = st.lists(st.integers(0, 2**40), min_size=1, max_size=20)


names = st.sampled_from(["g", "import-7", "x" * 200])
# A group without offsets is forgotten.
groups = st.sets(st.integers(0, 2**40), max_size=20).map(
    lambda found: np.array(sorted(found), np.int64)
)


tallies = st.dictionaries(st.integers(0, 5000), st.integers(1, 2**40), min_size=1).map(Tally.of)


def key_columns(draw: st.DrawFn, numbers: int) -> list[np.ndarray]:
    """Return a column of digests, and as many columns of numbers."""
    count = draw(st.integers(1, 3))
    found = draw(st.binary(min_size=16 * count, max_size=16 * count))
    lists = [draw(st.lists(ids, min_size=count, max_size=count)) for _ in range(numbers)]
    return [np.frombuffer(found, DIGEST), *map(np.array, lists)]


@st.composite
def key_tables(draw: st.DrawFn) -> KeyTable:
    return KeyTable(*key_columns(draw, 2))


@st.composite
def replace_tables(draw: st.DrawFn) -> ReplaceTable:
    return ReplaceTable(*key_columns(draw, 4))


@st.composite
def entries(draw: st.DrawFn) -> JournalEntry:
    count = draw(st.integers(0, 5))
    columns = [
        np.array(draw(st.lists(ids, min_size=count, max_size=count)), np.int64) for _ in range(5)
    ]
    return JournalEntry(
        draw(st.lists(st.builds(RowKey, ids, ids, ids, ids, ids), max_size=4)),
        [
            Acked(id, np.array(values, np.int64))
            for id, values in draw(st.lists(st.tuples(ids, offsets), max_size=4))
        ],
        AttemptColumns(*columns) if count else None,
        draw(st.lists(st.builds(ProducerMark, ids, ids, ids), max_size=4)),
        draw(st.lists(st.builds(Keyed, ids, key_tables()), max_size=2)),
        draw(st.lists(st.builds(Grouped, ids, names, groups), max_size=3)),
        draw(st.lists(st.builds(Lag, ids, ids, tallies), max_size=3)),
        draw(st.lists(st.builds(Replaceable, ids, replace_tables()), max_size=2)),
    )


def plain(entry: JournalEntry) -> object:
    attempts = entry.attempts
    return (
        list(entry.rows),
        [(acked.subscription_id, sorted(set(acked.offsets.tolist()))) for acked in entry.acks],
        None
        if attempts is None
        else [
            attempts.subscription_id.tolist(),
            attempts.offset.tolist(),
            attempts.attempt.tolist(),
            attempts.next_ms.tolist(),
            attempts.due_ms.tolist(),
        ],
        list(entry.producers),
        [(one.topic_id, [column.tolist() for column in one.keys]) for one in entry.keyed],
        [(one.topic_id, [column.tolist() for column in one.keys]) for one in entry.replaceable],
        [(one.topic_id, one.group, one.offsets.tolist()) for one in entry.grouped],
        [
            (one.origin_id, one.hour_ms, one.tally.cells.tolist(), one.tally.counts.tolist())
            for one in entry.lags
        ],
    )


@settings(max_examples=80)
@given(entries())
def test_journal_entry_decodes_to_the_same_entry(entry: JournalEntry) -> None:
    assert plain(decode_entry(encode_entry(entry))) == plain(entry)


@settings(max_examples=80)
@given(entries(), st.data())
def test_any_changed_or_missing_byte_is_noticed(entry: JournalEntry, data: st.DataObject) -> None:
    written = encode_entry(entry)
    with pytest.raises(LogDamaged):
        decode_entry(data.draw(damaged(written)))


@settings(max_examples=80)
@given(st.binary(max_size=80))
def test_garbage_raises_only_log_damaged(garbage: bytes) -> None:
    with pytest.raises(LogDamaged):
        decode_entry(garbage)


def test_consecutive_acknowledged_offsets_take_few_bytes() -> None:
    entry = JournalEntry(acks=[Acked(1, np.arange(1_000_000, dtype=np.int64))])
    assert len(encode_entry(entry)) < 100


def some_attempts(count: int) -> AttemptColumns:
    """Return the attempts of a burst that one consumer holds."""
    offsets = np.arange(7_000_000, 7_000_000 + count)
    due_ms = 1_700_000_000_000 + np.arange(count) // 100
    same = np.ones(count, np.int64)
    return AttemptColumns(12 * same, offsets, same, due_ms, due_ms)


def test_attempts_of_a_burst_take_few_bytes() -> None:
    entry = JournalEntry(attempts=some_attempts(10_000))
    assert len(encode_entry(entry)) < 7 * 10_000


def resealed(entry: bytes, at: int, part: bytes) -> bytes:
    """Replace bytes of an entry, and compute its checksum again."""
    head = struct.calcsize("<BxxxIIIIIII")
    changed = entry[:at] + part + entry[at + len(part) :]
    return sealed(changed[:head], [changed[head + SEAL_BYTES :]])


def test_group_whose_name_is_not_text_counts_as_damage() -> None:
    entry = encode_entry(JournalEntry(grouped=[Grouped(1, "abc", np.array([1]))]))
    with pytest.raises(LogDamaged, match="name is not text"):
        decode_entry(resealed(entry, entry.index(b"abc"), b"\xff"))


def test_entry_with_an_impossible_number_of_attempts_counts_as_damage() -> None:
    """It is noticed before memory is allocated for them."""
    entry = encode_entry(JournalEntry(attempts=some_attempts(1)))
    at = struct.calcsize("<BxxxIIIIIII") + SEAL_BYTES
    with pytest.raises(LogDamaged, match="4294967295 attempts"):
        decode_entry(resealed(entry, at, b"\xff" * 4))
