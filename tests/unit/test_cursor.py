"""A cursor grows at once and becomes durable later."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.log.cursor import Cursor
from escapement.message import Int64s

OFFSETS = st.lists(st.integers(0, 30), max_size=8)


def column(offsets: list[int]) -> Int64s:
    return np.array(offsets, np.int64)


@given(st.lists(st.tuples(st.booleans(), OFFSETS), max_size=8), st.integers(0, 31))
def test_what_is_taken_counts_at_once_and_for_good_when_it_is_committed(
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
