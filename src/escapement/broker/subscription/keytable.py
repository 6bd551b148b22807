"""A table of keys: of each that matters now whether it is busy, and the first of its queue.

A key matters while a message of it is ready or holds it. Keys have *places* in the table, in the
order of their prints (see ``escapement.traits``); whoever works with many keys finds their
places once, and then works with columns. What several ask about a key stands here together:
who holds it (:mod:`~escapement.broker.subscription.keyhold`), and the head of its queue
(:mod:`~escapement.broker.subscription.keyqueues`).

Places are good until the next ``place``. Keys that do not matter any more go then: memory follows
what is ready and held.

Invariants (``_check``): prints ascend, each stands once.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.ready import Rows
from escapement.message import Int64s
from escapement.traits import PRINTS, SLOTS, have_keys, key_prints, slots_of_prints

# The print of what has none: a message without a key, where the order is by key.
NO_PRINT: Final = PRINTS
NO_PLACE: Final = -1

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


class KeyTable:
    """See the module's docstring.

    Args:
      whole: everything has one key, 0.
    """

    __slots__ = ("busy", "heads", "holders", "prints", "ranks", "there", "whole")

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.prints: Int64s = np.zeros(0, np.int64)
        self.busy: Bools = np.zeros(0, bool)
        self.holders: Int64s = np.zeros(0, np.int64)  # offsets, where a key is busy
        self.there: Bools = np.zeros(0, bool)  # whether there is a head
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
        if (prints[1:] >= prints[:-1]).all():
            return self._find(prints)
        order = np.argsort(prints)  # what is sought in order is found sooner
        places, here = np.empty(len(order), np.intp), np.empty(len(order), bool)
        places[order], here[order] = self._find(prints[order])
        return places, here

    def _find(self, prints: Int64s) -> tuple[Places, Bools]:
        if not len(self.prints):
            return np.zeros(len(prints), np.intp), np.zeros(len(prints), bool)
        places = np.searchsorted(self.prints, prints)
        places[places == len(self.prints)] = 0
        return places, self.prints[places] == prints

    def place(self, prints: Int64s) -> Places:
        """Where these keys stand; those that are not here are added, and then places change."""
        places, known = self.find(prints)
        if known.all():
            return places
        stay = self.busy | self.there
        stay[places[known]] = True
        new = np.sort(prints[~known])
        self._add(new[np.diff(new, prepend=-1) > 0], np.flatnonzero(stay))
        return self.find(prints)[0]

    def _add(self, new: Int64s, kept: Places) -> None:
        """Have these keys, which ascend, beside those that stay."""
        prints = np.concatenate((self.prints[kept], new))
        order = np.argsort(prints, kind="stable")  # of two sorted runs
        self.prints = prints[order]
        # The new ones come from a row of nothing behind all others.
        kept = np.concatenate((kept, np.full(len(new), len(self.busy))))[order]
        self.busy = np.append(self.busy, False)[kept]
        self.there = np.append(self.there, False)[kept]
        self.holders = np.append(self.holders, 0)[kept]
        self.ranks = np.append(self.ranks, 0)[kept]
        traits = self.heads.traits
        assert traits is not None
        self.heads = Rows(
            np.append(self.heads.due_ms, 0)[kept],
            np.append(self.heads.offsets, 0)[kept],
            np.append(self.heads.attempts, 0)[kept],
            np.append(traits, np.uint32(0))[kept],
        )

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
        assert (np.diff(self.prints) > 0).all(), "keys are out of order"
