"""What is ready where an order is asked for: a queue for each key.

Of every queue the first row, its *head*, stands in the table of keys
(:mod:`~escapement.broker.subscription.keytable`), and the others lie in a few runs sorted by
key and rank. So whatever may go next is found by looking at heads alone, however much waits
behind them, and the next of a key by a search in each run. Messages without a key lie apart:
nothing holds them up. Where the topic is to be in order, everything is one queue.

Rows come in any order. One that belongs before the head of its queue takes its place. What
comes in small parts is laid in together, before something is asked that needs it.

Invariants (``_check``): a queue that has rows has a head, which goes before the others; the
counts are a recount.

Pure: it does not know which keys are busy, but is told with each question.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.subscription.band import BANDS, NORMAL, bands_of
from escapement.broker.subscription.keytable import (
    NO_PLACE,
    NO_PRINT,
    Bools,
    KeyTable,
    Places,
)
from escapement.broker.subscription.ready import Pile, Rows, order_of
from escapement.message import Int64s
from escapement.sorting import argsort

# How many rows of each key stay in memory where there are too many: the first that will do.
_KEPT_OF_EACH: Final = (64, 16, 4, 1, 0)
_PRINT_BITS: Final = 23
_INT64_BITS: Final = 63  # without the sign
_LAST: Final = (1 << 63) - 1


class KeyQueues:
    """See the module's docstring.

    Args:
      ageing_ms: what a step of priority is worth; see ``Rows.ranks``.
    """

    __slots__ = ("_ageing_ms", "_free", "_fresh", "_new", "_runs", "_table")

    def __init__(self, table: KeyTable, ageing_ms: int) -> None:
        self._table = table
        self._ageing_ms = ageing_ms
        self._runs: list[_Run] = []
        self._free = Pile(ageing_ms)
        self._new: list[Rows] = []  # not laid in yet
        self._fresh = dict.fromkeys(BANDS, 0)

    def __len__(self) -> int:
        behind = sum(run.count for run in self._runs)
        new = sum(rows.height for rows in self._new)
        return self._free.count + int(np.count_nonzero(self._table.there)) + behind + new

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
        self._new.append(rows)

    def lay_in(self) -> None:
        """Have everything in its place that was added; the table's places change."""
        if not self._new:
            return
        rows, self._new = Rows.concat(self._new), []
        prints = self._table.prints_of(rows)
        keyed = prints != NO_PRINT
        if not keyed.all():
            self._free.push(rows.pick(~keyed).in_order(self._ageing_ms))
            rows, prints = rows.pick(keyed), prints[keyed]
        if rows.height:
            self._lay_in(_Run.of(rows, prints, rows.ranks(self._ageing_ms)))

    def _lay_in(self, run: _Run) -> None:
        table, place = self._table, self._table.place(run.prints)
        there = table.there[place]
        ranks, offsets = run.ranks[run.begins], run.rows.offsets[run.begins]
        before = _before(ranks, offsets, table.ranks[place], table.heads.offsets[place])
        # All of a key come behind its head but one, be it theirs or the one that was there.
        table.behind[place] += run.ends - run.begins - ~there
        # Heads that something comes before go behind it.
        later = place[there & before]
        displaced = _Run(table.heads.pick(later), table.ranks[later], table.prints[later])
        at = np.flatnonzero(before | ~there)
        self._set_heads(place[at], run, run.take(at))
        self._add([run, displaced])

    def count_open(self, closed: Bools) -> int:
        """How many messages ``open`` could give."""
        return int(np.count_nonzero(self._table.there & ~closed)) + self._free.count

    def open(self, closed: Bools, most: int, *, all_heads: bool) -> tuple[Rows, Places]:
        """What may go next, in order: heads, and rows without a key. It stays here.

        Everything is laid in.

        Args:
          closed: the keys, by place, of which nothing may go.
          most: how many are wanted.
          all_heads: whether all heads are, however many.

        Returns:
          The rows, and the place of the key of each, ``NO_PLACE`` for none.
        """
        assert not self._new
        table = self._table
        at = np.flatnonzero(table.there & ~closed)
        if len(at) > most and not all_heads:
            ranks = table.ranks[at]
            at = at[ranks <= np.partition(ranks, most - 1)[most - 1]]
        if len(at):
            at = at[order_of(table.ranks[at], table.heads.offsets[at])]
        at = at if all_heads else at[:most]
        heads = table.heads.pick(at)
        if not self._free.count:
            return heads, at
        free = self._free.first(most)
        both = Rows.concat([heads, free])
        order = order_of(both.ranks(self._ageing_ms), both.offsets)
        order = order if all_heads else order[:most]
        return both.pick(order), np.append(at, np.full(free.height, NO_PLACE))[order]

    def take(self, rows: Rows, places: Places) -> None:
        """Remove rows, in order, that ``open`` gave just now; those behind them move up."""
        self._count(rows, -1)
        free = places == NO_PLACE
        if free.any():
            self._take_free(rows.offsets[free])
            places = places[~free]
        self._move_up(places)

    def _take_free(self, offsets: Int64s) -> None:
        first = self._free.take(len(offsets))
        if not np.array_equal(first.offsets, offsets):
            self._free.push(first)
            self._free.withdraw(offsets)

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        self.lay_in()
        rows = self.rows()
        self._count(rows.pick(np.isin(rows.offsets, offsets)), -1)
        self._free.withdraw(offsets)
        stay = [~np.isin(run.rows_left().offsets, offsets) for run in self._runs]
        runs = zip(self._runs, stay, strict=True)
        self._runs = [run.pick(which) for run, which in runs if which.any()]
        self._table.behind[:] = self._recount()
        at = np.flatnonzero(self._table.there)
        self._move_up(at[np.isin(self._table.heads.offsets[at], offsets)])

    def drain(self) -> Rows:
        """Remove and return everything, in no order."""
        rows = self.rows()
        self._table.there[:] = False
        self._table.behind[:] = 0
        self._runs, self._new = [], []
        self._free = Pile(self._ageing_ms)
        self._fresh = dict.fromkeys(BANDS, 0)
        return rows

    def rows(self) -> Rows:
        """A copy of everything, in no order, for a snapshot."""
        heads = self._table.heads.pick(np.flatnonzero(self._table.there))
        behind = [run.rows_left() for run in self._runs]
        return Rows.concat([heads, *behind, *self._free.runs, *self._new])

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

    def shorten(self, closed: Bools, most: int) -> Rows:
        """Remove and return the ends of long queues, so that ``most`` fresh rows are left.

        What was sent before stays, and what comes before it in its queue; so do the heads of
        queues that are not closed, and what has no key. So more may be left. Everything is
        laid in. O(rows).

        Args:
          closed: the keys, by place, of which nothing may go.
        """
        assert not self._new
        table = self._table
        heads = self._by_key(np.flatnonzero(table.there))
        if not len(heads):
            return Rows.none()
        rows = Rows.concat([table.heads.pick(heads), *(run.rows_left() for run in self._runs)])
        ranks = np.concatenate([table.ranks[heads], *(run.ranks_left() for run in self._runs)])
        prints = [table.prints[heads], *(run.prints_left() for run in self._runs)]
        run = _Run.of(rows, np.concatenate(prints), ranks)
        places = np.arange(run.count)
        sent = np.maximum.reduceat(np.where(run.rows.attempts > 0, places, -1), run.begins)
        lengths = run.ends - run.begins
        may_go = places > np.repeat(sent, lengths)
        behind = places - np.repeat(run.begins, lengths)
        # Every queue has a head: the keys of the run are those.
        may_stay = np.repeat(~closed[heads], lengths)
        over = sum(self._fresh.values()) - most
        for kept in _KEPT_OF_EACH:
            gone = may_go & (behind >= np.maximum(kept, may_stay))
            if np.count_nonzero(gone) >= over:
                break
        removed = run.rows.pick(gone)
        self._count(removed, -1)
        table.there[heads] = False
        table.behind[heads] = 0
        self._runs = []
        if not gone.all():
            self._lay_in(run.pick(~gone))
        return removed

    # -- heads -----------------------------------------------------------------------

    def _by_key(self, places: Places) -> Places:
        """In the order of keys, as runs have them."""
        return places[np.argsort(self._table.prints[places])]

    def _set_heads(self, places: Places, run: _Run, at: Int64s) -> None:
        """These rows of a run are the first of their queues now."""
        table = self._table
        table.there[places] = True
        table.ranks[places] = run.ranks[at]
        table.heads.due_ms[places] = run.rows.due_ms[at]
        table.heads.offsets[places] = run.rows.offsets[at]
        table.heads.attempts[places] = run.rows.attempts[at]
        assert table.heads.traits is not None
        table.heads.traits[places] = 0 if run.rows.traits is None else run.rows.traits[at]

    def _move_up(self, places: Places) -> None:
        """Give queues, which lose their heads, their next row; O(those that have one * runs)."""
        table = self._table
        table.there[places] = False
        places = self._by_key(places[table.behind[places] > 0])
        table.behind[places] -= 1
        prints = table.prints[places]
        ranks = np.full(len(places), _LAST)
        offsets = np.full(len(places), _LAST)
        whose = np.full(len(places), -1)
        found = []
        for number, run in enumerate(self._runs):
            queue = np.minimum(np.searchsorted(run.prints, prints), len(run.prints) - 1)
            found.append(queue)
            at = run.begins[queue]
            there = np.flatnonzero((run.prints[queue] == prints) & (at < run.ends[queue]))
            at = at[there]
            sooner = _before(run.ranks[at], run.rows.offsets[at], ranks[there], offsets[there])
            there, at = there[sooner], at[sooner]
            ranks[there], offsets[there] = run.ranks[at], run.rows.offsets[at]
            whose[there] = number
        assert (whose >= 0).all(), "a row behind a head is lost"
        for number, run in enumerate(self._runs):
            mine = np.flatnonzero(whose == number)
            if len(mine):
                self._set_heads(places[mine], run, run.take(found[number][mine]))
        self._runs = [run.compact() for run in self._runs if run.count]

    def _add(self, runs: list[_Run]) -> None:
        """Rows that come behind the heads there are; so that each run is twice the next."""
        new = [run for run in runs if run.count]
        count = sum(run.count for run in new)
        while new and self._runs and self._runs[-1].count < 2 * count:
            new.append(self._runs.pop())
            count += new[-1].count
        if new:
            self._runs.append(_Run.merged(new))

    def _recount(self) -> Int64s:
        """How many rows are behind the head of each key, by place; O(rows)."""
        behind = np.zeros_like(self._table.behind)
        for run in self._runs:
            places, known = self._table.find(run.prints)
            assert known.all(), "a key that has rows is not in the table"
            behind[places] += run.ends - run.begins
        return behind

    def _check(self) -> None:
        """Assert every invariant."""
        table = self._table
        table._check()
        rows = self.rows()
        assert len(np.unique(rows.offsets)) == rows.height == len(self)
        fresh = self._fresh.copy()
        self._count(rows, -1)
        assert not any(self._fresh.values()), "the count of what was never sent is wrong"
        self._fresh = fresh
        assert np.array_equal(table.behind, self._recount()), "the count of a queue is wrong"
        for run in self._runs:
            run._check()
            places, known = table.find(run.prints_left())
            assert known.all(), "a key that has rows is not in the table"
            assert table.there[places].all(), "a queue has no head"
            ranks, offsets = run.ranks_left(), run.rows_left().offsets
            before = _before(table.ranks[places], table.heads.offsets[places], ranks, offsets)
            assert before.all(), "a head is not the first"


class _Run:
    """Rows sorted by key, rank and offset; of each key the first are taken, one by one."""

    __slots__ = ("begins", "count", "ends", "prints", "ranks", "rows")

    def __init__(self, rows: Rows, ranks: Int64s, prints: Int64s) -> None:
        """``prints`` are those of the rows, which are in order."""
        self.rows = rows
        self.ranks = ranks
        self.begins: Int64s = np.flatnonzero(np.diff(prints, prepend=-1))
        self.ends: Int64s = np.append(self.begins, rows.height)[1:]
        self.prints = prints[self.begins]
        self.count = rows.height

    @classmethod
    def of(cls, rows: Rows, prints: Int64s, ranks: Int64s) -> _Run:
        """Rows in any order; key and rank of each."""
        at = _print_order(prints, ranks, rows.offsets)
        return cls(rows.pick(at), ranks[at], prints[at])

    def take(self, which: Places) -> Int64s:
        """Take the first row of each of these keys, by position; returns where they stand."""
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

    def ranks_left(self) -> Int64s:
        """The ranks of those rows."""
        return self.ranks if self.count == self.rows.height else self.ranks[self.left()]

    def prints_left(self) -> Int64s:
        """The keys of those rows."""
        return np.repeat(self.prints, self.ends - self.begins)

    def pick(self, which: Bools) -> _Run:
        """Some of the rows that were not taken."""
        at = self.left()[which]
        return _Run(self.rows.pick(at), self.ranks[at], self.prints_left()[which])

    @classmethod
    def merged(cls, runs: list[_Run]) -> _Run:
        """What is left of some."""
        if len(runs) == 1:
            return runs[0]
        return cls.of(
            Rows.concat([run.rows_left() for run in runs]),
            np.concatenate([run.prints_left() for run in runs]),
            np.concatenate([run.ranks_left() for run in runs]),
        )

    def compact(self) -> _Run:
        """Itself, or what is left of it if that is little."""
        if 4 * self.count >= self.rows.height:
            return self
        return self.pick(np.ones(self.count, bool))

    def _check(self) -> None:
        assert self.count == int((self.ends - self.begins).sum())
        prints, offsets = self.prints_left().tolist(), self.rows_left().offsets.tolist()
        keys = list(zip(prints, self.ranks_left().tolist(), offsets, strict=True))
        assert keys == sorted(keys), "a run is out of order"


def _before(ranks: Int64s, offsets: Int64s, other_ranks: Int64s, other_offsets: Int64s) -> Bools:
    """Which rows go before those beside them; bool[n]."""
    before: Bools = (ranks < other_ranks) | ((ranks == other_ranks) & (offsets < other_offsets))
    return before


def _print_order(prints: Int64s, ranks: Int64s, offsets: Int64s) -> Places:
    """The order by key, rank and offset; linear where rows are a few sorted runs."""
    low_rank, low_offset = int(ranks.min()), int(offsets.min())
    offset_bits = (int(offsets.max()) - low_offset).bit_length()
    rank_bits = (int(ranks.max()) - low_rank).bit_length()
    if _PRINT_BITS + rank_bits + offset_bits > _INT64_BITS:
        by_rank = order_of(ranks, offsets)
        return by_rank[np.argsort(prints[by_rank], kind="stable")]
    packed = (prints << (rank_bits + offset_bits)) | ((ranks - low_rank) << offset_bits)
    packed |= offsets - low_offset
    return argsort(packed)
