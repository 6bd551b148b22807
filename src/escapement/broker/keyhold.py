"""Which keys are busy: of each, one message at a time is out of ready.

For a subscription whose policy asks for an order by key, or of the whole topic. A key is
*held* by a message that is in a consumer's hands, and, unless the policy says otherwise, by
one that waits for another attempt. What is told apart is not keys but their slots (see
``escapement.traits``): keys that share one wait for each other, too. Where the topic is to
be in order, everything has one slot.

Pure. It knows nothing of acknowledgements: ``settle`` is told what is still held.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.ready import Rows
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet
from escapement.traits import SLOTS, have_keys, key_slots

# The slot of what has none: a message without a key, where the order is by key.
_FREE: Final = SLOTS

Bools = npt.NDArray[np.bool_]


class KeyHold:
    """See the module's docstring.

    Args:
      whole: one slot for everything.
    """

    __slots__ = ("_offsets", "_slots", "busy", "whole")

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.busy: Bools = np.zeros(SLOTS + 1, bool)
        self._offsets: Int64s = np.zeros(0, np.int64)
        self._slots = np.zeros(0, np.intp)

    def _slots_of(self, rows: Rows) -> npt.NDArray[np.intp]:
        if self.whole:
            return np.zeros(rows.height, np.intp)
        if rows.traits is None:
            return np.full(rows.height, _FREE)
        return np.where(have_keys(rows.traits), key_slots(rows.traits), _FREE)

    def take(self, rows: Rows) -> None:
        """These, which did not, hold their keys from now on."""
        slots = self._slots_of(rows)
        keyed = slots != _FREE
        self._offsets = np.concatenate((self._offsets, rows.offsets[keyed]))
        self._slots = np.concatenate((self._slots, slots[keyed]))
        self.busy[slots[keyed]] = True

    def release(self, offsets: Int64s) -> None:
        """These hold their keys no more."""
        self._keep(~np.isin(self._offsets, offsets))

    def settle(self, held: OffsetSet) -> None:
        """Whatever is not among these any more is done."""
        if len(self._offsets):
            self._keep(held.contains(self._offsets))

    def _keep(self, stays: Bools) -> None:
        if stays.all():
            return
        self.busy[self._slots[~stays]] = False
        self._offsets, self._slots = self._offsets[stays], self._slots[stays]
        self.busy[self._slots] = True

    def next_of_each(self, rows: Rows, seen: Bools) -> Bools:
        """Of rows in order, the first of each slot that is not seen yet; bool[n].

        Args:
          seen: a copy of ``busy``; the slots of the rows are noted there.
        """
        slots = self._slots_of(rows)
        at = np.arange(rows.height)
        first = np.empty(SLOTS + 1, np.intp)
        first[slots[::-1]] = at[::-1]  # the last that is written, the first in order, stays
        found: Bools = ((first[slots] == at) & ~seen[slots]) | (slots == _FREE)
        seen[slots] = True
        return found

    def _check(self) -> None:
        assert len(np.unique(self._offsets)) == len(self._offsets), "a message holds twice"
        assert set(np.flatnonzero(self.busy).tolist()) == set(self._slots.tolist())
