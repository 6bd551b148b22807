"""The due times of moved messages, compared with a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import StorageError
from escapement.message import Int64s
from escapement.storage.encoding.moves import Moves

OFFSETS = st.sets(st.one_of(st.integers(0, 40), st.integers(65_500, 65_560)), max_size=30)
STEPS = st.lists(st.tuples(OFFSETS, st.integers(0, 100)), max_size=8)
EVERY = np.array([*range(60), *range(65_490, 65_570)], np.int64)


def column(values: object) -> Int64s:
    return np.array(values, np.int64)


class Model:
    """Moves, and dictionaries. An unmoved message is due at a thousand times its offset."""

    def __init__(self) -> None:
        self.moves = Moves()
        self.due: dict[int, int] = {}
        self.base: dict[int, int] = {}
        self.steps = 0

    def put(self, steps: list[tuple[set[int], int]]) -> None:
        for offsets, at_ms in steps:
            self.steps += 1
            named, base = sorted(offsets), -self.steps
            stale = [self.due.get(offset, offset * 1000) for offset in named]
            self.moves.put(column(named), column([at_ms] * len(named)), column(stale), base)
            for offset in named:
                self.due[offset], self.base[offset] = at_ms, base

    def check(self, moves: Moves) -> None:
        stated, offsets = EVERY * 1000, EVERY.tolist()
        current = [self.due.get(offset, offset * 1000) for offset in offsets]
        assert moves.current(EVERY, stated).tolist() == current
        assert moves.contains(EVERY).tolist() == [offset in self.due for offset in offsets]
        assert moves.bases(EVERY).tolist() == [self.base.get(offset, 0) for offset in offsets]
        for low, high in ((0, 1 << 20), (7, 65_530)):
            there = sorted(offset for offset in self.due if low <= offset < high)
            assert moves.between(low, high).tolist() == there
        stale = moves.stale(stated, EVERY)
        expected = [now != then for now, then in zip(current, stated.tolist(), strict=True)]
        assert (np.zeros(len(EVERY), bool) if stale is None else stale).tolist() == expected
        assert len(moves) == len(self.due)
        assert moves.empty == (not self.due)


@given(STEPS)
def test_last_move_of_a_message_counts(steps: list[tuple[set[int], int]]) -> None:
    """B1: after any number of moves of the same messages."""
    model = Model()
    model.put(steps)
    model.check(model.moves)


@given(STEPS, STEPS)
def test_changed_rows_restore_all_moves(
    steps: list[tuple[set[int], int]], more: list[tuple[set[int], int]]
) -> None:
    """Invariant 7: a start restores exactly the rows that checkpoints wrote."""
    model = Model()
    model.put(steps)
    rows = model.moves.dirty_chunks()
    assert model.moves.dirty_chunks() == {}
    model.put(more)
    rows |= model.moves.dirty_chunks()
    again = Moves()
    for chunk_no, row in rows.items():
        again.load_chunk(chunk_no, row)
    model.check(again)


def test_many_moves_are_merged_and_a_damaged_row_is_noticed() -> None:
    moves = Moves()
    for low in range(0, 20_000, 1000):
        offsets = np.arange(low, low + 1000)
        moves.put(offsets, offsets + 7, offsets, -1)
    everything = np.arange(20_000)
    assert (moves.current(everything, everything) == everything + 7).all()
    (row,) = moves.dirty_chunks().values()
    for damaged in (row[:-1], b"", row[:9] + b"\x01" + row[10:]):
        with pytest.raises(StorageError):
            Moves().load_chunk(0, damaged)


@given(moved=OFFSETS, done=OFFSETS, end=st.integers(0, 65_600))
def test_discarded_moves_are_removed_from_the_rows(
    moved: set[int], done: set[int], end: int
) -> None:
    moves = Moves()
    moves.put(column(sorted(moved)), column([7] * len(moved)), column([9] * len(moved)), -1)
    rows = moves.dirty_chunks()
    due_ms, last_ms, offsets = moves.below(end)
    assert offsets.tolist() == sorted(offset for offset in moved if offset < end)
    assert set(due_ms.tolist()) <= {7}
    assert set(last_ms.tolist()) <= {9}
    moves.discard(column(sorted(done & moved)))
    rows |= moves.dirty_chunks()
    stored = Moves()
    for chunk, row in rows.items():
        if row:
            stored.load_chunk(chunk, row)
    for one in (moves, stored):
        assert EVERY[one.contains(EVERY)].tolist() == sorted(moved - done)
