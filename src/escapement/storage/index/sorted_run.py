"""Sorted runs: rows of a memory table, sorted by their keys ``(due_ms, offset)``.

Offsets ascend in a table, so row numbers compare like offsets. A key is packed into one integer,
``due_ms << 16 | row``, so that numpy sorts and searches a plain column of integers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.message import Int64s, UInt32s
from escapement.storage.index.columns import Columns
from escapement.storage.index.keys import MAX_DUE_MS, Key, Keys
from escapement.storage.index.plan import Landmarks, Source

# The number of bits of a row number in a packed key. It bounds the rows of a memory table.
ROW_BITS: Final = 16
_ROW_MASK: Final = (1 << ROW_BITS) - 1


class SortedRun:
    """Some rows of a memory table, sorted: a column of packed keys ``due_ms << 16 | row``.

    The columns ``offsets`` and ``traits`` belong to the table. A row number is an index into them.
    """

    __slots__ = ("offsets", "packed", "traits")

    def __init__(self, packed: Int64s, offsets: Int64s, traits: UInt32s | None) -> None:
        self.packed = packed
        self.offsets = offsets
        self.traits = traits  # None if all are 0

    def position(self, key: Key) -> int:
        """Return how many keys of the run are smaller than ``key``; O(log n)."""
        if key.due_ms > MAX_DUE_MS:
            return len(self.packed)
        row = int(self.offsets.searchsorted(key.offset))
        return int(self.packed.searchsorted((key.due_ms << ROW_BITS) + row))

    def keys(self, low: int, high: int) -> Keys:
        packed = self.packed[low:high]
        return packed >> ROW_BITS, self.offsets[packed & _ROW_MASK]

    def traits_of(self, low: int, high: int) -> UInt32s | None:
        """Return the traits of the keys ``low`` to ``high - 1`` of the run; None if all are 0."""
        return None if self.traits is None else self.traits[self.packed[low:high] & _ROW_MASK]

    def between(self, start: Key, until: Key, columns: Columns) -> RunSpan | None:
        """Return the part of the run in ``[start, until)``, or None if it is empty.

        Args:
          columns: the message columns of the table, from which a plan reads messages.
        """
        low, high = self.position(start), self.position(until)
        return RunSpan(self, low, high, columns) if low < high else None

    def next_due_ms(self, after: Key) -> int | None:
        """Return the due time of the first key at or past ``after``, or None if there is none."""
        at = self.position(after)
        return int(self.packed[at]) >> ROW_BITS if at < len(self.packed) else None


class RunSpan:
    """The part of a sorted run that lies in a plan's range of keys; a ``plan.Span``."""

    on_disk: Final = False

    __slots__ = ("_columns", "_high", "_low", "_run")

    def __init__(self, run: SortedRun, low: int, high: int, columns: Columns) -> None:
        self._run = run
        self._columns = columns
        self._low = low
        self._high = high

    @property
    def count(self) -> int:
        return self._high - self._low

    @property
    def likely_count(self) -> int:
        return self.count

    def landmarks(self, wanted: int, stride: int) -> Landmarks:
        """Return the first and last keys of sections of ``stride`` messages, up to ``wanted``.

        The sections serve as the blocks that a source in a file has.
        """
        firsts = np.arange(self._low, min(self._high, self._low + wanted), stride)
        lasts = np.minimum(firsts + stride, self._high) - 1
        packed = self._run.packed[np.concatenate((firsts, lasts))]
        half = (lasts - firsts + 1) / 2
        return Landmarks(
            packed >> ROW_BITS,
            self._run.offsets[packed & _ROW_MASK],
            np.concatenate((half, half)),
            np.arange(len(packed)) >= len(firsts),
        )

    def keys(self, stop: Key) -> list[Keys]:
        return [self._run.keys(self._low, self._end(stop))]

    def traits(self, stop: Key) -> list[UInt32s | None]:
        return [self._run.traits_of(self._low, self._end(stop))]

    def sources(self, stop: Key) -> list[Source]:
        rows = self._run.packed[self._low : self._end(stop)] & _ROW_MASK
        return [Source(lambda: self._columns, rows)]

    def _end(self, stop: Key) -> int:
        return max(self._low, min(self._high, self._run.position(stop)))
