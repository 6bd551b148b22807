"""Ready messages of a subscription, in the order of ranks: by due time and priority.

Rows are ``(due_ms, offset, attempts, traits)`` in columns. ``attempts`` counts earlier deliveries,
0 for a *fresh* message, which was never sent. Rows are *in order* if they are sorted by rank, then
offset. *Tried* rows have waited out a back-off.

Most rows arrive in order, behind the rows that are in the store. So the store is a queue of sorted
runs. Rows that were given back arrive out of order. They go into a separate pile, which is merged
when rows are taken.

Pure: no clock, no I/O. It is not told of acknowledgements; the subscription *withdraws* messages
that must not be delivered any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.message import DEFAULT_PRIORITY, Int64s, UInt32s, concat_columns
from escapement.storage.encoding.attempts import RELEASED
from escapement.storage.index.keys import Key, sorted_order
from escapement.traits import priorities_of

# ``Rows.attempts`` has 16 bits, defined in storage/encoding/attempts.py.
_ATTEMPT_BITS: Final = 16
_ATTEMPTS: Final = (1 << _ATTEMPT_BITS) - 1

# While fresh rows are ready too, one in this many delivered rows has waited out a back-off (see
# ``Ready``). So retries hardly delay fresh messages, and are all delivered in the end.
TRIED_SHARE: Final = 4


_NOTHING: Final = np.zeros(0, np.int64)


class Rows(NamedTuple):
    """Columns of equal height: due time, offset, number of earlier deliveries, traits.

    If traits is None, no row has a key or a priority other than the default.
    """

    due_ms: Int64s
    offsets: Int64s
    attempts: Int64s
    traits: UInt32s | None = None

    @classmethod
    def fresh(cls, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None) -> Rows:
        """Return rows of messages that were never sent."""
        return cls(due_ms, offsets, np.zeros(len(offsets), np.int64), traits)

    @classmethod
    def none(cls) -> Rows:
        """Return no rows."""
        return cls(_NOTHING, _NOTHING, _NOTHING)

    @classmethod
    def recalled(cls, due_ms: Int64s, offsets: Int64s, stored: Int64s) -> Rows:
        """Return rows from stored attempts.

        Args:
          stored: attempts and traits of each message, as packed by ``to_store``; int64[n].
        """
        traits = (stored >> _ATTEMPT_BITS).astype(np.uint32)
        return cls(due_ms, offsets, stored & _ATTEMPTS, traits if traits.any() else None)

    def to_store(self) -> Int64s:
        """Return attempts (the lower 16 bits) and traits packed into one column; int64[n]."""
        if self.traits is None:
            return self.attempts
        return self.attempts | (self.traits.astype(np.int64) << _ATTEMPT_BITS)

    @property
    def height(self) -> int:
        """The number of rows."""
        return len(self.offsets)

    @property
    def counts(self) -> Int64s:
        """The number of attempts of each row, without the ``RELEASED`` flag; int64[n]."""
        return self.attempts & (RELEASED - 1)

    def ranks(self, ageing_ms: int) -> Int64s:
        """Return the rank of each row; lower ranks are delivered first. int64[n].

        The rank is the due time, moved by ``ageing_ms`` for each step of priority away from the
        default. It does not change while a message waits.
        """
        if self.traits is None:
            return self.due_ms
        return self.due_ms + (priorities_of(self.traits) - DEFAULT_PRIORITY) * ageing_ms

    def pick(self, which: slice | Int64s | npt.NDArray[np.bool_]) -> Rows:
        """Return the rows of a slice, mask or array of positions."""
        if isinstance(which, np.ndarray) and which.dtype == bool:
            which = np.flatnonzero(which)  # once for all columns, which is several times as fast
        traits = None if self.traits is None else self.traits[which]
        return Rows(self.due_ms[which], self.offsets[which], self.attempts[which], traits)

    def in_order(self, ageing_ms: int = 0) -> Rows:
        """Return the rows sorted by rank, then offset. O(n) if they consist of few sorted runs.

        Without ``ageing_ms``, the rank is the due time.
        """
        return self.pick(sorted_order(self.ranks(ageing_ms), self.offsets))

    def by_offset(self) -> Rows:
        """Return the rows sorted by offset; the order of equal offsets stays."""
        return self.pick(np.argsort(self.offsets, kind="stable"))

    def key(self, at: int) -> Key:
        """Return the key ``(due_ms, offset)`` of the row at a position."""
        return Key(int(self.due_ms[at]), int(self.offsets[at]))

    def once(self) -> Rows:
        """Return the first row of each message."""
        _, first = np.unique(self.offsets, return_index=True)
        return self if len(first) == self.height else self.pick(np.sort(first))

    @staticmethod
    def concat(parts: list[Rows]) -> Rows:
        """Concatenate the parts."""
        if not parts:
            return Rows.none()
        if len(parts) == 1:
            return parts[0]
        return Rows(
            np.concatenate([part.due_ms for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.attempts for part in parts]),
            concat_columns([(part.height, part.traits) for part in parts], 0, np.uint32),
        )


class Ready:
    """A bounded, ordered store of rows; O(log n) per row at worst, mostly O(1).

    Tried rows, which have waited out a back-off, are kept apart. While there are other rows too,
    one in ``TRIED_SHARE`` of the rows taken is a tried row. So even if many retries return at once,
    they do not block fresh rows, nor do fresh rows block them. Q6.

    Args:
      limit: how many untried rows there may be before ``room`` is 0.
      ageing_ms: how many ms a step of priority is worth; see ``Rows.ranks``.
    """

    __slots__ = ("_credit", "_runs", "_runs_count", "_side", "_tried", "ageing_ms", "limit")

    def __init__(self, limit: int, ageing_ms: int = 0) -> None:
        self.limit = limit
        self.ageing_ms = ageing_ms
        self._runs: deque[Rows] = deque()
        self._runs_count = 0
        self._side = Pile(ageing_ms)
        self._tried = Pile(ageing_ms)
        self._credit = 0  # rows taken that count towards the next tried row

    def __len__(self) -> int:
        return self.untried + self._tried.count

    @property
    def untried(self) -> int:
        """The number of untried rows, which did not wait out a back-off."""
        return self._runs_count + self._side.count

    @property
    def first_ms(self) -> int | None:
        """The due time of the first untried row; None if there is none. O(runs)."""
        runs = [*list(self._runs)[:1], *self._side.runs]
        return min((int(run.due_ms[0]) for run in runs), default=None)

    @property
    def room(self) -> int:
        """The number of fresh rows that fit. Rows given back always fit (see ``push``)."""
        return max(0, self.limit - self.untried)

    def push(self, rows: Rows) -> None:
        """Add untried rows that are in order.

        The caller adds no more fresh rows than ``room``. Rows given back may exceed it: they were
        in flight, which has a bound of its own.
        """
        if not rows.height:
            return
        if self._runs and self._key(rows, 0) < self._key(self._runs[-1], -1):
            self._side.push(rows)
        else:
            self._runs.append(rows)
            self._runs_count += rows.height

    def _key(self, rows: Rows, at: int) -> tuple[int, int]:
        row = rows.pick(slice(at, at + 1 or None))
        return int(row.ranks(self.ageing_ms)[0]), int(row.offsets[0])

    def push_tried(self, rows: Rows) -> None:
        """Add tried rows that are in order; they take no room."""
        self._tried.push(rows)

    @staticmethod
    def take_apart(
        stores: Sequence[Ready], most: int, *, with_tried: bool = True
    ) -> tuple[Rows, Rows]:
        """Remove the first rows of several stores; return the untried and the tried ones.

        Both parts are in order.

        Args:
          most: the most rows to take altogether.
          with_tried: whether to take tried rows, which have waited out a back-off.
        """
        ageing_ms = stores[0].ageing_ms
        tried = Rows.none()
        if with_tried and any(store._tried.count for store in stores):
            others = sum(store.untried for store in stores)
            credit = stores[0]._credit + min(most, others)
            share, stores[0]._credit = divmod(credit, TRIED_SHARE)
            want = max(share, most - others)
            parts = [store._tried.take(want) for store in stores]
            tried, used = _first_of(parts, want, ageing_ms)
            for store, part, count in zip(stores, parts, used, strict=True):
                if count < part.height:
                    store._tried.push(part.pick(slice(count, None)))
        want = most - tried.height
        parts = [store._take_untried(want) for store in stores]
        taken, used = _first_of(parts, want, ageing_ms)
        for store, part, count in zip(stores, parts, used, strict=True):
            if count < part.height:
                store.put_first(part.pick(slice(count, None)))
        return taken, tried

    def _take_untried(self, most: int) -> Rows:
        taken = self._take_runs(most)
        if self._side.count:
            parts = [taken, self._side.take(most)]
            taken, (runs_used, side_used) = _first_of(parts, most, self.ageing_ms)
            self.put_first(parts[0].pick(slice(runs_used, None)))
            self._side.push(parts[1].pick(slice(side_used, None)))
        return taken

    def put_first(self, rows: Rows) -> None:
        """Put back untried rows that were taken; no rows may have been added since. O(1)."""
        if rows.height:
            self._runs.appendleft(rows)
            self._runs_count += rows.height

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
        """Put back untried rows that were taken; other rows may have been added since."""
        self._side.push(rows)

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        kept = [_without(run, offsets) for run in self._runs]
        self._runs = deque(run for run in kept if run.height)
        self._runs_count = sum(run.height for run in self._runs)
        self._side.withdraw(offsets)
        self._tried.withdraw(offsets)

    def never_sent(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which of these messages are in the store and were never sent; bool[n]. O(rows)."""
        found = np.zeros(len(offsets), bool)
        for rows in (*self._runs, *self._side.runs):
            found |= np.isin(offsets, rows.offsets[rows.attempts == 0])
        return found

    def drain(self) -> Rows:
        """Remove and return all rows, in order."""
        return Rows.concat([*Ready.take_apart([self], len(self))]).in_order(self.ageing_ms)

    def set_ageing(self, ageing_ms: int) -> None:
        """Set another ``ageing_ms``, and sort all rows again by their new ranks."""
        others, tried = self._take_untried(len(self)), self._tried.take(len(self))
        self.ageing_ms = self._side.ageing_ms = self._tried.ageing_ms = ageing_ms
        self.push(others.in_order(ageing_ms))
        self.push_tried(tried.in_order(ageing_ms))

    def rows(self) -> Rows:
        """Return a copy of all rows, in no order."""
        return Rows.concat([*self._runs, *self._side.runs, *self._tried.runs])

    def _check(self) -> None:
        """Assert every invariant."""
        previous = None
        for run in self._runs:
            assert run.height, "an empty run is kept"
            keys = _keys(run, self.ageing_ms)
            assert keys == sorted(keys), "a run is out of order"
            assert previous is None or previous <= keys[0], "runs overlap"
            previous = keys[-1]
        assert self._runs_count == sum(run.height for run in self._runs)
        self._side._check()
        self._tried._check()


class Pile:
    """A set of rows, kept as a few sorted runs of falling size; adding costs O(log n) a row."""

    __slots__ = ("ageing_ms", "count", "runs")

    def __init__(self, ageing_ms: int) -> None:
        self.ageing_ms = ageing_ms
        self.count = 0
        self.runs: list[Rows] = []

    def push(self, rows: Rows) -> None:
        """Add rows that are in order."""
        if not rows.height:
            return
        self.count += rows.height
        self.runs.append(rows)
        while len(self.runs) > 1 and self.runs[-2].height < 2 * self.runs[-1].height:
            last = self.runs.pop()
            self.runs[-1] = Rows.concat([self.runs[-1], last]).in_order(self.ageing_ms)

    def first(self, most: int) -> Rows:
        """Return the first ``most`` rows without removing them; O(runs * most)."""
        return _first_of([run.pick(slice(0, most)) for run in self.runs], most, self.ageing_ms)[0]

    def take(self, most: int) -> Rows:
        """Remove and return the first ``most`` rows; O(runs * most)."""
        heads = [run.pick(slice(0, most)) for run in self.runs]
        rows, taken = _first_of(heads, most, self.ageing_ms)
        left = [run.pick(slice(n, None)) for run, n in zip(self.runs, taken, strict=False)]
        self.runs = [run for run in left if run.height]
        self.count -= rows.height
        return rows

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        left = [_without(run, offsets) for run in self.runs]
        self.runs = [run for run in left if run.height]
        self.count = sum(run.height for run in self.runs)

    def _check(self) -> None:
        for run in self.runs:
            assert run.height, "an empty run is kept"
            keys = _keys(run, self.ageing_ms)
            assert keys == sorted(keys), "a run is out of order"
        assert self.count == sum(run.height for run in self.runs)


def _without(rows: Rows, offsets: Int64s) -> Rows:
    """Return the rows without those of these messages; the same object if none is removed."""
    # A single offset is compared directly, which is ten times as fast.
    alone = len(offsets) == 1
    gone = rows.offsets == offsets[0] if alone else np.isin(rows.offsets, offsets)
    return rows.pick(~gone) if gone.any() else rows


def goes_before(
    ranks: Int64s, offsets: Int64s, other_ranks: Int64s, other_offsets: Int64s
) -> npt.NDArray[np.bool_]:
    """Compare two lists of rows, row by row; return where the first precedes the second; bool[n].

    Rows are in the order of ranks, then offsets.
    """
    before: npt.NDArray[np.bool_] = ranks < other_ranks
    same = ranks == other_ranks
    if same.any():
        before |= same & (offsets < other_offsets)
    return before


def _first_of(parts: Sequence[Rows], most: int, ageing_ms: int) -> tuple[Rows, list[int]]:
    """Merge sorted parts: return their first ``most`` rows, and how many come from each part."""
    filled = [part for part in parts if part.height]
    if len(filled) <= 1:
        rows = filled[0] if filled else Rows.none()
        if rows.height > most:
            rows = rows.pick(slice(0, most))
        return rows, [rows.height if part.height else 0 for part in parts]
    rows = Rows.concat(filled)
    order = sorted_order(rows.ranks(ageing_ms), rows.offsets)[:most]
    whose = np.repeat(np.arange(len(parts)), [part.height for part in parts])
    # Each part is sorted, so the rows chosen from it are its first ones.
    return rows.pick(order), np.bincount(whose[order], minlength=len(parts)).tolist()


def _keys(rows: Rows, ageing_ms: int) -> list[tuple[int, int]]:
    return list(zip(rows.ranks(ageing_ms).tolist(), rows.offsets.tolist(), strict=True))
