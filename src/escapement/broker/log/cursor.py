"""A set of acknowledged or cancelled offsets, some of which are not durable yet.

An offset counts as soon as it is added: its message is not delivered again, or, if cancelled, not
at all. But until the offset is durable, the index must keep the message, and the client gets no
receipt.
"""

from __future__ import annotations

import numpy as np

from escapement.message import Bools, Int64s
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offset_bits import OffsetBits, bits_of


class Cursor(OffsetSet):
    """A set of offsets that grows at once and becomes durable later.

    Invariant: ``undurable`` is the part of the set that is in no committed group. Its offsets reach
    the database only with the group that has them (a checkpoint's rows leave them out), because
    that group may have more than the offset: a dead letter, a follow-up, a lag count.
    """

    __slots__ = ("undurable",)

    def __init__(self) -> None:
        super().__init__()
        self.undurable = OffsetSet()

    def take(self, offsets: Int64s | OffsetBits) -> None:
        """Add offsets that are not in the set; ``committed`` must follow."""
        bits = bits_of(offsets)
        added = self.add(bits)
        assert added == len(bits), "an offset was taken twice, and may be durable already"
        self.undurable.add(bits)

    def committed(self, offsets: Int64s) -> None:
        """Mark offsets as durable."""
        self.undurable.discard(offsets)

    def dirty_chunks(self, without: OffsetSet | None = None) -> dict[int, bytes]:
        """Return the rows of a checkpoint, which must leave out ``undurable``."""
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
        """Return whether an offset in ``[low, high)`` was added and is not durable yet."""
        return bool(len(self.undurable)) and bool(len(self.undurable.to_array(low, high)))
