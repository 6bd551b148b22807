"""Offsets that are done with, and what of them is not durable yet.

What is taken in counts at once, so that nothing acknowledged is sent again and nothing
cancelled at all; but until it is durable the index must keep the message, and whoever
asked gets no receipt.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offsetbits import OffsetBits, bits_of


class Cursor(OffsetSet):
    """A set of offsets that grows at once and becomes durable later.

    Invariant: ``undurable`` is the part of the set that no committed group has. Nothing of it
    reaches the database but by the group that carries it (``dirty_chunks``), because that group
    may carry more than the offset: a dead letter, a follow-up, a count of the lag.
    """

    __slots__ = ("undurable",)

    def __init__(self) -> None:
        super().__init__()
        self.undurable = OffsetSet()

    def take(self, offsets: Int64s | OffsetBits) -> None:
        """Take in offsets that are not in the set; ``committed`` follows."""
        bits = bits_of(offsets)
        added = self.add(bits)
        assert added == len(bits), "an offset was taken twice, and may be durable already"
        self.undurable.add(bits)

    def committed(self, offsets: Int64s) -> None:
        """These are durable."""
        self.undurable.discard(offsets)

    def dirty_chunks(self, without: OffsetSet | None = None) -> dict[int, bytes]:
        """Return the rows of a checkpoint, which have no offset that is not durable."""
        assert without is None, "a cursor knows by itself what its rows leave out"
        return super().dirty_chunks(self.undurable)

    def contains_durably(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these are done with for good; bool[n]."""
        done = self.contains(offsets)
        if len(self.undurable):
            done &= ~self.undurable.contains(offsets)
        return done

    def durable_between(self, low: int, high: int) -> npt.NDArray[np.bool_]:
        """The same for all of ``[low, high)``; bool[high - low]."""
        done = np.zeros(high - low, bool)
        done[self.to_array(low, high) - low] = True
        if len(self.undurable):
            done[self.undurable.to_array(low, high) - low] = False
        return done

    def is_waiting(self, low: int, high: int) -> bool:
        """Whether something in ``[low, high)`` is not durable yet."""
        return bool(len(self.undurable)) and bool(len(self.undurable.to_array(low, high)))
