"""Sorting of integers, compared with Python's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.sorting import argsort, sort

RUNS = st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=30).map(sorted))


@given(RUNS)
def test_numbers_in_few_or_many_runs_are_sorted(runs: list[list[int]]) -> None:
    numbers = np.array([number for run in runs for number in run], np.int64)
    expected = sorted(numbers.tolist())
    order = argsort(numbers)
    assert numbers[order].tolist() == expected
    assert sorted(order.tolist()) == list(range(len(numbers)))
    sort(numbers)
    assert numbers.tolist() == expected
