"""The map from numbers to numbers, compared with a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.number_map import NOWHERE, NumberMap
from escapement.message import Int64s

KEYS = st.one_of(st.integers(0, 300), st.integers(0, (1 << 63) - 1))


def column(numbers: list[int]) -> Int64s:
    return np.array(numbers, np.int64)


@given(
    steps=st.lists(st.dictionaries(KEYS, st.integers(0, 1 << 40), max_size=40), max_size=6),
    asked=st.lists(KEYS, max_size=40),
)
def test_number_put_last_is_found(steps: list[dict[int, int]], asked: list[int]) -> None:
    """Known and unknown keys, in any order."""
    numbers, naive = NumberMap(), dict[int, int]()
    for step in steps:
        numbers.put(column(list(step)), column(list(step.values())))
        naive |= step
        numbers._check()
        assert len(numbers) == len(naive)
    wanted = [*asked, *naive]
    found = numbers.get(column(wanted)).tolist()
    assert found == [naive.get(key, NOWHERE) for key in wanted]


@pytest.mark.parametrize("apart", [1, 7, 256, 4096, 1 << 20, 1 << 40])
def test_numbers_at_any_distance_have_few_collisions_in_the_table(apart: int) -> None:
    """Every key is near its slot; otherwise lookups of many keys would take long."""
    numbers, keys = NumberMap(), np.arange(20_000) * apart
    numbers.put(keys, keys)
    taken = np.flatnonzero(numbers._keys != NOWHERE)
    far = (taken - numbers._slots(numbers._keys[taken])) % len(numbers._keys)
    assert far.max() <= 8
    assert np.array_equal(numbers.get(keys), keys)


@pytest.mark.parametrize("apart", [1, 1 << 40])
def test_key_takes_at_most_64_bytes(apart: int) -> None:
    """Invariant 9: however far apart keys are, and in whatever order they come."""
    numbers, keys = NumberMap(), np.random.default_rng(1).permutation(40_000) * apart
    for part in np.array_split(keys, 20):
        numbers.put(part, part)
        assert numbers.size_bytes <= 64 * len(numbers)
    assert np.array_equal(numbers.get(keys), keys)
