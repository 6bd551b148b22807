"""Rows behind the heads of their keys, sorted: a log-structured tree of runs.

A run is sorted by key, rank and offset, and of each key the first row is taken, one by one. Each
run is at least twice as long as the next, so what comes is sorted a few times at most, and the
next row of many keys is found by a search in each run.

Pure: it does not know which keys have a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.subscription.keytable import Bools, Places
from escapement.broker.subscription.ready import Rows, goes_before, order_of
from escapement.message import Int64s
from escapement.sorting import argsort

# The rank and the offset of a row that is not there.
_LAST: Final = (1 << 63) - 1
_PRINT_BITS: Final = 23
_INT64_BITS: Final = 63  # without the sign


class Found(NamedTuple):
    """The first rows of some keys; columns of as many."""

    ranks: Int64s  # the largest number where there is none
    offsets: Int64s  # the same
    numbers: Int64s  # in which run each is
    queues: list[Int64s]  # and of each run, where each key stands


class KeyRuns:
    """See the module's docstring."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(run.count for run in self._runs)

    def add(self, rows: Rows, prints: Int64s, ranks: Int64s) -> None:
        """Take in rows in any order; key and rank of each."""
        count, older = rows.height, []
        while self._runs and self._runs[-1].count < 2 * count:
            older.append(self._runs.pop())
            count += older[-1].count
        if not count:
            return
        if older:
            rows = Rows.concat([rows, *(run.rows_left() for run in older)])
            prints = np.concatenate([prints, *(run.prints_left() for run in older)])
            ranks = np.concatenate([ranks, *(run.ranks_left() for run in older)])
        self._runs.append(_Run.of(rows, prints, ranks))

    def first_of(self, prints: Int64s) -> Found:
        """The first row of each of these keys; O(keys * runs), quicker where they ascend."""
        ranks, offsets = np.full(len(prints), _LAST), np.full(len(prints), _LAST)
        numbers = np.full(len(prints), -1)
        queues = []
        for number, run in enumerate(self._runs):
            queue = np.minimum(np.searchsorted(run.prints, prints), len(run.prints) - 1)
            queues.append(queue)
            at = run.begins[queue]
            there = np.flatnonzero((run.prints[queue] == prints) & (at < run.ends[queue]))
            at = at[there]
            sooner = goes_before(run.ranks[at], run.rows.offsets[at], ranks[there], offsets[there])
            there, at = there[sooner], at[sooner]
            ranks[there], offsets[there] = run.ranks[at], run.rows.offsets[at]
            numbers[there] = number
        return Found(ranks, offsets, numbers, queues)

    def take(self, found: Found, which: Int64s) -> Iterator[tuple[Int64s, Rows, Int64s]]:
        """Remove rows that were found just now: of each run, which they are, they, and their ranks.

        To be gone through to the end.
        """
        for number, run in enumerate(self._runs):
            mine = which[found.numbers[which] == number]
            if len(mine):
                at = run.take(found.queues[number][mine])
                yield mine, run.rows.pick(at), run.ranks[at]
        self._runs = [run.compact() for run in self._runs if run.count]

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        stay = [~np.isin(run.rows_left().offsets, offsets) for run in self._runs]
        runs = zip(self._runs, stay, strict=True)
        self._runs = [run.pick(which) for run, which in runs if which.any()]

    def rows(self) -> Rows:
        """A copy of everything, in no order."""
        return Rows.concat([run.rows_left() for run in self._runs])

    def _check(self) -> None:
        """Assert every invariant."""
        for run in self._runs:
            run._check()


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
        at = print_order(prints, ranks, rows.offsets)
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


def print_order(prints: Int64s, ranks: Int64s, offsets: Int64s) -> Places:
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
