"""Due times scattered over a span: stable, uniform and within bounds (B12)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.dedup import digests
from escapement.message import NO_TIME, NO_TIMES, Times
from escapement.spread import places_ms, seeds, spread

NAMES = st.text(max_size=20)
NUMBERS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=50)
SPANS = st.integers(1, 10 * 366 * 86_400_000)
# Chi-square with 99 degrees of freedom exceeds this once in a million times.
CHI_SQUARE_99 = 180


@given(NAMES, NUMBERS, SPANS)
def test_places_are_stable_and_within_the_span(name: str, numbers: list[int], span: int) -> None:
    """B12: one by one or together, a message has the same place."""
    column = np.array(numbers)
    found = places_ms(seeds(name, column), span)
    assert (found >= 0).all()
    assert (found < span).all()
    assert found.tolist() == places_ms(seeds(name, column), np.full(len(column), span)).tolist()
    alone = [int(places_ms(seeds(name, column[at : at + 1]), span)[0]) for at in range(len(column))]
    assert found.tolist() == alone


@pytest.mark.parametrize("name", ["", "public/default/orders", "p"])
@pytest.mark.parametrize("first", [0, 10**12])
@pytest.mark.parametrize("step", [1, 1_000, 86_400_000])
def test_places_are_uniform(name: str, first: int, step: int) -> None:
    """B12: for consecutive offsets and sequences, and for occurrences of schedules."""
    count, bins = 100_000, 100
    numbers = first + step * np.arange(count)
    found = places_ms(seeds(name, numbers), 600_000)
    counts = np.bincount(found * bins // 600_000, minlength=bins)
    expected = count / bins
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_99


def test_dedup_keys_are_scattered_uniformly_whatever_the_sequence() -> None:
    """B12."""
    keys = digests([f"order-{n}" for n in range(20_000)])
    found = places_ms(seeds("a", np.arange(20_000), keys), 1_000)
    again = places_ms(seeds("b", np.arange(20_000) + 7, keys), 1_000)
    assert found.tolist() == again.tolist()
    counts = np.bincount(found // 10, minlength=100)
    assert ((counts - 200) ** 2 / 200).sum() < CHI_SQUARE_99


def test_message_without_a_dedup_key_keeps_its_own_seed() -> None:
    some = digests(["k", None])
    found = seeds("a", np.array([5, 6]), some)
    assert found[1] == seeds("a", np.array([5, 6]))[1]
    assert found[0] != seeds("a", np.array([5, 6]))[0]


def test_places_never_change() -> None:
    """B12: clients and brokers of different versions agree. These values are part of the format."""
    assert places_ms(seeds("orders", np.array([0, 1, 2])), 600_000).tolist() == [
        519_399,
        555_152,
        59_838,
    ]
    assert places_ms(seeds("", np.array([0]), digests(["order-7"])), 600_000).tolist() == [53_651]


def test_spread_makes_each_kind_of_time_later() -> None:
    """B12: never earlier. A message with neither delay nor time is delayed by its place."""
    places = np.array([5, 6, 7, 8])
    assert spread(NO_TIMES, places).delay_ms.tolist() == [5, 6, 7, 8]  # type: ignore[union-attr]
    both = Times(np.array([-1, 10, -1, -1]), np.array([100, -1, -1, 0]))
    found = spread(both, places)
    assert found.delay_ms is not None
    assert found.at_ms is not None
    assert found.delay_ms.tolist() == [NO_TIME, 16, 7, NO_TIME]
    assert found.at_ms.tolist() == [105, NO_TIME, NO_TIME, 8]
    some = spread(both, places, np.array([False, True, False, False]))
    assert some.delay_ms is not None
    assert some.delay_ms.tolist() == [NO_TIME, 16, NO_TIME, NO_TIME]
    assert both.delay_ms is not None
    assert both.delay_ms.tolist() == [-1, 10, -1, -1]
