"""Sorted rows behind the heads of their queues: a log-structured tree of runs.

A run is sorted by key, rank and offset, and rows are taken from the beginning of each key. Each run
is at least twice as long as the next. So a row is sorted only a few times, and the next rows of
many keys are found by one search in each run.

Pure: it does not know which keys have a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.subscription.key_places import Places
from escapement.broker.subscription.keys.key_table import Bools
from escapement.broker.subscription.priorities.ready import Rows, goes_before, order_of
from escapement.message import Int64s
from escapement.sorting import argsort

# The rank and the offset of a missing row: above all others.
_LAST: Final = (1 << 63) - 1
_KEY_HASH_BITS: Final = 23
_INT64_BITS: Final = 63  # without the sign


class Found(NamedTuple):
    """The first rows of some keys; columns of equal height."""

    ranks: Int64s  # the largest number if there is no row
    offsets: Int64s  # the same
    numbers: Int64s  # the number of each one's run
    queues: list[Int64s]  # for each run, the position of each key


class SortedRuns:
    """The sorted rows behind the heads of a key table."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(run.count for run in self._runs)

    def add(self, rows: Rows, key_hashes: Int64s, ranks: Int64s) -> None:
        """Add rows in any order, with the key hash and rank of each."""
        count, older = rows.height, []
        while self._runs and self._runs[-1].count < 2 * count:
            older.append(self._runs.pop())
            count += older[-1].count
        if not count:
            return
        if older:
            rows = Rows.concat([rows, *(run.rows_left() for run in older)])
            key_hashes = np.concatenate([key_hashes, *(run.key_hashes_left() for run in older)])
            ranks = np.concatenate([ranks, *(run.ranks_left() for run in older)])
        self._runs.append(_Run.of(rows, key_hashes, ranks))

    def first_of(self, key_hashes: Int64s) -> Found:
        """Return the first row of each of these keys; O(keys * runs), faster if they ascend."""
        ranks, offsets = np.full(len(key_hashes), _LAST), np.full(len(key_hashes), _LAST)
        numbers = np.full(len(key_hashes), -1)
        queues = []
        for number, run in enumerate(self._runs):
            queue = np.minimum(np.searchsorted(run.key_hashes, key_hashes), len(run.key_hashes) - 1)
            queues.append(queue)
            at = run.begins[queue]
            there = np.flatnonzero((run.key_hashes[queue] == key_hashes) & (at < run.ends[queue]))
            at = at[there]
            sooner = goes_before(run.ranks[at], run.rows.offsets[at], ranks[there], offsets[there])
            there, at = there[sooner], at[sooner]
            ranks[there], offsets[there] = run.ranks[at], run.rows.offsets[at]
            numbers[there] = number
        return Found(ranks, offsets, numbers, queues)

    def take(self, found: Found, which: Int64s) -> Iterator[tuple[Int64s, Rows, Int64s]]:
        """Remove rows that were just found; yield positions in ``found``, rows and ranks by run.

        The caller must exhaust the iterator.
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
        """Return a copy of all rows, in no order."""
        return Rows.concat([run.rows_left() for run in self._runs])

    def _check(self) -> None:
        """Assert every invariant."""
        for run in self._runs:
            run._check()


class _Run:
    """Rows sorted by key, rank and offset; rows are taken from the beginning of each key."""

    __slots__ = ("begins", "count", "ends", "key_hashes", "ranks", "rows")

    def __init__(self, rows: Rows, ranks: Int64s, key_hashes: Int64s) -> None:
        """Create a run of sorted rows, with the rank and key hash of each."""
        self.rows = rows
        self.ranks = ranks
        self.begins: Int64s = np.flatnonzero(np.diff(key_hashes, prepend=-1))
        self.ends: Int64s = np.append(self.begins, rows.height)[1:]
        self.key_hashes = key_hashes[self.begins]
        self.count = rows.height

    @classmethod
    def of(cls, rows: Rows, key_hashes: Int64s, ranks: Int64s) -> _Run:
        """Create a run of rows in any order, with the key hash and rank of each."""
        at = print_order(key_hashes, ranks, rows.offsets)
        return cls(rows.pick(at), ranks[at], key_hashes[at])

    def take(self, which: Places) -> Int64s:
        """Take the first row of each key at these positions; return the positions of the rows."""
        at = self.begins[which]
        self.begins[which] += 1
        self.count -= len(at)
        return at

    def left(self) -> Int64s:
        """Return the positions of the rows that were not taken; ascending."""
        lengths = self.ends - self.begins
        skipped = self.begins - (np.cumsum(lengths) - lengths)
        places: Int64s = np.arange(self.count) + np.repeat(skipped, lengths)
        return places

    def rows_left(self) -> Rows:
        """Return the rows that were not taken."""
        return self.rows if self.count == self.rows.height else self.rows.pick(self.left())

    def ranks_left(self) -> Int64s:
        """Return the ranks of the rows that were not taken."""
        return self.ranks if self.count == self.rows.height else self.ranks[self.left()]

    def key_hashes_left(self) -> Int64s:
        """Return the key hashes of the rows that were not taken."""
        return np.repeat(self.key_hashes, self.ends - self.begins)

    def pick(self, which: Bools) -> _Run:
        """Return a run of some of the rows that were not taken."""
        at = self.left()[which]
        return _Run(self.rows.pick(at), self.ranks[at], self.key_hashes_left()[which])

    def compact(self) -> _Run:
        """Return this run, or a copy of its remaining rows if most are taken."""
        if 4 * self.count >= self.rows.height:
            return self
        return self.pick(np.ones(self.count, bool))

    def _check(self) -> None:
        assert self.count == int((self.ends - self.begins).sum())
        key_hashes, offsets = self.key_hashes_left().tolist(), self.rows_left().offsets.tolist()
        keys = list(zip(key_hashes, self.ranks_left().tolist(), offsets, strict=True))
        assert keys == sorted(keys), "a run is out of order"


def print_order(key_hashes: Int64s, ranks: Int64s, offsets: Int64s) -> Places:
    """Return the order by key, rank and offset; linear if rows are a few sorted runs."""
    low_rank, low_offset = int(ranks.min()), int(offsets.min())
    offset_bits = (int(offsets.max()) - low_offset).bit_length()
    rank_bits = (int(ranks.max()) - low_rank).bit_length()
    if _KEY_HASH_BITS + rank_bits + offset_bits > _INT64_BITS:
        by_rank = order_of(ranks, offsets)
        return by_rank[np.argsort(key_hashes[by_rank], kind="stable")]
    packed = (key_hashes << (rank_bits + offset_bits)) | ((ranks - low_rank) << offset_bits)
    packed |= offsets - low_offset
    return argsort(packed)
