"""The history of lateness equals a naive list of the same deliveries."""

from __future__ import annotations

from collections import defaultdict
from math import ceil

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.metering.lateness_history import (
    KEPT_MINUTES,
    MINUTE_MS,
    Lateness,
    LatenessHistory,
)

IDS = (-2, -1, 5, 7, 1 << 40)
LATE_MS = st.one_of(st.integers(-5, 40), st.integers(0, 10**6), st.integers(0, 10**12))
BATCHES = st.lists(
    st.tuples(
        st.integers(-3, 70),  # minutes after the batch before; the clock may go back
        st.sampled_from(IDS),
        st.lists(LATE_MS, max_size=30),
        st.booleans(),  # whether the history is read afterwards
    ),
    max_size=60,
)


def add(history: LatenessHistory, minute: int, id: int, late_ms: list[int]) -> None:
    history.add(minute * MINUTE_MS + 59_999, id * 10, id, np.array(late_ms, np.int64))


def row(figures: Lateness, at: int) -> tuple[int, int, int, int]:
    delivered, p50_ms, p99_ms, max_ms = (int(column[at]) for column in figures)
    return delivered, p50_ms, p99_ms, max_ms


def check(found: tuple[int, int, int, int], late_ms: list[int]) -> None:
    """Compare figures with those of a sorted list: exact below 32 ms, otherwise within 1/32."""
    exact = sorted(max(one, 0) for one in late_ms)
    assert found[0] == len(exact)
    for value, share in zip(found[1:], (50, 99, 100), strict=True):
        right = exact[ceil(len(exact) * share / 100) - 1]
        assert value == right if right < 32 else abs(value - right) <= right / 32


@given(BATCHES)
def test_history_equals_a_naive_list(batches: list[tuple[int, int, list[int], bool]]) -> None:
    """B14: by minute and over all minutes, also if it is read in between.

    The clock may be set back. A minute is forgotten when a batch comes from a minute that is far
    from it.
    """
    history = LatenessHistory()
    kept: dict[int, dict[int, list[int]]] = {}
    minute = 10_000
    for step, id, late_ms, reads in batches:
        minute += step
        add(history, minute, id, late_ms)
        if late_ms:
            kept = {one: by for one, by in kept.items() if abs(one - minute) < KEPT_MINUTES}
            kept.setdefault(minute, defaultdict(list))[id] += late_ms
        if reads:
            history.subscriptions(0)
    together = history.over(np.array(IDS), 0, 1 << 40)
    for at, id in enumerate(IDS):
        assert row(history.over(np.array([id]), 0, 1 << 40), 0) == row(together, at)
        numbers, figures = history.minutes(id, 0, 1 << 40)
        right = {number: kept[number][id] for number in sorted(kept) if id in kept[number]}
        assert numbers.tolist() == list(right)
        for place, late_ms in enumerate(right.values()):
            check(row(figures, place), late_ms)
        if right:
            check(row(together, at), [one for late_ms in right.values() for one in late_ms])
        else:
            assert row(together, at) == (0, 0, 0, 0)
        assert (history.subscriptions(0).get(id) == id * 10) is bool(right)


def test_figures_are_of_the_given_minutes_and_subscriptions() -> None:
    """B14: neighbours in time and by id are left out."""
    history = LatenessHistory()
    for minute in range(100, 110):
        for id in range(1, 6):
            add(history, minute, id, [minute - 100 + id])
    numbers, figures = history.minutes(3, 104, 106)
    assert numbers.tolist() == [104, 105, 106]
    assert figures.max_ms.tolist() == [7, 8, 9]
    over = history.over(np.array([2, 5]), 104, 106)
    assert over.delivered.tolist() == [3, 3]
    assert over.p50_ms.tolist() == [7, 10]
    assert over.max_ms.tolist() == [8, 11]
    assert history.subscriptions(110) == {}


def test_history_gets_shorter_at_its_bound() -> None:
    """V3: the oldest minutes are forgotten, those of all subscriptions."""
    history = LatenessHistory(most_cells=1_000)
    for minute in range(1_000, 1_020):
        for id in range(100):
            add(history, minute, id, [1, 2])  # two cells
        history.subscriptions(0)
        assert history.cells <= 1_000
    numbers, _ = history.minutes(99, 0, 2_000)
    assert numbers.tolist() == list(range(1_015, 1_020))
    assert len(history._seen) == 100


def test_minute_that_has_all_cells_counts_no_more() -> None:
    """V3: its other figures stay right, and the next minute counts again."""
    history = LatenessHistory(most_cells=1_000)
    for id in range(2_000):
        add(history, 7, id, [1])
        history.subscriptions(0)
    assert history.cells == 1_000
    assert len(history.subscriptions(0)) == 1_000
    add(history, 8, 3, [4])
    assert history.minutes(3, 0, 9)[1].max_ms.tolist() == [4]


def test_noted_batches_are_bounded() -> None:
    """V3: a history that nobody reads notes few batches."""
    history = LatenessHistory()
    for _ in range(10_000):
        add(history, 1, 1, [3, 3, 3])
        assert len(history._batches) < 256
        assert history.cells <= 8_192
    assert row(history.over(np.array([1]), 1, 1), 0) == (30_000, 3, 3, 3)
