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

from escapement.broker.subscription.keyqueues import NO_SLOT, Bools, slots_of
from escapement.broker.subscription.ready import Rows
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet
from escapement.traits import SLOTS


class KeyHold:
    """See the module's docstring.

    Args:
      whole: one slot for everything.
    """

    __slots__ = ("_offsets", "_slots", "busy", "whole")

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.busy: Bools = np.zeros(SLOTS, bool)
        self._offsets: Int64s = np.zeros(0, np.int64)
        self._slots = np.zeros(0, np.intp)

    def take(self, rows: Rows) -> None:
        """These, which did not, hold their keys from now on."""
        slots = slots_of(rows, self.whole)
        keyed = slots != NO_SLOT
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

    def _check(self) -> None:
        assert len(np.unique(self._offsets)) == len(self._offsets), "a message holds twice"
        assert set(np.flatnonzero(self.busy).tolist()) == set(self._slots.tolist())
