"""Rows behind the heads of their keys that are not sorted yet.

Much of what comes behind a head soon moves up, and need not be sorted for it: those of many keys
are found by looking at all rows. So what comes stays here until it is much for what is sought in
it, and then it is sorted together with the rest (:mod:`~escapement.broker.subscription.keyruns`).

Invariants (``_check``): each row has the place of its key.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from escapement.broker.subscription.keytable import Bools, KeyTable, Places
from escapement.broker.subscription.ready import Rows
from escapement.message import Int64s

# The place of a row that is not here any more: the mark behind the last key's, always False.
_GONE: Final = -1


class Loose(NamedTuple):
    """Rows, with the rank and the place of each."""

    rows: Rows
    ranks: Int64s
    places: Places

    def pick(self, which: Int64s | Bools) -> Loose:
        """Some of them."""
        at = np.flatnonzero(which) if which.dtype == bool else which
        return Loose(self.rows.pick(at), self.ranks[at], self.places[at])

    @staticmethod
    def concat(parts: list[Loose]) -> Loose:
        """The parts one below the other."""
        rows, ranks, places = zip(*parts, strict=True)
        return Loose(Rows.concat(list(rows)), np.concatenate(ranks), np.concatenate(places))


_NONE = Loose(Rows.none(), np.zeros(0, np.int64), np.zeros(0, np.intp))


class KeyLoose:
    """See the module's docstring."""

    __slots__ = ("_all", "_layout", "_table", "count")

    def __init__(self, table: KeyTable) -> None:
        self._table = table
        self._layout = table.layout  # which the places are of
        self._all = _NONE
        self.count = 0  # rows that are here

    def add(self, parts: list[Loose]) -> None:
        """Take in rows."""
        self._follow()
        self._all = Loose.concat([self._all, *(part for part in parts if part.rows.height)])
        self.count += sum(part.rows.height for part in parts)

    def of(self, places: Places) -> Int64s:
        """Where rows of these keys stand here; O(rows)."""
        self._follow()
        marks = self._table.marks
        marks[places] = True
        found = np.flatnonzero(marks[self._all.places])
        marks[places] = False
        return found

    def first_of_each(self, at: Int64s) -> tuple[Int64s, Loose]:
        """Of the rows that stand there the first of each key; where these stand."""
        some = self._all.pick(at)
        first = self._table.first_of_each(some.places, some.ranks, some.rows.offsets)
        return at[first], some.pick(first)

    def take(self, at: Int64s) -> None:
        """Remove the rows that stand there."""
        self._all.places[at] = _GONE
        self.count -= len(at)
        if 2 * self.count < self._all.rows.height:
            self._all = self.here()

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        gone = np.isin(self._all.rows.offsets, offsets) & (self._all.places != _GONE)
        self.take(np.flatnonzero(gone))

    def drain(self) -> Loose:
        """Remove and return everything."""
        here, self._all, self.count = self.here(), _NONE, 0
        return here

    def here(self) -> Loose:
        """A copy of everything, in no order."""
        self._follow()
        return self._all.pick(self._all.places != _GONE)

    def _follow(self) -> None:
        """Have the places of the table as it is now."""
        if self._layout == self._table.layout:
            return
        self._layout = self._table.layout
        here = self._all.pick(self._all.places != _GONE)
        places, known = self._table.find(self._table.prints_of(here.rows))
        assert known.all(), "a key that has rows is not in the table"
        self._all = here._replace(places=places)

    def _check(self) -> None:
        """Assert every invariant."""
        here = self.here()
        assert here.rows.height == self.count
        prints = self._table.prints[here.places]
        assert np.array_equal(prints, self._table.prints_of(here.rows)), "a row is misplaced"
