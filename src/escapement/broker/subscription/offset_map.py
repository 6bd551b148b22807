"""A map from offsets to numbers, on arrays.

Offsets are in pages of 256. Only pages with numbers exist; a directory has the beginning of each.
So a column of offsets in any order is looked up in two steps. A number takes eight to sixteen bytes
if offsets are dense, and at worst a page.

Invariants (``_check``): each page has memory of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.subscription.number_map import NOWHERE, NumberMap
from escapement.message import Int64s

_PAGE_BITS: Final = 8
_PAGE_ROWS: Final = 1 << _PAGE_BITS
_PAGE_MASK: Final = _PAGE_ROWS - 1
# The number column grows by this factor.
_GROWTH: Final = 2


class OffsetMap:
    """A map from offsets to non-negative numbers."""

    __slots__ = ("_directory", "_numbers")

    def __init__(self) -> None:
        self._directory = NumberMap()  # the beginning of each page in _numbers
        self._numbers: Int64s = np.zeros(0, np.int64)

    @property
    def size_bytes(self) -> int:
        """The memory of the number column, in bytes."""
        return self._numbers.nbytes

    def get(self, offsets: Int64s) -> Int64s:
        """Return the number of each offset, ``NOWHERE`` if it is missing; int64[n]."""
        at = self._find(offsets)
        known = at >= 0
        if known.all():
            return self._numbers[at]
        numbers = np.full(len(offsets), NOWHERE)
        numbers[known] = self._numbers[at[known]]
        return numbers

    def put(self, offsets: Int64s, numbers: Int64s) -> None:
        """Set the number of each offset; each occurs once."""
        at = self._find(offsets)
        unknown = at < 0
        if unknown.any():
            self._add_pages(np.unique(offsets[unknown] >> _PAGE_BITS))
            at = self._find(offsets)
        self._numbers[at] = numbers

    def _find(self, offsets: Int64s) -> Int64s:
        """Return the positions of the numbers; negative if the page does not exist."""
        return self._directory.get(offsets >> _PAGE_BITS) | (offsets & _PAGE_MASK)

    def _add_pages(self, new: Int64s) -> None:
        """Add empty pages."""
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
