"""What a subscription may hand out now, in the order it is due.

Rows are ``(due_ms, offset, attempts)`` in columns; ``attempts`` counts earlier
deliveries, 0 for a message that was never sent. Rows mostly arrive sorted and later
than what is here, so they are kept as a queue of sorted runs; what arrives out of
order (given back) waits in a pile of its own and is merged when rows are taken.

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


# See ``Ready``: of what is handed out, one in so many has waited out a
# back-off: few enough not to be felt, and enough to come to an end.
TRIED_SHARE: Final = 4


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
    """A bounded, ordered store of rows; O(log n) per row at worst, mostly O(1).

    Rows that waited out a back-off lie apart. While others are ready too, of what is taken
    one in ``TRIED_SHARE`` is such a row, so however many of them come back at once, they
    do not hold up what is fresh, nor does it hold up them. Q6.
    """

    __slots__ = ("_credit", "_runs", "_runs_count", "_side", "_tried", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._runs: deque[Rows] = deque()
        self._runs_count = 0
        self._side = _Pile()
        self._tried = _Pile()
        self._credit = 0  # rows taken that are not yet counted towards the share

    def __len__(self) -> int:
        return self._runs_count + self._side.count + self._tried.count

    @property
    def room(self) -> int:
        """How many fresh rows fit. Rows given back are always taken (see ``push``)."""
        return max(0, self.limit - self._runs_count - self._side.count)

    def push(self, rows: Rows) -> None:
        """Add rows that are sorted by key.

        The caller keeps fresh rows within ``room``; rows given back come from what
        was handed out before, whose number has a bound of its own.
        """
        if not rows.height:
            return
        if self._runs and _first(rows) < _last(self._runs[-1]):
            self._side.push(rows)
        else:
            self._runs.append(rows)
            self._runs_count += rows.height

    def push_tried(self, rows: Rows) -> None:
        """Add rows, sorted by key, that have waited out a back-off; they take no room."""
        self._tried.push(rows)

    def take(self, most: int) -> Rows:
        """Remove and return up to ``most`` rows, the earliest first."""
        if not self._tried.count:
            return self._take_untried(most)
        others = self._runs_count + self._side.count
        share, self._credit = divmod(self._credit + min(most, others), TRIED_SHARE)
        tried = self._tried.take(max(share, most - others))
        taken = Rows.concat([self._take_untried(most - tried.height), tried])
        return taken.in_order()

    def _take_untried(self, most: int) -> Rows:
        taken = self._take_runs(most)
        if self._side.count:
            side = self._side.take(most)
            both = Rows.concat([taken, side])
            order = np.lexsort((both.offsets, both.due_ms))
            left = np.sort(order[most:])
            back = taken.pick(left[left < taken.height])
            if back.height:
                self._runs.appendleft(back)
                self._runs_count += back.height
            self._side.push(side.pick(left[left >= taken.height] - taken.height))
            taken = both.pick(order[:most])
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
        self._runs_count -= most - want
        return Rows.concat(parts)

    def put_back(self, rows: Rows) -> None:
        """Return rows just taken, unused."""
        self._side.push(rows)

    def withdraw(self, offsets: Int64s) -> int:
        """Remove the rows of these messages; O(rows). Returns how many there were."""
        before = len(self)
        kept = [run.pick(~np.isin(run.offsets, offsets)) for run in self._runs]
        self._runs = deque(run for run in kept if run.height)
        self._runs_count = sum(run.height for run in self._runs)
        self._side.withdraw(offsets)
        self._tried.withdraw(offsets)
        return before - len(self)

    def never_sent(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these messages are here and were never sent; bool[n]. O(rows)."""
        found = np.zeros(len(offsets), bool)
        for rows in (*self._runs, *self._side.runs):
            found |= np.isin(offsets, rows.offsets[rows.attempts == 0])
        return found

    def drain(self) -> Rows:
        """Remove and return everything, in order."""
        return self.take(len(self))

    def rows(self) -> Rows:
        """A copy of everything, in no order, for a snapshot."""
        return Rows.concat([*self._runs, *self._side.runs, *self._tried.runs])

    def _check(self) -> None:
        """Assert every invariant."""
        previous = None
        for run in self._runs:
            assert run.height, "an empty run is kept"
            keys = _keys(run)
            assert keys == sorted(keys), "a run is out of order"
            assert previous is None or previous <= keys[0], "runs overlap"
            previous = keys[-1]
        assert self._runs_count == sum(run.height for run in self._runs)
        self._side._check()
        self._tried._check()


class _Pile:
    """Rows that come in any order, as a few sorted runs of falling size; O(log n) a row."""

    __slots__ = ("count", "runs")

    def __init__(self) -> None:
        self.count = 0
        self.runs: list[Rows] = []

    def push(self, rows: Rows) -> None:
        """Add rows that are sorted by key."""
        if not rows.height:
            return
        self.count += rows.height
        self.runs.append(rows)
        while len(self.runs) > 1 and self.runs[-2].height < 2 * self.runs[-1].height:
            last = self.runs.pop()
            self.runs[-1] = Rows.concat([self.runs[-1], last]).in_order()

    def take(self, most: int) -> Rows:
        """Remove and return the first ``most`` rows; O(runs * most)."""
        heads = [run.pick(slice(0, most)) for run in self.runs]
        rows = Rows.concat(heads)
        if len(heads) > 1:
            order = np.lexsort((rows.offsets, rows.due_ms))[:most]
            whose = np.repeat(np.arange(len(heads)), [head.height for head in heads])
            taken = np.bincount(whose[order], minlength=len(heads)).tolist()
            rows = rows.pick(order)
        else:
            taken = [rows.height]
        # Each run is sorted, so what was chosen of it is its beginning.
        left = [run.pick(slice(n, None)) for run, n in zip(self.runs, taken, strict=False)]
        self.runs = [run for run in left if run.height]
        self.count -= rows.height
        return rows

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        left = [run.pick(~np.isin(run.offsets, offsets)) for run in self.runs]
        self.runs = [run for run in left if run.height]
        self.count = sum(run.height for run in self.runs)

    def _check(self) -> None:
        for run in self.runs:
            assert run.height, "an empty run is kept"
            assert _keys(run) == sorted(_keys(run)), "a run is out of order"
        assert self.count == sum(run.height for run in self.runs)


def _keys(rows: Rows) -> list[tuple[int, int]]:
    return list(zip(rows.due_ms.tolist(), rows.offsets.tolist(), strict=True))


def _first(rows: Rows) -> tuple[int, int]:
    return int(rows.due_ms[0]), int(rows.offsets[0])


def _last(rows: Rows) -> tuple[int, int]:
    return int(rows.due_ms[-1]), int(rows.offsets[-1])
