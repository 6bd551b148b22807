"""The number of pending messages in spans of time, as a census keeps it for forecasts.

A census counts due times by the spans of a *grid*: minutes for two days, quarter hours for 400
days, and one span for all later times. It keeps only the spans that have messages. If they are too
many, it merges neighbouring spans.

A forecast asks for other spans, such as hours from local midnight. The messages of a kept span are
assumed to be spread evenly in time. So the answer is exact if no span that the forecast asks for
begins or ends inside a kept span. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from escapement.message import Int64s
from escapement.spans import Spans
from escapement.storage.index.keys import MAX_DUE_MS

_MINUTE_MS: Final = 60_000
_QUARTER_MS: Final = 15 * _MINUTE_MS
# Minutes for the near future, which people look at by minute.
_MINUTES: Final = 2 * 24 * 60
# Days and hours begin at a quarter hour in every time zone. A year and a month of quarter hours.
_QUARTERS: Final = 400 * 24 * 4


@dataclass(frozen=True, slots=True, eq=False)
class SpanCounts:
    """The numbers of messages in some spans of time, which ascend and do not overlap.

    ``counts[i]`` messages are due from ``begins_ms[i]`` to before ``ends_ms[i]``.
    """

    begins_ms: Int64s
    ends_ms: Int64s
    counts: Int64s

    def by(self, spans: Spans) -> tuple[Int64s, bool]:
        """Return the number of messages in each of ``spans``, and whether all numbers are exact.

        The first and the last span count as a whole. O(spans).
        """
        if not len(self.counts):
            return np.zeros(spans.count, np.int64), True
        edges_ms = spans.first_ms + spans.by_ms * np.arange(spans.count + 1)
        sums = np.cumsum(self.counts)
        times_ms = np.column_stack((self.begins_ms, self.ends_ms)).ravel()
        below = np.column_stack((sums - self.counts, sums)).ravel()
        reached = np.rint(np.interp(edges_ms, times_ms, below)).astype(np.int64)
        before = self.begins_ms.searchsorted(edges_ms) - 1  # the last kept span before each edge
        is_exact = not ((before >= 0) & (edges_ms < self.ends_ms[before])).any()
        return np.diff(reached), is_exact

    def coarser(self, most: int) -> SpanCounts:
        """Return at most ``most`` spans, by merging neighbours."""
        if len(self.counts) <= most:
            return self
        width = -(-len(self.counts) // most)
        firsts = np.arange(0, len(self.counts), width)
        lasts = np.minimum(firsts + width, len(self.counts)) - 1
        return SpanCounts(
            self.begins_ms[firsts], self.ends_ms[lasts], np.add.reduceat(self.counts, firsts)
        )


NO_SPANS: Final = SpanCounts(*np.zeros((3, 0), np.int64))


class Grid:
    """The spans by which a census counts. The first one has the time ``now_ms``."""

    def __init__(self, now_ms: int) -> None:
        first_ms = now_ms // _QUARTER_MS * _QUARTER_MS
        minutes_ms = first_ms + _MINUTE_MS * np.arange(_MINUTES + 1)
        self._far_ms = int(minutes_ms[-1])
        quarters_ms = self._far_ms + _QUARTER_MS * np.arange(1, _QUARTERS + 1)
        self.edges_ms = np.concatenate((minutes_ms, quarters_ms, [MAX_DUE_MS + 1]))

    @property
    def count(self) -> int:
        """The number of spans."""
        return len(self.edges_ms) - 1

    def numbers(self, due_ms: Int64s) -> Int64s:
        """Return the number of the span of each due time. None is before the first span."""
        near = (due_ms - self.edges_ms[0]) // _MINUTE_MS
        far = _MINUTES + (due_ms - self._far_ms) // _QUARTER_MS
        return np.where(due_ms < self._far_ms, near, far).clip(None, self.count - 1)


class SpanTally:
    """A count of due times by the spans of a grid, in progress."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._counts = np.zeros(grid.count, np.int64)
        self._first_ms, self._last_ms = MAX_DUE_MS, 0  # the lowest and the highest due time

    def add(self, due_ms: Int64s) -> None:
        """Count messages with these due times, which ascend. O(messages).

        Times before the first span count for its beginning: the clock may have been set ahead.
        """
        if len(due_ms):
            due_ms = np.maximum(due_ms, self._grid.edges_ms[0])
            numbers = self._grid.numbers(due_ms)
            firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
            self._counts[numbers[firsts]] += np.diff(firsts, append=len(numbers))
            self._extend(int(due_ms[0]), int(due_ms[-1]))

    def add_all(self, other: SpanTally) -> None:
        """Count the messages of another tally of the same grid. O(spans)."""
        self._counts += other._counts
        self._extend(other._first_ms, other._last_ms)

    def result(self, most: int) -> SpanCounts:
        """Return the counts, in at most ``most`` spans."""
        numbers = np.flatnonzero(self._counts)
        return SpanCounts(
            self._grid.edges_ms[numbers].clip(self._first_ms, None),
            self._grid.edges_ms[numbers + 1].clip(None, self._last_ms + 1),
            self._counts[numbers],
        ).coarser(most)

    def _extend(self, first_ms: int, last_ms: int) -> None:
        self._first_ms = min(self._first_ms, first_ms)
        self._last_ms = max(self._last_ms, last_ms)
