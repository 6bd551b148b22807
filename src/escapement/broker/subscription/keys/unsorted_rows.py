"""Rows behind the heads of their queues that are not sorted yet.

Many rows behind a head soon move up and need no sorting: the rows of many keys are found by one
pass over all rows. So rows stay here until a pass costs too much for the keys that it serves. Then
they are sorted together with the others (:mod:`~escapement.broker.subscription.keys.sorted_runs`).

The columns have spare room, so adding a few rows is cheap.

Invariants (``_check``): each row has the place of its key.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from escapement.broker.subscription.key_places import Places
from escapement.broker.subscription.keys.key_table import Bools, KeyTable
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Int64s

# The place of a removed row: the mark behind the last key's, which is always False.
_GONE: Final = -1
# New columns have room for this many times the rows.
_GROWTH: Final = 2


class Loose(NamedTuple):
    """Rows, with the rank and the key's place of each."""

    rows: Rows
    ranks: Int64s
    places: Places

    def pick(self, which: Int64s | Bools) -> Loose:
        """Return some of the rows."""
        at = np.flatnonzero(which) if which.dtype == bool else which
        return Loose(self.rows.pick(at), self.ranks[at], self.places[at])

    @staticmethod
    def room(height: int) -> Loose:
        """Return uninitialised columns for ``height`` rows."""
        due_ms, offsets, attempts, ranks, places = np.empty((5, height), np.int64)
        traits = np.empty(height, np.uint32)
        return Loose(Rows(due_ms, offsets, attempts, traits), ranks, places)

    def put(self, first: int, others: Loose) -> None:
        """Fill in other rows, from row ``first`` on."""
        (due_ms, offsets, attempts, traits), ranks, places = others
        to = slice(first, first + len(places))
        mine = self.rows
        assert mine.traits is not None
        mine.due_ms[to], mine.offsets[to], mine.attempts[to] = due_ms, offsets, attempts
        mine.traits[to] = 0 if traits is None else traits
        self.ranks[to], self.places[to] = ranks, places

    def first(self, height: int) -> Loose:
        """Return the first ``height`` rows, not copied."""
        return Loose(self.rows.pick(slice(0, height)), self.ranks[:height], self.places[:height])


class UnsortedRows:
    """The unsorted rows behind the heads of a key table."""

    __slots__ = ("_columns", "_height", "_layout", "_table", "count")

    def __init__(self, table: KeyTable) -> None:
        self._table = table
        self._layout = table.layout  # the table layout of the places
        self._columns = Loose.room(0)
        self._height = 0  # rows filled in, with removed ones
        self.count = 0  # rows, without removed ones

    def add(self, parts: list[Loose]) -> None:
        """Add rows."""
        self._follow()
        more = sum(part.rows.height for part in parts)
        if self._height + more > len(self._columns.places):
            self._lay_out(self.here(), more)
        for part in parts:
            self._columns.put(self._height, part)
            self._height += part.rows.height
        self.count += more

    def of(self, places: Places) -> Int64s:
        """Return the positions of the rows of these keys; O(rows)."""
        self._follow()
        marks = self._table.marks
        marks[places] = True
        found = np.flatnonzero(marks[self._all.places])
        marks[places] = False
        return found

    def first_of_each(self, at: Int64s) -> tuple[Int64s, Loose]:
        """Return the first row of each key among these positions, and its position."""
        (_, offsets, _, _), ranks, places = self._columns
        first = self._table.first_of_each(places[at], ranks[at], offsets[at])
        at = at[first]
        return at, self._columns.pick(at)

    def take(self, at: Int64s) -> None:
        """Remove the rows at these positions."""
        self._all.places[at] = _GONE
        self.count -= len(at)
        if 2 * self.count < self._height:
            self._lay_out(self.here(), 0)

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        gone = np.isin(self._all.rows.offsets, offsets) & (self._all.places != _GONE)
        self.take(np.flatnonzero(gone))

    def drain(self) -> Loose:
        """Remove and return all rows."""
        here = self.here()
        self._columns, self._height, self.count = Loose.room(0), 0, 0
        return here

    def here(self) -> Loose:
        """Return a copy of all rows, in no order."""
        self._follow()
        return self._all.pick(self._all.places != _GONE)

    @property
    def _all(self) -> Loose:
        """The rows filled in, not copied."""
        return self._columns.first(self._height)

    def _lay_out(self, here: Loose, more: int) -> None:
        """Replace the columns by ones with these rows, and room for ``more``."""
        self._height = here.rows.height
        self._columns = Loose.room(_GROWTH * (self._height + more))
        self._columns.put(0, here)

    def _follow(self) -> None:
        """Update the places of rows if the layout of the table has changed."""
        if self._layout == self._table.layout:
            return
        self._layout = self._table.layout
        here = self._all.pick(self._all.places != _GONE)
        places, known = self._table.find(self._table.key_hashes_of(here.rows))
        assert known.all(), "a key that has rows is not in the table"
        self._lay_out(here._replace(places=places), 0)

    def _check(self) -> None:
        """Assert every invariant."""
        here = self.here()
        assert here.rows.height == self.count
        key_hashes = self._table.key_hashes[here.places]
        assert np.array_equal(key_hashes, self._table.key_hashes_of(here.rows)), (
            "a row is misplaced"
        )
