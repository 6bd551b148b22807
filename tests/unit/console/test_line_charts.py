"""The geometry of line charts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.console.text.bars import ABOVE, LEFT, WIDTH
from escapement.console.text.lines import line_chart

values = st.lists(st.none() | st.integers(0, 10**9), min_size=1, max_size=120)


@given(values, st.integers(1, 10**7))
def test_points_lie_inside_the_chart_in_their_order(line: list[int | None], target: int) -> None:
    chart = line_chart({"p99": line}, target)
    points = chart.points["p99"]
    assert [point.value for point in points] == [value for value in line if value is not None]
    for point in points:
        assert LEFT <= point.x <= WIDTH
        assert ABOVE - 0.01 <= point.y <= chart.floor
        # A point is above the target's line exactly if its value is above the target.
        assert (point.y < chart.target_y) <= (point.value > target)
        assert (point.y > chart.target_y) <= (point.value < target)
    assert chart.scale[0][0] == chart.floor


def test_path_is_interrupted_where_a_value_is_missing() -> None:
    path = line_chart({"p50": [1, 1, None, 1]}, 10).paths["p50"]
    assert [part[0] for part in path.split() if part[0].isalpha()] == ["M", "L", "M"]
