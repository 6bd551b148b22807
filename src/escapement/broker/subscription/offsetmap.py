"""A map from offsets to numbers, arrays in and arrays out.

Offsets lie in pages of 256, of which those exist that have any; where each begins, a directory
says. So a column of offsets is looked up in two steps, in whatever order they come. Where offsets
are dense a number takes eight to sixteen bytes, and at worst a page.

Invariants (``_check``): no two pages lie in one place.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.subscription.numbermap import NOWHERE, NumberMap
from escapement.message import Int64s

_PAGE_BITS: Final = 8
_PAGE_ROWS: Final = 1 << _PAGE_BITS
_PAGE_MASK: Final = _PAGE_ROWS - 1
# How many times as much room there is when there is too little.
_GROWTH: Final = 2


class OffsetMap:
    """See the module's docstring. Numbers are not negative."""

    __slots__ = ("_directory", "_numbers")

    def __init__(self) -> None:
        self._directory = NumberMap()  # of each page, where it begins in _numbers
        self._numbers: Int64s = np.zeros(0, np.int64)

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return self._numbers.nbytes

    def get(self, offsets: Int64s) -> Int64s:
        """The number of each offset, ``NOWHERE`` for none; int64[n]."""
        at = self._find(offsets)
        known = at >= 0
        if known.all():
            return self._numbers[at]
        numbers = np.full(len(offsets), NOWHERE)
        numbers[known] = self._numbers[at[known]]
        return numbers

    def put(self, offsets: Int64s, numbers: Int64s) -> None:
        """Give each offset its number, instead of one that it may have; each stands once."""
        at = self._find(offsets)
        unknown = at < 0
        if unknown.any():
            self._add_pages(np.unique(offsets[unknown] >> _PAGE_BITS))
            at = self._find(offsets)
        self._numbers[at] = numbers

    def _find(self, offsets: Int64s) -> Int64s:
        """Where the numbers of these stand; negative where there is no page."""
        return self._directory.get(offsets >> _PAGE_BITS) | (offsets & _PAGE_MASK)

    def _add_pages(self, new: Int64s) -> None:
        """Have these pages, empty at the end."""
        first = len(self._directory)
        self._directory.add(new, np.arange(first, first + len(new)) << _PAGE_BITS)
        rows = len(self._directory) << _PAGE_BITS
        if rows > len(self._numbers):
            more = max(rows, _GROWTH * len(self._numbers)) - len(self._numbers)
            self._numbers = np.append(self._numbers, np.full(more, NOWHERE))

    def _check(self) -> None:
        """Assert every invariant."""
        self._directory._check()
        assert len(self._numbers) >= len(self._directory) << _PAGE_BITS, "a page is lost"
