"""The geometry of a line chart with a logarithmic scale, for an SVG. Pure.

A logarithmic scale shows a few milliseconds and an hour in one chart. Values up to ``FLOOR`` lie on
the lowest line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Final

from escapement.console.text.bars import ABOVE, BELOW, HEIGHT, WIDTH

LEFT: Final = 84  # for the values of the scale, such as 16 min 40 s
FLOOR: Final = 1


@dataclass(frozen=True, slots=True)
class Point:
    """A value and its place."""

    value: int
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class LineChart:
    """The lines of a chart by name, as SVG paths and points, and the lines of its scale.

    ``xs`` are the places of the values in each line.
    """

    paths: dict[str, str]
    points: dict[str, list[Point]]
    scale: list[tuple[float, int]]
    target_y: float
    xs: list[float]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    floor: int = HEIGHT - BELOW


def line_chart(lines: Mapping[str, Sequence[int | None]], target: int) -> LineChart:
    """Return the chart of some lines of the same length. None is a gap.

    Args:
      target: a value that gets a line of its own.
    """
    highest = max((value or 0 for line in lines.values() for value in line), default=0)
    top = 10
    while top < max(highest, target):
        top *= 10
    length = max(map(len, lines.values()), default=0)
    step = (WIDTH - LEFT) / max(length, 1)
    xs = [round(LEFT + step * (at + 0.5), 2) for at in range(length)]
    points = {
        name: [
            Point(value, x, _height(value, top))
            for x, value in zip(xs, line, strict=True)
            if value is not None
        ]
        for name, line in lines.items()
    }
    paths = {name: _path(xs, line, top) for name, line in lines.items()}
    decades = round(log10(top))
    scale = [(_height(10**power, top), 10**power) for power in range(decades + 1)]
    return LineChart(paths, points, scale, _height(target, top), xs)


def _height(value: int, top: int) -> float:
    floor = HEIGHT - BELOW
    return round(floor - (floor - ABOVE) * log10(max(value, FLOOR)) / log10(top), 2)


def _path(xs: Sequence[float], line: Sequence[int | None], top: int) -> str:
    parts, draws = [], False
    for x, value in zip(xs, line, strict=True):
        if value is None:
            draws = False
            continue
        parts.append(f"{'L' if draws else 'M'}{x} {_height(value, top)}")
        draws = True
    return " ".join(parts)
