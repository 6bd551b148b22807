"""Entries in columns: every sorting method gives the same order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.timewheel.entries import NONE, Entries

FEW = 30
MANY = 5000
# (span of times, span of ids): pairs that fit a radix sort, just miss it, fit one 64-bit key, miss
# that by one bit, and fit neither.
SPANS = [
    (1, 1),
    (60_000, 10**6),
    (100_000, 10**6),
    (10**9, 10**6),
    (2**40 - 1, 2**23),
    (2**62, 2**62),
]


def shuffled(count: int, spans: tuple[int, int], *, ids_ascend: bool, tagged: bool) -> Entries:
    generator = np.random.default_rng(count)
    when_ms = generator.integers(0, spans[0], count, endpoint=True)
    ids = generator.integers(-spans[1], spans[1], count, endpoint=True)
    if ids_ascend:
        ids.sort()
    return Entries(when_ms, ids, np.arange(count) if tagged else None)


@pytest.mark.parametrize("count", [0, 1, 2, FEW, MANY])
@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("ids_ascend", [False, True])
@pytest.mark.parametrize("tagged", [False, True])
def test_every_sorting_method_sorts_by_time_then_id(
    count: int, spans: tuple[int, int], ids_ascend: bool, tagged: bool
) -> None:
    entries = shuffled(count, spans, ids_ascend=ids_ascend, tagged=tagged)
    order = np.lexsort((entries.ids, entries.when_ms))
    ordered = entries.sorted()
    assert np.array_equal(ordered.when_ms, entries.when_ms[order])
    assert np.array_equal(ordered.ids, entries.ids[order])
    if tagged:
        assert ordered.tags is not None
        assert np.array_equal(ordered.tags, order)
    again = ordered.sorted()
    assert np.array_equal(again.when_ms, ordered.when_ms)
    assert np.array_equal(again.ids, ordered.ids)


def test_one_swapped_pair_among_many_entries_is_sorted() -> None:
    for broken in (0, MANY - 2):
        for column in ("when_ms", "ids"):
            when_ms = np.zeros(MANY, np.int64) if column == "ids" else np.arange(MANY)
            ids = np.arange(MANY)
            spoiled = ids if column == "ids" else when_ms
            spoiled[[broken, broken + 1]] = spoiled[[broken + 1, broken]]
            ordered = Entries(when_ms, ids).sorted()
            assert np.array_equal(getattr(ordered, column), np.arange(MANY))


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6))
def test_parts_without_tags_get_tag_zero_when_joined_with_tagged_parts(
    shape: list[tuple[int, bool]],
) -> None:
    parts = [
        Entries(np.arange(n), np.arange(n), np.arange(n) + 1 if tagged else None)
        for n, tagged in shape
    ]
    whole = Entries.concat(parts)
    assert len(whole) == sum(n for n, _ in shape)
    if any(tagged for _, tagged in shape):
        expected = [i + 1 if tagged else 0 for n, tagged in shape for i in range(n)]
        assert whole.tags is not None
        assert whole.tags.tolist() == expected
    else:
        assert whole.tags is None


def test_no_entries_can_be_sorted_and_joined() -> None:
    assert len(NONE.sorted()) == 0
    assert len(Entries.concat([])) == 0
    assert NONE.size_bytes == 0
