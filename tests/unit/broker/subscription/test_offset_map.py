"""The map from offsets to numbers, compared with a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.number_map import NOWHERE
from escapement.broker.subscription.offset_map import OffsetMap
from escapement.message import Int64s

# Offsets that fill some pages, and single offsets far away.
OFFSETS = st.one_of(st.integers(0, 600), st.integers(0, 1 << 62))


def column(numbers: list[int]) -> Int64s:
    return np.array(numbers, np.int64)


@given(
    steps=st.lists(
        st.dictionaries(OFFSETS, st.integers(NOWHERE, 1 << 40), max_size=40), max_size=6
    ),
    asked=st.lists(OFFSETS, max_size=40),
)
def test_number_put_last_is_found(steps: list[dict[int, int]], asked: list[int]) -> None:
    """Known and unknown offsets, in any order."""
    numbers, naive = OffsetMap(), dict[int, int]()
    for step in steps:
        numbers.put(column(list(step)), column(list(step.values())))
        naive.update(step)
        numbers._check()
    wanted = [*asked, *naive]
    found = numbers.get(column(wanted)).tolist()
    assert found == [naive.get(offset, NOWHERE) for offset in wanted]


def test_dense_offsets_take_eight_bytes_each_whatever_their_order() -> None:
    numbers = OffsetMap()
    offsets = np.random.default_rng(1).permutation(1 << 16)
    for part in np.array_split(offsets, 20):
        numbers.put(part, part)
    assert numbers.size_bytes == 8 << 16
    assert np.array_equal(numbers.get(offsets), offsets)
