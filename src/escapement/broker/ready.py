"""What a subscription may hand out now, in the order it is due.

Rows are ``(due_ms, offset, attempts)`` in columns; ``attempts`` counts earlier
deliveries, 0 for a message that was never sent. Rows mostly arrive sorted and later
than what is here, so they are kept as a queue of sorted runs; what arrives out of
order (given back, retried) waits in a small side heap of its own and is merged when
rows are taken.

Pure: no clock, no I/O. It does not know what is acknowledged; the subscription
*withdraws* what must not be handed out any more.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s

# ``Rows.attempts`` has 16 bits, the lower 15 of which count. The highest says that the
# message was handed back untried, so that it counts as redelivered on its first attempt.
# The count ends where waits stopped growing long before; one more still fits.
RELEASED: Final = 0x8000
MOST_ATTEMPTS: Final = 0x7FFE


class Rows(NamedTuple):
    """Columns of equal height: when due, which message, how often sent before."""

    due_ms: Int64s
    offsets: Int64s
    attempts: Int64s

    @classmethod
    def fresh(cls, due_ms: Int64s, offsets: Int64s) -> Rows:
        """Rows of messages that were never sent."""
        return cls(due_ms, offsets, np.zeros(len(offsets), np.int64))

    @classmethod
    def none(cls) -> Rows:
        """No rows."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing)

    @property
    def height(self) -> int:
        """How many rows."""
        return len(self.offsets)

    @property
    def counts(self) -> Int64s:
        """The attempts as a number; int64[n]."""
        return self.attempts & (RELEASED - 1)

    def pick(self, which: slice | Int64s | npt.NDArray[np.bool_]) -> Rows:
        """The rows that a slice, mask or list of positions names."""
        return Rows(self.due_ms[which], self.offsets[which], self.attempts[which])

    def in_order(self) -> Rows:
        """Sorted by due time, then offset."""
        return self.pick(np.lexsort((self.offsets, self.due_ms)))

    @staticmethod
    def concat(parts: list[Rows]) -> Rows:
        """The parts one below the other."""
        if not parts:
            return Rows.none()
        if len(parts) == 1:
            return parts[0]
        columns = zip(*parts, strict=True)
        return Rows(*(np.concatenate(column) for column in columns))


class Ready:
    """A bounded, ordered store of rows; O(log n) per row at worst, mostly O(1)."""

    __slots__ = ("_count", "_runs", "_side", "_side_count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._runs: deque[Rows] = deque()
        self._side: list[Rows] = []
        self._count = 0
        self._side_count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """How many fresh rows fit. Rows given back are always taken (see ``push``)."""
        return max(0, self.limit - self._count)

    def push(self, rows: Rows) -> None:
        """Add rows that are sorted by key.

        The caller keeps fresh rows within ``room``; rows given back come from what
        was handed out before, whose number has a bound of its own.
        """
        if not rows.height:
            return
        self._count += rows.height
        if self._runs and _first(rows) < _last(self._runs[-1]):
            self._side.append(rows)
            self._side_count += rows.height
        else:
            self._runs.append(rows)

    def take(self, most: int) -> Rows:
        """Remove and return up to ``most`` rows, the earliest first."""
        taken = self._take_runs(most)
        if self._side:
            side = Rows.concat(self._side).in_order()
            both = Rows.concat([taken, side])
            order = np.lexsort((both.offsets, both.due_ms))[:most]
            keep_run = np.ones(taken.height, bool)
            keep_run[order[order < taken.height]] = False
            keep_side = np.ones(side.height, bool)
            keep_side[order[order >= taken.height] - taken.height] = False
            back = taken.pick(keep_run)
            if back.height:
                self._runs.appendleft(back)
            rest = side.pick(keep_side)
            self._side = [rest] if rest.height else []
            self._side_count = rest.height
            taken = both.pick(order)
        self._count -= taken.height
        return taken

    def _take_runs(self, most: int) -> Rows:
        parts: list[Rows] = []
        want = most
        while want and self._runs:
            run = self._runs.popleft()
            if run.height > want:
                self._runs.appendleft(run.pick(slice(want, None)))
                run = run.pick(slice(0, want))
            parts.append(run)
            want -= run.height
        return Rows.concat(parts)

    def put_back(self, rows: Rows) -> None:
        """Return rows just taken, unused, to the front."""
        if rows.height:
            self._runs.appendleft(rows)
            self._count += rows.height

    def withdraw(self, offsets: Int64s) -> int:
        """Remove the rows of these messages; O(rows). Returns how many there were."""
        before = self._count
        kept = [run.pick(~np.isin(run.offsets, offsets)) for run in self._runs]
        self._runs = deque(run for run in kept if run.height)
        side = [run.pick(~np.isin(run.offsets, offsets)) for run in self._side]
        self._side = [run for run in side if run.height]
        self._side_count = sum(run.height for run in self._side)
        self._count = sum(run.height for run in self._runs) + self._side_count
        return before - self._count

    def never_sent(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these messages are here and were never sent; bool[n]. O(rows)."""
        found = np.zeros(len(offsets), bool)
        for rows in (*self._runs, *self._side):
            found |= np.isin(offsets, rows.offsets[rows.attempts == 0])
        return found

    def drain(self) -> Rows:
        """Remove and return everything, in order."""
        return self.take(self._count)

    def rows(self) -> Rows:
        """A copy of everything, in no order, for a snapshot."""
        return Rows.concat([*self._runs, *self._side])

    def _check(self) -> None:
        """Assert every invariant."""
        previous = None
        for run in self._runs:
            assert run.height, "an empty run is kept"
            keys = list(zip(run.due_ms.tolist(), run.offsets.tolist(), strict=True))
            assert keys == sorted(keys), "a run is out of order"
            assert previous is None or previous <= keys[0], "runs overlap"
            previous = keys[-1]
        assert self._side_count == sum(run.height for run in self._side)
        assert self._count == sum(run.height for run in self._runs) + self._side_count


def _first(rows: Rows) -> tuple[int, int]:
    return int(rows.due_ms[0]), int(rows.offsets[0])


def _last(rows: Rows) -> tuple[int, int]:
    return int(rows.due_ms[-1]), int(rows.offsets[-1])
