"""A table of keys: whether each is busy, and the head of its queue.

The table has the keys that are in use: a message of the key is ready or holds it. Keys have
*places* in the table, in no order. Code that works with many keys finds their places once, by key
hash (see ``escapement.traits``), and then works with columns. The table has all columns by key: the
holders (:mod:`~escapement.broker.subscription.keyhold`), and the queue heads with the number of
rows behind them (:mod:`~escapement.broker.subscription.keyqueues`).

Places are valid until the next ``place``. Unused keys are removed when a new key finds no room, so
memory follows the ready and held messages. Behind the last key, the columns are False: not busy,
and without a head.

Invariants (``_check``): each key hash is in the table once, and is found at its place.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.numbermap import NumberMap
from escapement.broker.subscription.ready import Rows, goes_before, order_of
from escapement.message import Int64s
from escapement.traits import PRINTS, SLOTS, have_keys, key_prints, slots_of_prints

# The key hash of a message without a key, if the order is by key.
NO_PRINT: Final = PRINTS
NO_PLACE: Final = -1

# New columns have room for this many times the keys in use.
_GROWTH: Final = 2

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

# Layout numbers of all tables. A changed number means that remembered places are invalid.
_layouts = count()


class Placed(NamedTuple):
    """Places, and the table layout in which they are valid; ``NO_PLACE`` for no key."""

    layout: int
    places: Places

    def pick(self, which: slice | Int64s) -> Placed:
        """Return some of the places."""
        return Placed(self.layout, self.places[which])


class KeyTable:
    """The keys in use of one subscription, in columns by place.

    Args:
      whole: give all messages one key, 0.
    """

    __slots__ = (
        "_claims",
        "_height",
        "_places",
        "behind",
        "busy",
        "heads",
        "holders",
        "layout",
        "marks",
        "prints",
        "ranks",
        "there",
        "whole",
    )

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self._places = NumberMap()  # by key hash
        self._height = 0  # keys, with unused ones
        self._claims: Int64s = np.zeros(0, np.int64)  # scratch of ``first_of_each``
        self.marks: Bools = np.zeros(1, bool)  # scratch, False between calls; one more than keys
        self.layout = next(_layouts)  # changes whenever places change
        self.prints: Int64s = np.zeros(0, np.int64)
        self.busy: Bools = np.zeros(0, bool)
        self.holders: Int64s = np.zeros(0, np.int64)  # the offset that holds each busy key
        self.there: Bools = np.zeros(0, bool)  # whether the key has a head
        self.behind: Int64s = np.zeros(0, np.int64)  # how many are behind the head
        self.ranks: Int64s = np.zeros(0, np.int64)  # of heads
        self.heads = Rows.none()._replace(traits=np.zeros(0, np.uint32))

    def prints_of(self, rows: Rows) -> Int64s:
        """Return the key hash of each row, ``NO_PRINT`` for none; int64[n]."""
        if self.whole:
            return np.zeros(rows.height, np.int64)
        if rows.traits is None:
            return np.full(rows.height, NO_PRINT)
        prints = key_prints(rows.traits)
        keyed = have_keys(rows.traits)
        return prints if keyed.all() else np.where(keyed, prints, NO_PRINT)

    def find(self, prints: Int64s) -> tuple[Places, Bools]:
        """Return the places of these keys, and which are in the table; intp[n], bool[n]."""
        places = self._places.get(prints)
        known = places >= 0
        return (places if known.all() else np.where(known, places, 0)), known

    def place(self, prints: Int64s) -> Places:
        """Return the places of these keys; add missing keys, which may change all places."""
        places, known = self.find(prints)
        if known.all():
            return places
        unknown = np.flatnonzero(~known)
        new = np.sort(prints[unknown])
        new = new[np.diff(new, prepend=-1) > 0]
        if self._height + len(new) > len(self.prints):
            self._make_room(len(new), places[known])
            places = self._places.get(prints)
        at = np.arange(self._height, self._height + len(new))
        self._height += len(new)
        self.prints[at] = new
        self._places.add(new, at)
        places[unknown] = self._places.get(prints[unknown])
        return places

    def _make_room(self, more: int, wanted: Places) -> None:
        """Remove unused keys except those at ``wanted``; make room for ``more`` keys."""
        stay = self.busy | self.there
        stay[wanted] = True
        kept = np.flatnonzero(stay)
        room = _GROWTH * (len(kept) + more)

        def column(old: npt.NDArray[Any]) -> npt.NDArray[Any]:
            new = np.zeros(room, old.dtype)
            new[: len(kept)] = old[kept]
            return new

        self.prints = column(self.prints)
        self.busy, self.there = column(self.busy), column(self.there)
        self.holders, self.behind = column(self.holders), column(self.behind)
        self.ranks = column(self.ranks)
        heads = self.heads
        assert heads.traits is not None
        self.heads = Rows(
            column(heads.due_ms),
            column(heads.offsets),
            column(heads.attempts),
            column(heads.traits),
        )
        self._claims, self.marks = np.zeros(room, np.int64), np.zeros(room + 1, bool)
        self.layout = next(_layouts)
        self._height = len(kept)
        self._places = NumberMap()
        self._places.add(self.prints[: len(kept)], np.arange(len(kept)))

    def first_of_each(self, places: Places, ranks: Int64s, offsets: Int64s) -> Int64s:
        """Return the positions of the first row of each key, by rank and offset.

        Linear, except for rows that precede, in that order, an earlier row of the column.
        """
        at = np.arange(len(places))
        # The last claim of a key wins, so rows claim in reverse: the first row in the column wins.
        self._claims[places[::-1]] = at[::-1]
        winner = self._claims[places]
        late = np.flatnonzero(winner != at)
        if not len(late):
            return at
        winner = winner[late]
        late = late[goes_before(ranks[late], offsets[late], ranks[winner], offsets[winner])]
        late = late[order_of(ranks[late], offsets[late])][::-1]
        self._claims[places[late]] = late
        return np.flatnonzero(self._claims[places] == at)

    def slots(self, which: Bools) -> Bools:
        """Return the slots of these keys; bool[SLOTS]."""
        found = np.zeros(SLOTS, bool)
        found[slots_of_prints(self.prints[which])] = True
        return found

    def among(self, slots: Bools) -> Bools:
        """Return which keys have one of these slots; bool[keys]."""
        found: Bools = slots[slots_of_prints(self.prints)]
        return found

    def _check(self) -> None:
        """Assert every invariant."""
        self._places._check()
        assert len(self._places) == self._height <= len(self.prints)
        prints = self.prints[: self._height]
        assert np.array_equal(self._places.get(prints), np.arange(self._height)), "a key is lost"
        assert not (self.busy | self.there)[self._height :].any(), "an unused place is marked"
        assert not self.marks.any()
