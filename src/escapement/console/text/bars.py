"""The geometry of a bar chart, for an SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# The chart in units of its viewBox.
WIDTH: Final = 1000
HEIGHT: Final = 260
LEFT: Final = 60  # for the numbers of the scale
BELOW: Final = 26  # for the labels of the bars
ABOVE: Final = 12
# The part of a bar's place that it fills.
_FILLED: Final = 0.8
# A bar that stands for at least one message is this high, so that it is seen.
_LEAST: Final = 2.0
# Labels stand at least this far apart.
_LABEL_WIDTH: Final = 62.0
# The halves of scales begin with one of these digits.
_STEPS: Final = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its value, and its place. ``label`` is "" if it would touch another label."""

    value: int
    x: float
    y: float
    width: float
    height: float
    place_x: float
    place_width: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars of a chart, and the lines of its scale: their heights and values."""

    bars: list[Bar]
    lines: list[tuple[float, int]]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    floor: int = HEIGHT - BELOW


def bar_chart(values: Sequence[int], labels: Sequence[str]) -> Chart:
    """Return the chart of some values, which are not negative."""
    top = scale(max(values, default=0))
    floor = HEIGHT - BELOW
    room = floor - ABOVE
    place = (WIDTH - LEFT) / max(len(values), 1)
    every = max(round(_LABEL_WIDTH / place + 0.5), 1)
    bars = []
    for at, value in enumerate(values):
        height = max(room * value / top, _LEAST if value else 0.0)
        bars.append(
            Bar(
                value,
                round(LEFT + place * (at + (1 - _FILLED) / 2), 2),
                round(floor - height, 2),
                round(place * _FILLED, 2),
                round(height, 2),
                round(LEFT + place * at, 2),
                round(place, 2),
                labels[at] if at % every == 0 else "",
            )
        )
    lines = [(round(floor - room * part, 2), round(top * part)) for part in (0.5, 1.0)]
    return Chart(bars, lines)


def scale(most: int) -> int:
    """Return a round, even number that is not below ``most``: 2, 4, 6, 8, 10, 20, 40 and so on."""
    digit = 1
    while True:
        for step in _STEPS:
            if step * digit * 2 >= most:
                return step * digit * 2
        digit *= 10
