"""The geometry of bar charts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from escapement.console.text.bars import ABOVE, HEIGHT, LEFT, WIDTH, bar_chart, scale


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=800))
def test_bars_stand_side_by_side_inside_the_chart(values: list[int]) -> None:
    chart = bar_chart(values, [str(at) for at in range(len(values))])
    assert [bar.value for bar in chart.bars] == values
    for bar in chart.bars:
        assert LEFT <= bar.place_x <= bar.x
        assert bar.x + bar.width <= bar.place_x + bar.place_width + 0.02
        assert bar.y >= ABOVE - 0.01 or bar.value == 0
        assert abs(bar.y + bar.height - chart.floor) < 0.02
        assert (bar.height > 0) == (bar.value > 0)
    assert chart.bars[-1].place_x + chart.bars[-1].place_width <= WIDTH + len(values) * 0.01
    assert chart.floor < HEIGHT


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=50))
def test_higher_values_have_bars_that_are_not_lower(values: list[int]) -> None:
    bars = sorted(bar_chart(values, [""] * len(values)).bars, key=lambda bar: bar.value)
    for low, high in itertools.pairwise(bars):
        assert low.height <= high.height


@given(st.integers(0, 10**15))
def test_scale_is_round_and_not_far_above_the_highest_value(most: int) -> None:
    top = scale(most)
    assert top >= most
    assert top % 2 == 0
    assert top <= max(2 * most, 2)


def test_labels_keep_their_distance() -> None:
    chart = bar_chart([1] * 60, [f"{at:02}" for at in range(60)])
    places = [bar.place_x for bar in chart.bars if bar.label]
    assert len(places) > 5
    assert min(b - a for a, b in itertools.pairwise(places)) >= 60
