"""Sets of offsets, compared with an array of booleans."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from escapement.errors import LogDamaged
from escapement.message import Int64s
from escapement.storage.offsets import CHUNK_SIZE, FULL_CHUNKS, OffsetSet
from escapement.storage.offsets.offset_column import decode_offsets, encode_offsets
from support.faults.damaged_bytes import damaged

CHUNKS = 4
END = CHUNKS * CHUNK_SIZE
# Offsets around the borders of chunks, where mistakes are likely.
points = st.builds(
    lambda chunk, shift: min(max(chunk * CHUNK_SIZE + shift, 0), END - 1),
    st.integers(0, CHUNKS),
    st.one_of(st.just(0), st.integers(-5, 5), st.integers(0, CHUNK_SIZE)),
)
scattered = st.lists(points, max_size=12)
neighbours = st.builds(
    lambda first, n: list(range(first, min(first + n, END))), points, st.integers(0, 40)
)
columns = st.one_of(scattered, neighbours).map(lambda values: np.array(values, np.int64))
ranges = st.tuples(points, points | st.just(END)).map(sorted)


class OffsetSetMachine(RuleBasedStateMachine):
    """Every operation of a set, repeated on an array of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.set = OffsetSet()
        self.model = np.zeros(END, np.bool_)
        self.rows: dict[int, bytes] = {}

    @rule(offsets=columns)
    def add(self, offsets: Int64s) -> None:
        before = self.model.sum()
        self.model[offsets] = True
        assert self.set.add(offsets) == self.model.sum() - before

    @rule(offsets=columns)
    def discard(self, offsets: Int64s) -> None:
        before = self.model.sum()
        self.model[offsets] = False
        assert self.set.discard(offsets) == before - self.model.sum()

    @rule(span=ranges)
    def add_range(self, span: list[int]) -> None:
        before = self.model.sum()
        self.model[span[0] : span[1]] = True
        assert self.set.add_range(*span) == self.model.sum() - before

    @rule(span=ranges)
    def discard_range(self, span: list[int]) -> None:
        before = self.model.sum()
        self.model[span[0] : span[1]] = False
        assert self.set.discard_range(*span) == before - self.model.sum()

    @rule(offsets=columns, span=ranges, union=st.booleans())
    def combine_with_another_set(self, offsets: Int64s, span: list[int], union: bool) -> None:
        other = OffsetSet()
        other.add(offsets)
        other.add_range(*span)
        before = self.model.sum()
        for rows in (offsets, slice(*span)):
            self.model[rows] = union
        if union:
            assert self.set.union_update(other) == self.model.sum() - before
        else:
            assert self.set.difference_update(other) == before - self.model.sum()

    @rule(offsets=columns, taken=columns)
    def add_new_offsets_to_several_sets(self, offsets: Int64s, taken: Int64s) -> None:
        other = OffsetSet()
        other.add(taken)
        new = self.set.new_of(offsets)
        expected = np.unique(offsets[~self.model[offsets]])
        assert self.set.add(new) == len(new) == len(expected)
        self.model[offsets] = True
        assert other.discard(new) == len(np.intersect1d(expected, taken))
        assert other.add(new) == len(expected)
        assert not len(self.set.new_of(new))
        assert new.offsets.tolist() == expected.tolist()
        other._check()

    @rule(offsets=columns)
    def check_membership(self, offsets: Int64s) -> None:
        inside = self.model[offsets]
        assert self.set.contains(offsets).tolist() == inside.tolist()
        assert self.set.intersects(offsets) == inside.any()
        assert self.set.new_of(offsets).offsets.tolist() == np.unique(offsets[~inside]).tolist()
        assert [offset in self.set for offset in offsets.tolist()] == inside.tolist()

    @rule(span=ranges, limit=st.integers(0, 50))
    def look_for_holes(self, span: list[int], limit: int) -> None:
        low, high = span
        holes = np.flatnonzero(~self.model[low:high]) + low
        assert self.set.missing(low, high, limit).tolist() == holes[:limit].tolist()
        assert np.array_equal(self.set.missing(low, high), holes)
        first = self.set.first_missing(low)
        assert first == (holes[0] if len(holes) else max(first, high))
        assert first not in self.set

    @rule(span=ranges)
    def read(self, span: list[int]) -> None:
        low, high = span
        expected = np.flatnonzero(self.model[low:high]) + low
        assert np.array_equal(self.set.to_array(low, high), expected)
        assert self.set.count_below(high) - self.set.count_below(low) == len(expected)

    @rule(written=st.booleans())
    def checkpoint(self, written: bool) -> None:
        rows = self.set.dirty_chunks()
        if not written:
            return
        for chunk_no, row in rows.items():
            self.rows.pop(chunk_no, None)
            if row:
                self.rows[chunk_no] = row
        self.set.mark_clean()
        assert not self.set.dirty_chunks()
        again = load(list(self.rows.items()))
        again._check()
        assert not again.dirty_chunks()
        assert np.array_equal(again.to_array(0, END), np.flatnonzero(self.model))

    @rule()
    def continue_with_a_copy(self) -> None:
        twin = self.set.copy()
        self.set.add_range(0, END)
        self.set = twin
        self.rows.clear()

    @invariant()
    def it_is_sound(self) -> None:
        self.set._check()
        assert len(self.set) == np.count_nonzero(self.model)


TestOffsetSet = OffsetSetMachine.TestCase
TestOffsetSet.settings = settings(max_examples=40, stateful_step_count=25)


@pytest.mark.parametrize("count", [100, 5_000])
def test_offsets_in_any_order_are_found_like_single_offsets(count: int) -> None:
    random = np.random.default_rng(count)
    members = random.choice(2 * CHUNK_SIZE, 100_000, replace=False).astype(np.int64)
    asked = random.integers(0, 2 * CHUNK_SIZE, count)
    offsets = OffsetSet()
    offsets.add(members)
    expected = np.array([one in offsets for one in asked.tolist()])
    assert 0 < expected.sum() < count
    assert offsets.contains(asked).tolist() == expected.tolist()
    assert offsets.new_of(asked).offsets.tolist() == sorted(set(asked[~expected].tolist()))
    assert offsets.intersects(asked)
    assert not offsets.intersects(asked[~expected])
    assert offsets.discard(asked) == len(set(asked[expected].tolist()))


def test_ten_billion_acknowledged_offsets_with_one_hole_are_one_chunk() -> None:
    acked = OffsetSet()
    acked.add_range(0, 10**10)
    acked.discard_one(5)
    assert len(acked) == 10**10 - 1
    assert acked.first_missing(0) == 5
    assert acked.first_missing(6) == 10**10
    assert acked.missing(0, 10**10).tolist() == [5]
    rows = acked.dirty_chunks()
    assert sum(map(len, rows.values())) < 500
    assert set(rows) == {FULL_CHUNKS, 0, 10**10 // CHUNK_SIZE}


def test_cost_of_changing_a_range_depends_on_chunks_in_memory() -> None:
    acked = OffsetSet()
    acked.add_range(0, 10**10)
    assert acked.discard_range(17, 10**10) == 10**10 - 17
    assert acked.add_range(0, 10**10) == 10**10 - 17
    assert acked.discard_range(0, 10**10) == 10**10
    assert not len(acked)


def test_chunk_changed_while_rows_are_written_stays_dirty() -> None:
    acked = OffsetSet()
    acked.add_one(1)
    assert list(acked.dirty_chunks()) == [0]
    acked.add_one(CHUNK_SIZE)
    acked.mark_clean()
    assert list(acked.dirty_chunks()) == [1]
    assert list(acked.dirty_chunks()) == [1], "unconfirmed rows are returned again"


def test_row_of_a_chunk_that_becomes_full_is_deleted() -> None:
    acked = OffsetSet()
    acked.add_range(0, CHUNK_SIZE - 1)
    acked.dirty_chunks()
    acked.mark_clean()
    assert acked.add_one(CHUNK_SIZE - 1)
    rows = acked.dirty_chunks()
    assert rows[0] == b""
    assert rows[FULL_CHUNKS]


def test_emptied_chunks_leave_the_row_of_full_chunks() -> None:
    acked = OffsetSet()
    acked.add_range(0, 3 * CHUNK_SIZE)
    acked.dirty_chunks()
    acked.mark_clean()
    acked.discard_range(0, 3 * CHUNK_SIZE)
    assert acked.dirty_chunks() == {FULL_CHUNKS: b""}


def test_largest_offsets_are_accepted() -> None:
    offsets = np.array([2**62, 2**62 + 1, 2**62 - CHUNK_SIZE], np.int64)
    acked = OffsetSet()
    assert acked.add(offsets) == 3
    assert acked.contains(offsets).all()
    assert acked.first_missing(2**62) == 2**62 + 2


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.data())
def test_a_damaged_row_is_noticed(offsets: list[int], data: st.DataObject) -> None:
    acked = OffsetSet()
    acked.add(np.array(offsets, np.int64))
    acked.add_range(2**41, 2**41 + CHUNK_SIZE)
    chunk_no, row = data.draw(st.sampled_from(sorted(acked.dirty_chunks().items())))
    with pytest.raises(LogDamaged):  # an empty row is a deleted one
        OffsetSet().load_chunk(chunk_no, data.draw(damaged(row, least=1)))


def load(rows: list[tuple[int, bytes]]) -> OffsetSet:
    loaded = OffsetSet()
    for chunk_no, row in rows:
        loaded.load_chunk(chunk_no, row)
    return loaded


def test_rows_that_contradict_each_other_are_refused() -> None:
    acked = OffsetSet()
    acked.add_range(0, CHUNK_SIZE)
    full_row = acked.dirty_chunks()[FULL_CHUNKS]
    acked.discard_one(3)
    partial_row = acked.dirty_chunks()[0]
    for rows in (
        [(FULL_CHUNKS, full_row), (FULL_CHUNKS, full_row)],
        [(0, partial_row), (0, partial_row)],
        [(-2, partial_row)],
    ):
        with pytest.raises(LogDamaged):
            load(rows)


def test_full_chunk_wins_over_its_older_partial_row() -> None:
    """P6: rows are written in several steps, and a broker may crash between two of them."""
    acked = OffsetSet()
    acked.add_range(0, CHUNK_SIZE - 1)
    partial_row = acked.dirty_chunks()[0]
    acked.add_one(CHUNK_SIZE - 1)
    full_row = acked.dirty_chunks()[FULL_CHUNKS]
    for rows in (
        [(FULL_CHUNKS, full_row), (0, partial_row)],
        [(0, partial_row), (FULL_CHUNKS, full_row)],
    ):
        back = load(rows)
        back._check()
        assert len(back) == CHUNK_SIZE
        assert back.dirty_chunks()[0] == b""  # the outdated row is deleted


steps = st.sampled_from([1, 1, 1, 2, 300, 70_000, 2**33])


@given(st.integers(0, 2**40), st.lists(steps, max_size=60), st.randoms(use_true_random=False))
def test_column_of_offsets_decodes_to_the_same_set(
    first: int, gaps: list[int], random: Random
) -> None:
    offsets = np.cumsum([first, *gaps])
    assert decode_offsets(encode_offsets(offsets)).tolist() == offsets.tolist()
    shuffled = [*offsets.tolist(), first]
    random.shuffle(shuffled)
    assert encode_offsets(np.array(shuffled, np.int64)) == encode_offsets(offsets)


def test_empty_column_takes_no_bytes() -> None:
    assert encode_offsets(np.zeros(0, np.int64)) == b""
    assert decode_offsets(b"").tolist() == []


def test_columns_of_offsets_are_small() -> None:
    generator = np.random.default_rng(7)
    assert len(encode_offsets(np.arange(10**6))) < 32
    assert len(encode_offsets(generator.choice(200_000, 1000, replace=False))) < 2100
    holed = np.delete(np.arange(10**6), generator.choice(10**6, 100, replace=False))
    assert len(encode_offsets(holed)) < 900


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=30), st.data())
def test_a_damaged_column_of_offsets_is_noticed(offsets: list[int], data: st.DataObject) -> None:
    column = encode_offsets(np.array(offsets, np.int64))
    with pytest.raises(LogDamaged):  # an empty column is an empty set
        decode_offsets(data.draw(damaged(column, least=1)))
