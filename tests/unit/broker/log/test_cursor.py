"""A cursor contains offsets at once, and makes them durable later."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.log.cursor import Cursor
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offset_chunk import CHUNK_SIZE

OFFSETS = st.lists(st.integers(0, 30), max_size=8)


def column(offsets: list[int]) -> Int64s:
    return np.array(offsets, np.int64)


@given(st.lists(st.tuples(st.booleans(), OFFSETS), max_size=8), st.integers(0, 31))
def test_taken_offsets_count_at_once_and_become_durable_at_commit(
    steps: list[tuple[bool, list[int]]], low: int
) -> None:
    """V2, invariant 3: the model is two sets."""
    cursor = Cursor()
    taken: set[int] = set()
    durable: set[int] = set()
    for commits, offsets in steps:
        if commits:
            cursor.committed(column(offsets))
            durable |= taken & set(offsets)
        else:
            fresh = [offset for offset in dict.fromkeys(offsets) if offset not in taken]
            cursor.take(column(fresh))
            taken |= set(fresh)
        every = column(list(range(31)))
        assert cursor.contains(every).tolist() == [n in taken for n in range(31)]
        assert cursor.contains_durably(every).tolist() == [n in durable for n in range(31)]
        assert cursor.durable_between(low, 31).tolist() == [n in durable for n in range(low, 31)]
        assert cursor.is_waiting(low, 31) == any(n >= low for n in taken - durable)
    assert len(cursor) == len(taken)


# Ranges at both ends of a few chunks, so that chunks become full.
RANGES = st.tuples(st.integers(0, 2 * CHUNK_SIZE + 8), st.sampled_from([1, 7, CHUNK_SIZE]))


@given(st.lists(st.tuples(st.sampled_from(["take", "commit", "write"]), RANGES), max_size=14))
def test_checkpoint_rows_contain_only_durable_offsets(
    steps: list[tuple[str, tuple[int, int]]],
) -> None:
    """V1, invariant 3: the written rows add up to exactly the durable offsets."""
    cursor, taken, durable = Cursor(), OffsetSet(), OffsetSet()
    stored: dict[int, bytes] = {}
    for step, (first, count) in [*steps, ("write", (0, 1))]:
        span = np.arange(first, first + count, dtype=np.int64)
        if step == "take":
            fresh = span[~taken.contains(span)]
            cursor.take(fresh)
            taken.add(fresh)
        elif step == "commit":
            known = span[taken.contains(span)]
            cursor.committed(known)
            durable.add(known)
        else:
            stored |= cursor.dirty_chunks(cursor.undurable)
            cursor.mark_clean()
            loaded = OffsetSet()
            for chunk_no in sorted(stored):  # the row of full chunks comes first
                if stored[chunk_no]:
                    loaded.load_chunk(chunk_no, stored[chunk_no])
            loaded._check()
            assert np.array_equal(loaded.to_array(0, 2**62), durable.to_array(0, 2**62))
    cursor._check()
