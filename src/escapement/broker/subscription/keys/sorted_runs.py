"""Sorted rows behind the heads of their queues: a log-structured tree of runs.

These are the ready messages of a subscription with an order that are not the first of their key. A
run is sorted by key hash, rank and offset, and rows are taken from the beginning of each key. A new
run is merged with shorter ones, so each run is at least twice as long as the next. So a row is
sorted only a few times, and the next rows of many keys are found by one search in each run.

Pure: the heads themselves are in the key table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from escapement.broker.subscription.keys.key_table import Indexes, KeyTable
from escapement.broker.subscription.priorities.ready import Rows, goes_before
from escapement.message import Int64s
from escapement.sorting import argsort
from escapement.storage.index.keys import sorted_order

# The rank and the offset that stand for a missing row: above all others.
_LAST: Final = (1 << 63) - 1
_KEY_HASH_BITS: Final = 23
_INT64_BITS: Final = 63  # without the sign bit


class SortedRuns:
    """The sorted rows behind the heads of a key table.

    Args:
      ageing_ms: how many ms a step of priority is worth; see ``Rows.ranks``.
    """

    __slots__ = ("_ageing_ms", "_runs", "_table")

    def __init__(self, table: KeyTable, ageing_ms: int) -> None:
        self._table = table
        self._ageing_ms = ageing_ms
        self._runs: list[_Run] = []

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(run.count for run in self._runs)

    def add(self, rows: Rows) -> None:
        """Add rows, in any order, as a new run; merge it with shorter runs."""
        parts, count = [rows], rows.height
        while self._runs and self._runs[-1].count < 2 * count:
            run = self._runs.pop()
            parts.append(run.left())
            count += run.count
        if count:
            self._runs.append(self._sorted(Rows.concat(parts)))

    def take_first(self, key_hashes: Int64s) -> Iterator[tuple[Int64s, Rows]]:
        """Remove the first row of each of these keys, by rank and offset.

        Yields, run by run, positions in ``key_hashes`` and the row of each. The caller must exhaust
        the iterator. O(keys * runs), and faster if the key hashes ascend.
        """
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
        for number, run in enumerate(self._runs):
            mine = np.flatnonzero(numbers == number)
            if len(mine):
                yield mine, run.take(queues[number][mine])
        self._runs = [
            run if 4 * run.count >= run.rows.height else self._sorted(run.left())
            for run in self._runs
            if run.count
        ]

    def rows(self) -> Rows:
        """Return a copy of all rows, in no order."""
        return Rows.concat([run.left() for run in self._runs])

    def _sorted(self, rows: Rows) -> _Run:
        return _Run(rows, self._table.key_hashes_of(rows), rows.ranks(self._ageing_ms))

    def _check(self) -> None:
        """Assert every invariant."""
        for run in self._runs:
            run._check()


class _Run:
    """Rows sorted by key hash, rank and offset; they are taken from the beginning of each key."""

    __slots__ = ("begins", "count", "ends", "key_hashes", "ranks", "rows")

    def __init__(self, rows: Rows, key_hashes: Int64s, ranks: Int64s) -> None:
        """Create a run of rows in any order, with the key hash and rank of each."""
        at = queue_order(key_hashes, ranks, rows.offsets)
        self.rows, self.ranks, key_hashes = rows.pick(at), ranks[at], key_hashes[at]
        self.begins: Int64s = np.flatnonzero(np.diff(key_hashes, prepend=-1))
        self.ends: Int64s = np.append(self.begins, rows.height)[1:]
        self.key_hashes = key_hashes[self.begins]
        self.count = rows.height

    def take(self, which: Int64s) -> Rows:
        """Remove the first row of each of these keys; return the rows.

        Args:
          which: the positions of the keys in ``self.key_hashes``.
        """
        at = self.begins[which]
        self.begins[which] += 1
        self.count -= len(at)
        return self.rows.pick(at)

    def left(self) -> Rows:
        """Return the rows that were not taken."""
        return self.rows.pick(self._left())

    def _left(self) -> Int64s:
        """Return the positions of the rows that were not taken; ascending."""
        lengths = self.ends - self.begins
        skipped = self.begins - (np.cumsum(lengths) - lengths)
        positions: Int64s = np.arange(self.count) + np.repeat(skipped, lengths)
        return positions

    def _check(self) -> None:
        lengths = self.ends - self.begins
        assert self.count == int(lengths.sum())
        at = self._left()
        columns = np.repeat(self.key_hashes, lengths), self.ranks[at], self.rows.offsets[at]
        keys = list(zip(*(column.tolist() for column in columns), strict=True))
        assert keys == sorted(keys), "a run is out of order"


def queue_order(key_hashes: Int64s, ranks: Int64s, offsets: Int64s) -> Indexes:
    """Return the positions that sort rows by key hash, rank and offset.

    O(n) if the rows consist of a few sorted runs.
    """
    low_rank, low_offset = int(ranks.min()), int(offsets.min())
    offset_bits = (int(offsets.max()) - low_offset).bit_length()
    rank_bits = (int(ranks.max()) - low_rank).bit_length()
    if _KEY_HASH_BITS + rank_bits + offset_bits > _INT64_BITS:
        by_rank = sorted_order(ranks, offsets)
        return by_rank[np.argsort(key_hashes[by_rank], kind="stable")]
    packed = (key_hashes << (rank_bits + offset_bits)) | ((ranks - low_rank) << offset_bits)
    packed |= offsets - low_offset
    return argsort(packed)
