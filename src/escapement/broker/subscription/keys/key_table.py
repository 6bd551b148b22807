"""A table of keys: whether each is busy, and the head of its queue.

The table has the keys that are in use. A key is in use if a message of it is ready, or holds it
because it is in flight or in retry. The *index* of a key is the number of its row in the columns of
the table. The order of indexes means nothing. Code that works with many keys finds their indexes
once, by key hash (see ``escapement.traits``), and then works with columns. For each key, the
columns have the message that holds it (:mod:`~escapement.broker.subscription.keys.busy_keys`), and
the head of its queue of ready messages with the number of rows behind it
(:mod:`~escapement.broker.subscription.keys.key_queues`).

Indexes are valid until the next call of ``find_or_add``. Unused keys are removed when a new key
finds no room, so memory follows the messages that are ready or hold a key. At unused indexes behind
the last key, ``busy`` and ``there`` are False.

Invariants (``_check``): each key hash is in the table once, and is found at its index.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.number_map import NumberMap
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Bools, Int64s
from escapement.traits import KEY_HASHES, SLOTS, hash_keys, have_keys, slots_of_key_hashes

# Stands for the key hash of a message without a key, if the order is by key.
NO_KEY: Final = KEY_HASHES

# The index of a missing key.
NO_INDEX: Final = -1

# New columns have room for this many times the keys in use.
_GROWTH: Final = 2

Indexes = npt.NDArray[np.intp]


class KeyTable:
    """The keys in use of one subscription, in columns by index.

    Args:
      whole: whether the whole topic is kept in order. All messages then have the key hash 0.
    """

    __slots__ = (
        "_height",
        "_indexes",
        "behind",
        "busy",
        "heads",
        "holders",
        "key_hashes",
        "ranks",
        "there",
        "whole",
    )

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self._indexes = NumberMap()  # the index of each key, by key hash
        self._height = 0  # how many keys are in the table, unused ones included
        self.key_hashes: Int64s = np.zeros(0, np.int64)
        self.busy: Bools = np.zeros(0, bool)
        self.holders: Int64s = np.zeros(0, np.int64)  # the message that holds each busy key
        self.there: Bools = np.zeros(0, bool)  # whether the key's queue has a head
        self.behind: Int64s = np.zeros(0, np.int64)  # how many rows are behind the head
        self.ranks: Int64s = np.zeros(0, np.int64)  # the ranks of the heads
        self.heads = Rows.none()._replace(traits=np.zeros(0, np.uint32))

    def key_hashes_of(self, rows: Rows) -> Int64s:
        """Return the key hash of each row, ``NO_KEY`` for a row without a key; int64[n]."""
        if self.whole:
            return np.zeros(rows.height, np.int64)
        if rows.traits is None:
            return np.full(rows.height, NO_KEY)
        key_hashes = hash_keys(rows.traits)
        keyed = have_keys(rows.traits)
        return key_hashes if keyed.all() else np.where(keyed, key_hashes, NO_KEY)

    def find(self, key_hashes: Int64s) -> tuple[Indexes, Bools]:
        """Return the indexes of these keys, and which keys are in the table; intp[n], bool[n].

        The index of a key that is not in the table is 0.
        """
        indexes = self._indexes.get(key_hashes)
        known = indexes >= 0
        return (indexes if known.all() else np.where(known, indexes, 0)), known

    def find_or_add(self, key_hashes: Int64s) -> Indexes:
        """Return the indexes of these keys; add missing keys, which may change all indexes."""
        indexes, known = self.find(key_hashes)
        if known.all():
            return indexes
        unknown = np.flatnonzero(~known)
        new = np.sort(key_hashes[unknown])
        new = new[np.diff(new, prepend=-1) > 0]
        if self._height + len(new) > len(self.key_hashes):
            self._make_room(len(new), indexes[known])
            indexes = self._indexes.get(key_hashes)
        at = np.arange(self._height, self._height + len(new))
        self._height += len(new)
        self.key_hashes[at] = new
        self._indexes.put(new, at)
        indexes[unknown] = self._indexes.get(key_hashes[unknown])
        return indexes

    def _make_room(self, more: int, wanted: Indexes) -> None:
        """Remove unused keys except those at ``wanted``; make room for ``more`` keys."""
        stay = self.busy | self.there
        stay[wanted] = True
        kept = np.flatnonzero(stay)
        room = _GROWTH * (len(kept) + more)

        def column(old: npt.NDArray[Any]) -> npt.NDArray[Any]:
            new = np.zeros(room, old.dtype)
            new[: len(kept)] = old[kept]
            return new

        self.key_hashes = column(self.key_hashes)
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
        self._height = len(kept)
        self._indexes = NumberMap()
        self._indexes.put(self.key_hashes[: len(kept)], np.arange(len(kept)))

    def slots(self, which: Bools) -> Bools:
        """Return the slots of these keys; bool[SLOTS].

        Args:
          which: the keys, by index; bool[keys].
        """
        found = np.zeros(SLOTS, bool)
        found[slots_of_key_hashes(self.key_hashes[which])] = True
        return found

    def among(self, slots: Bools) -> Bools:
        """Return which keys, by index, have one of these slots; bool[keys].

        Args:
          slots: bool[SLOTS].
        """
        found: Bools = slots[slots_of_key_hashes(self.key_hashes)]
        return found

    def _check(self) -> None:
        """Assert every invariant."""
        self._indexes._check()
        assert len(self._indexes) == self._height <= len(self.key_hashes)
        key_hashes = self.key_hashes[: self._height]
        assert np.array_equal(self._indexes.get(key_hashes), np.arange(self._height)), (
            "a key is lost"
        )
        assert not (self.busy | self.there)[self._height :].any(), "an unused index is marked"
