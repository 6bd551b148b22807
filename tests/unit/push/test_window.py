"""Slow start of the posts to an endpoint."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.push.window import Window


def test_full_windows_of_successes_double_it_and_a_failure_halves_it() -> None:
    """B16"""
    window, sizes = Window(10), []
    for _ in range(5):
        sizes.append(window.size)
        for _ in range(window.size):
            window.succeeded()
    assert sizes == [1, 2, 4, 8, 10]
    for expected in (5, 2, 1, 1):
        window.failed()
        assert window.size == expected


@given(st.integers(1, 100), st.lists(st.booleans()))
def test_window_stays_within_its_bounds(most: int, successes: list[bool]) -> None:
    """B16"""
    window = Window(most)
    for success in successes:
        (window.succeeded if success else window.failed)()
        assert 1 <= window.size <= most
