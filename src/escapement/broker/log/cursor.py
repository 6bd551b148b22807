"""A set of acknowledged or cancelled offsets, some of which are not durable yet.

An offset takes effect as soon as it is added: an acknowledged message is not delivered again, and a
cancelled message is not delivered at all. But until the offset is durable, the index must keep the
message, and the client gets no receipt.
"""

from __future__ import annotations

import numpy as np

from escapement.message import Bools, Int64s
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offset_bits import OffsetBits, bits_of


class Cursor(OffsetSet):
    """A set of offsets that grows at once and becomes durable later.

    Invariant: ``undurable`` has the offsets that are in no committed group. They reach the database
    only with their group, and a checkpoint leaves them out. The reason is that the group may have
    more to store with an offset: a dead letter, the follow-up of a group, a lag count.
    """

    __slots__ = ("undurable",)

    def __init__(self) -> None:
        super().__init__()
        self.undurable = OffsetSet()

    def take(self, offsets: Int64s | OffsetBits) -> None:
        """Add offsets that are not in the set yet; ``committed`` follows when they are durable."""
        bits = bits_of(offsets)
        added = self.add(bits)
        assert added == len(bits), "an offset was taken twice, and may be durable already"
        self.undurable.add(bits)

    def committed(self, offsets: Int64s) -> None:
        """Mark offsets as durable."""
        self.undurable.discard(offsets)

    def give_back(self, offsets: Int64s) -> None:
        """Remove offsets that were taken, and whose group certainly does not become durable."""
        assert self.undurable.contains(offsets).all(), "a durable offset was given back"
        self.undurable.discard(offsets)
        self.discard(offsets)

    def dirty_chunks(self, without: OffsetSet | None = None) -> dict[int, bytes]:
        """Return the changed rows, for a checkpoint to write.

        Args:
          without: must be ``undurable``, whose offsets the rows leave out.
        """
        assert without is self.undurable, "a checkpoint must write only what is committed"
        return super().dirty_chunks(without)

    def contains_durably(self, offsets: Int64s) -> Bools:
        """Return which of these offsets are durably in the set; bool[n]."""
        done = self.contains(offsets)
        if len(self.undurable):
            done &= ~self.undurable.contains(offsets)
        return done

    def durable_between(self, low: int, high: int) -> Bools:
        """Return which offsets of ``[low, high)`` are durably in the set; bool[high - low]."""
        done = np.zeros(high - low, bool)
        done[self.to_array(low, high) - low] = True
        if len(self.undurable):
            done[self.undurable.to_array(low, high) - low] = False
        return done

    def is_waiting(self, low: int, high: int) -> bool:
        """Return whether an offset in ``[low, high)`` is in the set but not durable yet."""
        return bool(len(self.undurable)) and bool(len(self.undurable.to_array(low, high)))
