"""Columns of keys, compared with lists of pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.storage.index.keys import (
    KEY_MAX,
    KEY_MIN,
    Key,
    Keys,
    concat,
    is_sorted,
    match,
    merge,
    position,
    sorted_order,
    unique_sorted,
)

# Times and offsets that collide often, and some too far apart to pack into one integer.
NUMBERS = st.one_of(st.integers(0, 4), st.sampled_from([1 << 20, 1 << 46, (1 << 47) - 1]))
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40)


def keys_of(pairs: list[tuple[int, int]]) -> Keys:
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return columns[:, 0].copy(), columns[:, 1].copy()


def pairs_of(keys: Keys) -> list[tuple[int, int]]:
    return list(zip(keys[0].tolist(), keys[1].tolist(), strict=True))


@given(st.lists(PAIRS, max_size=4))
def test_merging_sorts_and_keeps_each_key_once(parts: list[list[tuple[int, int]]]) -> None:
    merged = merge([keys_of(part) for part in parts])
    assert pairs_of(merged) == sorted({pair for part in parts for pair in part})
    assert is_sorted(*merged)
    pairs = [pair for part in parts for pair in part]
    if pairs:
        rows, also = unique_sorted(*concat([keys_of(part) for part in parts]))
        assert pairs_of(also) == pairs_of(merged)
        assert [pairs[row] for row in rows.tolist()] == pairs_of(merged)


@given(PAIRS.filter(bool), st.booleans())
def test_rows_are_sorted_by_their_keys(pairs: list[tuple[int, int]], by_offset: bool) -> None:
    if by_offset:
        of_offset = {offset: (due_ms, offset) for due_ms, offset in pairs}
        pairs = [of_offset[offset] for offset in sorted(of_offset)]
    keys = keys_of(pairs)
    assert [pairs[row] for row in sorted_order(*keys).tolist()] == sorted(pairs)
    rows, unique = unique_sorted(*keys)
    assert [pairs[row] for row in rows.tolist()] == pairs_of(unique) == sorted(set(pairs))


@given(PAIRS, st.tuples(NUMBERS, NUMBERS))
def test_position_is_the_number_of_smaller_keys(
    pairs: list[tuple[int, int]], wanted: tuple[int, int]
) -> None:
    table = sorted(set(pairs))
    assert position(*keys_of(table), Key(*wanted)) == sum(pair < wanted for pair in table)
    assert position(*keys_of(table), KEY_MIN) == 0
    assert position(*keys_of(table), KEY_MAX) == len(table)


@given(PAIRS, PAIRS)
def test_matching_finds_exactly_the_existing_keys(
    pairs: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    table = sorted(set(pairs))
    rows = match(keys_of(table), keys_of(wanted)).tolist()
    assert rows == [table.index(pair) if pair in table else -1 for pair in wanted]


@given(PAIRS)
def test_sorted_means_strictly_ascending(pairs: list[tuple[int, int]]) -> None:
    assert is_sorted(*keys_of(pairs)) == (pairs == sorted(set(pairs)))
