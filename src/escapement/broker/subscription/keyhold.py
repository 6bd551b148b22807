"""Which keys are busy: of each, one message at a time is out of ready.

For a subscription whose policy asks for an order by key, or of the whole topic. A key is
*held* by a message that is in a consumer's hands, and, unless the policy says otherwise, by
one that waits for another attempt. What is told apart is not keys but their slots (see
``escapement.traits``): keys that share one wait for each other, too. Where the topic is to
be in order, everything has one slot.

Pure. It knows nothing of acknowledgements: ``settle`` is told what is still held.
"""

from __future__ import annotations

import numpy as np

from escapement.broker.subscription.keyqueues import NO_SLOT, Bools, Slots, slots_of
from escapement.broker.subscription.ready import Rows
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet
from escapement.traits import SLOTS


class KeyHold:
    """See the module's docstring.

    Of each slot that is held one message stands in a table. Where several hold one, because
    they were out before there was an order, the others stand in a list.

    Args:
      whole: one slot for everything.
    """

    __slots__ = ("_holders", "_others", "busy", "whole")

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.busy: Bools = np.zeros(SLOTS, bool)
        self._holders: Int64s = np.zeros(SLOTS, np.int64)  # offsets, where a slot is busy
        self._others = np.zeros((2, 0), np.int64)  # slots and offsets

    def take(self, rows: Rows) -> None:
        """These, which did not, hold their keys from now on."""
        self._take(*self._keyed(rows))

    def _take(self, slots: Slots, offsets: Int64s) -> None:
        free = ~self.busy[slots]
        self._holders[slots[free]] = offsets[free]
        self.busy[slots] = True
        alone = self._holders[slots] == offsets
        if not alone.all():
            others = np.stack((slots[~alone], offsets[~alone]))
            self._others = np.concatenate((self._others, others), axis=1)

    def release(self, rows: Rows) -> None:
        """These hold their keys no more."""
        slots, offsets = self._keyed(rows)
        if self._others.shape[1]:
            self._others = self._others[:, ~np.isin(self._others[1], offsets)]
        held = self.busy[slots] & (self._holders[slots] == offsets)
        self._free(slots[held])

    def settle(self, held: OffsetSet) -> None:
        """Whatever is not among these any more is done."""
        if self._others.shape[1]:
            self._others = self._others[:, held.contains(self._others[1])]
        slots = np.flatnonzero(self.busy)
        self._free(slots[~held.contains(self._holders[slots])])

    def _free(self, slots: Slots) -> None:
        """Whoever stands in the table for these is done: the next of the others does now."""
        self.busy[slots] = False
        if self._others.shape[1] and len(slots):
            (others, offsets), self._others = self._others, np.zeros((2, 0), np.int64)
            self._take(others, offsets)

    def _keyed(self, rows: Rows) -> tuple[Slots, Int64s]:
        """Slots and offsets of those of the rows that have a key."""
        slots = slots_of(rows, self.whole)
        keyed = slots != NO_SLOT
        return (slots, rows.offsets) if keyed.all() else (slots[keyed], rows.offsets[keyed])

    def _check(self) -> None:
        offsets = np.concatenate((self._holders[self.busy], self._others[1]))
        assert len(np.unique(offsets)) == len(offsets), "a message holds twice"
        assert self.busy[self._others[0]].all(), "a slot that is held is not busy"
