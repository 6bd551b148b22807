"""A table of keys: of each that matters now whether it is busy, and the first of its queue.

A key matters while a message of it is ready or holds it. Keys have *places* in the table, in no
order; whoever works with many keys finds their places once, by their prints (see
``escapement.traits``), and then works with columns. What several ask about a key stands here
together: who holds it (:mod:`~escapement.broker.subscription.keyhold`), and the head of its queue,
with how many are behind it (:mod:`~escapement.broker.subscription.keyqueues`).

Places are good until the next ``place``. Keys that do not matter any more go when there is no
room for another: memory follows what is ready and held. Behind the last key the columns say of
nobody that it is busy, or has a head.

Invariants (``_check``): each print stands once, and is found where it stands.
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

# The print of what has none: a message without a key, where the order is by key.
NO_PRINT: Final = PRINTS
NO_PLACE: Final = -1

# Room for so many times the keys that matter, where there is too little.
_GROWTH: Final = 2

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

# Of all tables that there ever are: whoever remembers places knows whether they are still good.
_layouts = count()


class Placed(NamedTuple):
    """Places that were good when the table was laid out so; ``NO_PLACE`` for what has no key."""

    layout: int
    places: Places

    def pick(self, which: slice | Int64s) -> Placed:
        """Some of them."""
        return Placed(self.layout, self.places[which])


class KeyTable:
    """See the module's docstring.

    Args:
      whole: everything has one key, 0.
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
        self._places = NumberMap()  # by print
        self._height = 0  # keys, with those that do not matter any more
        self._claims: Int64s = np.zeros(0, np.int64)  # of rows, for as long as one call takes
        self.marks: Bools = np.zeros(1, bool)  # False between calls; one more than there are keys
        self.layout = next(_layouts)  # another whenever places change
        self.prints: Int64s = np.zeros(0, np.int64)
        self.busy: Bools = np.zeros(0, bool)
        self.holders: Int64s = np.zeros(0, np.int64)  # offsets, where a key is busy
        self.there: Bools = np.zeros(0, bool)  # whether there is a head
        self.behind: Int64s = np.zeros(0, np.int64)  # how many are behind the head
        self.ranks: Int64s = np.zeros(0, np.int64)  # of heads
        self.heads = Rows.none()._replace(traits=np.zeros(0, np.uint32))

    def prints_of(self, rows: Rows) -> Int64s:
        """The key of each row, ``NO_PRINT`` for none; int64[n]."""
        if self.whole:
            return np.zeros(rows.height, np.int64)
        if rows.traits is None:
            return np.full(rows.height, NO_PRINT)
        prints = key_prints(rows.traits)
        keyed = have_keys(rows.traits)
        return prints if keyed.all() else np.where(keyed, prints, NO_PRINT)

    def find(self, prints: Int64s) -> tuple[Places, Bools]:
        """Where these keys stand, and which are here at all; intp[n], bool[n]."""
        places = self._places.get(prints)
        known = places >= 0
        return (places if known.all() else np.where(known, places, 0)), known

    def place(self, prints: Int64s) -> Places:
        """Where these keys stand; those that are not here are added, and then places change."""
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
        """Let go of the keys that do not matter, but for these; have room for ``more`` others."""
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
        """Of rows with these keys the first of each, by rank and offset: their positions.

        Linear, but for those that come after one of their key which they go before.
        """
        at = np.arange(len(places))
        # Of several rows of a key the last that claims it has it: that is the first of them.
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
        """The slots of these keys; bool[SLOTS]."""
        found = np.zeros(SLOTS, bool)
        found[slots_of_prints(self.prints[which])] = True
        return found

    def among(self, slots: Bools) -> Bools:
        """Which keys have one of these slots; bool[keys]."""
        found: Bools = slots[slots_of_prints(self.prints)]
        return found

    def _check(self) -> None:
        """Assert every invariant."""
        self._places._check()
        assert len(self._places) == self._height <= len(self.prints)
        prints = self.prints[: self._height]
        assert np.array_equal(self._places.get(prints), np.arange(self._height)), "a key is lost"
        assert not (self.busy | self.there)[self._height :].any(), "nobody is busy"
        assert not self.marks.any()
