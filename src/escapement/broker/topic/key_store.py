"""The stored keys of a topic: columns in sorted runs, which are merged.

A *key* is a digest of 16 bytes. For each message with a key there is an *entry*: its digest, its
offset, and more numbers. Entries are in *runs*: columns sorted by the first half of the digest.
Small runs are merged into larger ones, so looking up a batch takes one ``searchsorted`` in each of
a few runs.

The journal has the entries of each group commit, and a checkpoint writes those that are *unstated*:
stored since the last checkpoint. Sometimes it writes all entries again. A start loads those of the
checkpoint, and then those of the journal.

All topics share a budget for their entries. Pure: no clock and no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from escapement.dedup import DIGEST, Digests, halves
from escapement.message import Bools, Int64s, UInt64s
from escapement.storage.encoding.dedup_keys import KeyTable
from escapement.storage.encoding.replace_keys import ReplaceTable

# The largest run that a merge may produce. Sorting a run of this size takes about a millisecond.
_RUN_KEYS: Final = 1 << 18
# The most entries in one row of a checkpoint.
_PIECE_KEYS: Final = 1 << 16

# The columns of entries: the digest, the offset, then more int64 columns.
T = TypeVar("T", KeyTable, ReplaceTable)


class KeyBudget:
    """The number of entries that all topics have together, and the limit on it."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Run(NamedTuple):
    """Entries sorted by the first half of their digests; columns of equal length."""

    first: UInt64s  # the digest's first half
    second: UInt64s
    numbers: tuple[Int64s, ...]  # the other columns of the table, beginning with the offset

    @property
    def offsets(self) -> Int64s:
        return self.numbers[0]

    @classmethod
    def of(cls, table: KeyTable | ReplaceTable) -> Run:
        parts = halves(table.digests)
        # A stable sort is fast here, because it merges the sorted parts of the table.
        order = np.argsort(parts[:, 0], kind="stable")
        numbers = tuple(column[order] for column in table[1:])
        return cls(parts[order, 0], parts[order, 1], numbers)

    def take(self, rows: Bools) -> Run:
        return Run(self.first[rows], self.second[rows], tuple(one[rows] for one in self.numbers))

    @property
    def digests(self) -> Digests:
        return np.stack([self.first, self.second], axis=1).view(DIGEST).reshape(-1)


class KeyStore(Generic[T]):
    """The stored keys of one topic, as tables of the type ``table``."""

    __slots__ = ("_budget", "_loaded_to", "_runs", "_table", "_unstated")

    def __init__(self, table: type[T], budget: KeyBudget) -> None:
        self._table: type[T] = table
        self._budget = budget
        self._runs: list[Run] = []
        self._unstated: list[T] = []  # entries stored since the last checkpoint, by offset
        self._loaded_to = -1  # the highest offset that was loaded from the checkpoint

    def __len__(self) -> int:
        return sum(len(run.offsets) for run in self._runs)

    @property
    def is_used(self) -> bool:
        """Whether the topic has entries."""
        return bool(self._runs or self._unstated)

    def find_rows(self, digests: Digests, since_ms: int | None = None) -> list[Int64s]:
        """Return the columns of the entry with the highest offset of each key; -1 for no entry.

        Args:
          digests: the digests of the keys, V16[n].
          since_ms: ignore entries whose second number, a time, is this or earlier.

        Returns:
          A list with int64[n] for each number of an entry: the offset and the numbers after it.
        """
        width = len(self._table._fields) - 1
        found = [np.full(len(digests), -1, np.int64) for _ in range(width)]
        if self._runs:
            parts = halves(digests)
            first, second = np.ascontiguousarray(parts[:, 0]), parts[:, 1]
            for run in self._runs:
                _find(run, first, second, since_ms, found)
        return found

    def keep(self, wanted: Callable[[Run], Bools]) -> None:
        """Remove all entries but those that ``wanted`` returns for a run."""
        before = len(self)
        kept = [run.take(wanted(run)) for run in self._runs]
        self._runs = [run for run in kept if len(run.offsets)]
        self._budget.used -= before - len(self)

    def drop(self) -> None:
        """Remove all entries and give back their share of the budget: the topic was deleted."""
        self._budget.used -= len(self)
        self._budget = KeyBudget(0)
        self._runs = []

    def add(self, table: T) -> None:
        """Add entries, which the next checkpoint writes."""
        self._unstated.append(table)
        self._insert(table)

    # -- what checkpoints write, and a start reads -----------------------------------

    def take_unstated(self) -> list[T]:
        """Return the entries stored since the last checkpoint, in pieces of bounded size."""
        tables, self._unstated = self._unstated, []
        return _pieces(self._table.concat(tables)) if tables else []

    def all_keys(self) -> list[T]:
        """Return all entries, in pieces of bounded size, for a checkpoint to write."""
        self._unstated = []
        tables = [self._table(run.digests, *run.numbers) for run in self._runs]
        return [piece for table in tables for piece in _pieces(table)]

    def load(self, table: T) -> None:
        """Add entries from a checkpoint."""
        self._budget.used += len(table.offsets)
        self._loaded_to = max(self._loaded_to, int(table.offsets.max(initial=-1)))
        self._insert(table)

    def recover(self, table: T) -> None:
        """Add entries from the journal, except those that ``load`` added from the checkpoint."""
        fresh = table.offsets > self._loaded_to
        if fresh.any():
            table = table.take(fresh)
            self._budget.used += len(table.offsets)
            self.add(table)

    def _insert(self, table: T) -> None:
        if not len(table.offsets):
            return
        self._runs.append(Run.of(table))
        while len(self._runs) > 1:
            one, other = self._runs[-2:]
            together = len(one.offsets) + len(other.offsets)
            if len(one.offsets) > 2 * len(other.offsets) or together > _RUN_KEYS:
                return
            tables = [self._table(run.digests, *run.numbers) for run in (one, other)]
            self._runs[-2:] = [Run.of(self._table.concat(tables))]


def _find(
    run: Run, first: UInt64s, second: UInt64s, since_ms: int | None, found: list[Int64s]
) -> None:
    """Update ``found`` with the entry that has the highest offset of each key in the run.

    Costs O(n log run), and more if many keys of the run have the same first half.

    Args:
      first, second: the halves of the digests to find.
      since_ms: see ``KeyStore.find_rows``.
      found: the numbers of the entry found so far for each digest, or -1.
    """
    at = np.searchsorted(run.first, first)
    rows = np.flatnonzero(at < len(run.first))
    while len(rows):
        rows = rows[run.first[at[rows]] == first[rows]]
        run_rows = at[rows]
        better = (run.second[run_rows] == second[rows]) & (run.offsets[run_rows] > found[0][rows])
        if since_ms is not None:
            better &= run.numbers[1][run_rows] > since_ms
        hits, run_hits = rows[better], run_rows[better]
        for column, number in zip(found, run.numbers, strict=True):
            column[hits] = number[run_hits]
        at[rows] += 1
        rows = rows[at[rows] < len(run.first)]


def _pieces(table: T) -> list[T]:
    return [
        table.take(slice(low, low + _PIECE_KEYS))
        for low in range(0, len(table.offsets), _PIECE_KEYS)
    ]
