"""What is ready where an order is asked for: a queue for each key.

Of every queue the first row, its *head*, stands in a table with a place for each slot (see
``escapement.traits``), and the others lie in a few runs sorted by slot and rank. So whatever
may go next is found by looking at heads alone, however much waits behind them, and the next
of a key by a search in each run. Messages without a key lie apart: nothing holds them up.
Where the topic is to be in order, everything is one queue.

Rows come in any order. One that belongs before the head of its queue takes its place.

Invariants (``_check``): a queue that has rows has a head, which goes before the others; the
counts are a recount.

Pure: it does not know which keys are busy, but is told with each question.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.band import BANDS, NORMAL, bands_of
from escapement.broker.subscription.ready import Pile, Rows, order_of
from escapement.message import Int64s
from escapement.traits import SLOTS, have_keys, key_slots

# The slot of what has none: a message without a key, where the order is by key.
NO_SLOT: Final = SLOTS
# How many rows of each key stay in memory where there are too many: the first that will do.
_KEPT_OF_EACH: Final = (64, 16, 4, 1, 0)
_SLOT_BITS: Final = 16
_INT64_BITS: Final = 63  # without the sign
_LAST: Final = (1 << 63) - 1

Bools = npt.NDArray[np.bool_]
Slots = npt.NDArray[np.intp]


def slots_of(rows: Rows, whole: bool) -> Slots:
    """The queue of each row, ``NO_SLOT`` for none; intp[n].

    Args:
      whole: everything is in one queue.
    """
    if whole:
        return np.zeros(rows.height, np.intp)
    if rows.traits is None:
        return np.full(rows.height, NO_SLOT)
    return np.where(have_keys(rows.traits), key_slots(rows.traits), NO_SLOT)


class KeyQueues:
    """See the module's docstring.

    Args:
      whole: one queue for everything.
      ageing_ms: what a step of priority is worth; see ``Rows.ranks``.
    """

    __slots__ = (
        "_ageing_ms",
        "_free",
        "_fresh",
        "_heads",
        "_ranks",
        "_runs",
        "_there",
        "whole",
    )

    def __init__(self, whole: bool, ageing_ms: int) -> None:
        self.whole = whole
        self._ageing_ms = ageing_ms
        self._there: Bools = np.zeros(SLOTS, bool)
        self._ranks = np.zeros(SLOTS, np.int64)
        due_ms, offsets, attempts = np.zeros((3, SLOTS), np.int64)
        self._heads = Rows(due_ms, offsets, attempts, np.zeros(SLOTS, np.uint32))
        self._runs: list[_Run] = []
        self._free = Pile(ageing_ms)
        self._fresh = dict.fromkeys(BANDS, 0)

    def __len__(self) -> int:
        behind = sum(run.count for run in self._runs)
        return self._free.count + int(np.count_nonzero(self._there)) + behind

    def fresh_of(self, which: int) -> int:
        """How many rows of a band there are that were never sent."""
        return self._fresh[which]

    def _count(self, rows: Rows, sign: int) -> None:
        fresh = rows.attempts == 0
        if rows.traits is None:
            self._fresh[NORMAL] += sign * int(np.count_nonzero(fresh))
            return
        bands = bands_of(rows.traits[fresh])
        for which in BANDS:
            self._fresh[which] += sign * int(np.count_nonzero(bands == which))

    # -- in and out ------------------------------------------------------------------

    def push(self, rows: Rows) -> None:
        """Add rows, in any order; O(log n) a row."""
        self._count(rows, 1)
        slots = slots_of(rows, self.whole)
        keyed = slots != NO_SLOT
        if not keyed.all():
            self._free.push(rows.pick(~keyed).in_order(self._ageing_ms))
            rows, slots = rows.pick(keyed), slots[keyed]
        if not rows.height:
            return
        run = _Run.of(rows, slots, self._ageing_ms)
        # Heads that something comes before go behind it.
        there = np.flatnonzero(self._there[run.slots])
        place, first = run.slots[there], run.begins[there]
        later = _before(
            run.ranks[first],
            run.rows.offsets[first],
            self._ranks[place],
            self._heads.offsets[place],
        )
        if later.any():
            place = place[later]
            rows = Rows.concat([rows, self._heads.pick(place)])
            self._there[place] = False
            run = _Run.of(rows, np.concatenate((slots, place)), self._ageing_ms)
        self._add(run)

    def count_open(self, closed: Bools) -> int:
        """How many messages ``open`` could give."""
        return int(np.count_nonzero(self._there & ~closed)) + self._free.count

    def open(self, closed: Bools, most: int, *, all_heads: bool) -> Rows:
        """What may go next, in order: heads, and rows without a key. It stays here.

        Args:
          closed: the slots of which nothing may go; bool[SLOTS].
          most: how many are wanted.
          all_heads: whether all heads are, however many.
        """
        slots = np.flatnonzero(self._there & ~closed)
        if len(slots) > most and not all_heads:
            ranks = self._ranks[slots]
            slots = slots[ranks <= np.partition(ranks, most - 1)[most - 1]]
        if len(slots):
            slots = slots[order_of(self._ranks[slots], self._heads.offsets[slots])]
        heads = self._heads.pick(slots if all_heads else slots[:most])
        if not self._free.count:
            return heads
        both = Rows.concat([heads, self._free.first(most)]).in_order(self._ageing_ms)
        return both if all_heads else both.pick(slice(0, most))

    def take(self, rows: Rows) -> None:
        """Remove rows, in order, that ``open`` gave just now; those behind them move up."""
        self._count(rows, -1)
        slots = slots_of(rows, self.whole)
        keyed = slots != NO_SLOT
        if not keyed.all():
            self._take_free(rows.offsets[~keyed])
        slots = np.sort(slots[keyed])
        self._there[slots] = False
        self._move_up(slots)

    def _take_free(self, offsets: Int64s) -> None:
        first = self._free.take(len(offsets))
        if not np.array_equal(first.offsets, offsets):
            self._free.push(first)
            self._free.withdraw(offsets)

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        rows = self.rows()
        self._count(rows.pick(np.isin(rows.offsets, offsets)), -1)
        self._free.withdraw(offsets)
        stay = [~np.isin(run.rows_left().offsets, offsets) for run in self._runs]
        runs = zip(self._runs, stay, strict=True)
        self._runs = [run.pick(which) for run, which in runs if which.any()]
        slots = np.flatnonzero(self._there)
        slots = slots[np.isin(self._heads.offsets[slots], offsets)]
        self._there[slots] = False
        self._move_up(slots)

    def drain(self) -> Rows:
        """Remove and return everything, in no order."""
        rows = self.rows()
        self._there[:] = False
        self._runs = []
        self._free = Pile(self._ageing_ms)
        self._fresh = dict.fromkeys(BANDS, 0)
        return rows

    def rows(self) -> Rows:
        """A copy of everything, in no order, for a snapshot."""
        heads = self._heads.pick(np.flatnonzero(self._there))
        behind = [run.rows_left() for run in self._runs]
        return Rows.concat([heads, *behind, *self._free.runs])

    def never_sent(self, offsets: Int64s) -> Bools:
        """Which of these messages are here and were never sent; bool[n]. O(rows)."""
        rows = self.rows()
        return np.isin(offsets, rows.offsets[rows.attempts == 0])

    def set_ageing(self, ageing_ms: int) -> None:
        """Put everything into the order of another worth of a step of priority."""
        rows = self.drain()
        self._ageing_ms = self._free.ageing_ms = ageing_ms
        if rows.height:
            self.push(rows)

    # -- too many --------------------------------------------------------------------

    @property
    def empty(self) -> Bools:
        """In which queues nothing is; bool[SLOTS]."""
        return ~self._there

    def shorten(self, closed: Bools, most: int) -> Rows:
        """Remove and return the ends of long queues, so that ``most`` fresh rows are left.

        What was sent before stays, and what comes before it in its queue; so do the heads of
        queues that are not closed, and what has no key. So more may be left. O(rows).

        Args:
          closed: the slots of which nothing may go; bool[SLOTS].
        """
        heads = np.flatnonzero(self._there)
        if not len(heads):
            return Rows.none()
        rows = Rows.concat([self._heads.pick(heads), *(run.rows_left() for run in self._runs)])
        slots = np.concatenate([heads, *(run.slots_left() for run in self._runs)])
        run = _Run.of(rows, slots, self._ageing_ms)
        slots, places = run.slots_left(), np.arange(run.count)
        sent = np.maximum.reduceat(np.where(run.rows.attempts > 0, places, -1), run.begins)
        lengths = run.ends - run.begins
        may_go = places > np.repeat(sent, lengths)
        behind = places - np.repeat(run.begins, lengths)
        over = sum(self._fresh.values()) - most
        for kept in _KEPT_OF_EACH:
            gone = may_go & (behind >= np.maximum(kept, ~closed[slots]))
            if np.count_nonzero(gone) >= over:
                break
        removed = run.rows.pick(gone)
        self._count(removed, -1)
        self._there[heads] = False
        self._runs = []
        if not gone.all():
            self._add(run.pick(~gone))
        return removed

    # -- heads -----------------------------------------------------------------------

    def _set_heads(self, slots: Slots, run: _Run, at: Int64s) -> None:
        """These rows of a run are the first of their queues now."""
        self._there[slots] = True
        self._ranks[slots] = run.ranks[at]
        self._heads.due_ms[slots] = run.rows.due_ms[at]
        self._heads.offsets[slots] = run.rows.offsets[at]
        self._heads.attempts[slots] = run.rows.attempts[at]
        assert self._heads.traits is not None
        self._heads.traits[slots] = 0 if run.rows.traits is None else run.rows.traits[at]

    def _move_up(self, slots: Slots) -> None:
        """Give queues without a head their next row; ``slots`` ascend. O(slots * runs)."""
        ranks = np.full(len(slots), _LAST)
        offsets = np.full(len(slots), _LAST)
        whose = np.full(len(slots), -1)
        places = []
        for number, run in enumerate(self._runs):
            place = np.minimum(np.searchsorted(run.slots, slots), len(run.slots) - 1)
            places.append(place)
            at = run.begins[place]
            there = np.flatnonzero((run.slots[place] == slots) & (at < run.ends[place]))
            at = at[there]
            sooner = _before(run.ranks[at], run.rows.offsets[at], ranks[there], offsets[there])
            there, at = there[sooner], at[sooner]
            ranks[there], offsets[there] = run.ranks[at], run.rows.offsets[at]
            whose[there] = number
        for number, run in enumerate(self._runs):
            mine = np.flatnonzero(whose == number)
            if len(mine):
                self._set_heads(slots[mine], run, run.take(places[number][mine]))
        self._runs = [run.compact() for run in self._runs if run.count]

    def _add(self, run: _Run) -> None:
        """Rows that come behind the heads there are; where there is none, the first is it."""
        at = np.flatnonzero(~self._there[run.slots])
        if len(at):
            self._set_heads(run.slots[at], run, run.take(at))
        if not run.count:
            return
        self._runs.append(run)
        while len(self._runs) > 1 and self._runs[-2].count < 2 * self._runs[-1].count:
            last = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged(last, self._ageing_ms)

    def _check(self) -> None:
        """Assert every invariant."""
        rows = self.rows()
        assert len(np.unique(rows.offsets)) == rows.height == len(self)
        fresh = self._fresh.copy()
        self._count(rows, -1)
        assert not any(self._fresh.values()), "the count of what was never sent is wrong"
        self._fresh = fresh
        for run in self._runs:
            run._check()
            assert self._there[run.slots[run.begins < run.ends]].all(), "a queue has no head"
            at = run.left()
            slots = slots_of(run.rows.pick(at), self.whole)
            assert _before(
                self._ranks[slots],
                self._heads.offsets[slots],
                run.ranks[at],
                run.rows.offsets[at],
            ).all(), "a head is not the first"


class _Run:
    """Rows sorted by slot, rank and offset; of each slot the first are taken, one by one."""

    __slots__ = ("begins", "count", "ends", "ranks", "rows", "slots")

    def __init__(self, rows: Rows, ranks: Int64s, slots: Slots) -> None:
        """``slots`` are those of the rows, which are in order."""
        self.rows = rows
        self.ranks = ranks
        self.begins: Int64s = np.flatnonzero(np.diff(slots, prepend=-1))
        self.ends: Int64s = np.append(self.begins[1:], rows.height)
        self.slots: Slots = slots[self.begins]
        self.count = rows.height

    @classmethod
    def of(cls, rows: Rows, slots: Slots, ageing_ms: int) -> _Run:
        """Rows in any order, and the slot of each."""
        ranks = rows.ranks(ageing_ms)
        at = _slot_order(slots, ranks, rows.offsets)
        return cls(rows.pick(at), ranks[at], slots[at])

    def take(self, which: Slots) -> Int64s:
        """Take the first row of each of these slots, by position; returns where they stand."""
        at = self.begins[which]
        self.begins[which] += 1
        self.count -= len(at)
        return at

    def left(self) -> Int64s:
        """Where the rows stand that were not taken; ascending."""
        lengths = self.ends - self.begins
        skipped = self.begins - (np.cumsum(lengths) - lengths)
        places: Int64s = np.arange(self.count) + np.repeat(skipped, lengths)
        return places

    def rows_left(self) -> Rows:
        """Those rows."""
        return self.rows if self.count == self.rows.height else self.rows.pick(self.left())

    def slots_left(self) -> Slots:
        """The slots of those rows."""
        return np.repeat(self.slots, self.ends - self.begins)

    def pick(self, which: Bools) -> _Run:
        """Some of the rows that were not taken."""
        at = self.left()[which]
        return _Run(self.rows.pick(at), self.ranks[at], self.slots_left()[which])

    def merged(self, other: _Run, ageing_ms: int) -> _Run:
        """What is left of two."""
        rows = Rows.concat([self.rows_left(), other.rows_left()])
        slots = np.concatenate((self.slots_left(), other.slots_left()))
        return _Run.of(rows, slots, ageing_ms)

    def compact(self) -> _Run:
        """Itself, or what is left of it if that is little."""
        if 4 * self.count >= self.rows.height:
            return self
        return self.pick(np.ones(self.count, bool))

    def _check(self) -> None:
        at = self.left()
        assert self.count == len(at) > 0
        keys = list(
            zip(
                self.slots_left().tolist(),
                self.ranks[at].tolist(),
                self.rows.offsets[at].tolist(),
                strict=True,
            )
        )
        assert keys == sorted(keys), "a run is out of order"


def _before(ranks: Int64s, offsets: Int64s, other_ranks: Int64s, other_offsets: Int64s) -> Bools:
    """Which rows go before those beside them; bool[n]."""
    before: Bools = (ranks < other_ranks) | ((ranks == other_ranks) & (offsets < other_offsets))
    return before


def _slot_order(slots: Slots, ranks: Int64s, offsets: Int64s) -> Slots:
    """The order by slot, rank and offset; linear where rows are a few sorted runs."""
    low_rank, low_offset = int(ranks.min()), int(offsets.min())
    offset_bits = (int(offsets.max()) - low_offset).bit_length()
    rank_bits = (int(ranks.max()) - low_rank).bit_length()
    if _SLOT_BITS + rank_bits + offset_bits > _INT64_BITS:
        by_rank = order_of(ranks, offsets)
        by_slot: Slots = by_rank[np.argsort(slots[by_rank].astype(np.uint16), kind="stable")]
        return by_slot
    keys = (slots << (rank_bits + offset_bits)) | ((ranks - low_rank) << offset_bits)
    order: Slots = np.argsort(keys | (offsets - low_offset), kind="stable")
    return order
