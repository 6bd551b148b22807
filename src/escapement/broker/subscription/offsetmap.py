"""A map from offsets to numbers, arrays in and arrays out.

Offsets lie in pages of 256, of which those exist that have any; which, stands in a sorted
directory. So a column of offsets is looked up by a search in that, which is small, and one more
step, in whatever order they come, and what is added moves nothing. Where offsets are dense a
number takes eight bytes, and at worst a page.

Invariants (``_check``): the directory ascends; no two of its pages lie in one place.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s

# What stands where there is no number.
NOWHERE: Final = -1

_PAGE_BITS: Final = 8
_PAGE_ROWS: Final = 1 << _PAGE_BITS
_PAGE_MASK: Final = _PAGE_ROWS - 1


class OffsetMap:
    """See the module's docstring. Numbers are not negative."""

    __slots__ = ("_numbers", "_pages", "_slots")

    def __init__(self) -> None:
        self._pages: Int64s = np.zeros(0, np.int64)  # the directory: which, ascending
        self._slots: Int64s = np.zeros(0, np.int64)  # ... and where each begins in _numbers
        self._numbers: Int64s = np.zeros(0, np.int64)

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return self._numbers.nbytes

    def get(self, offsets: Int64s) -> Int64s:
        """The number of each offset, ``NOWHERE`` for none; int64[n]."""
        at, known = self._find(offsets)
        if known.all():
            return self._numbers[at]
        numbers = np.full(len(offsets), NOWHERE)
        numbers[known] = self._numbers[at[known]]
        return numbers

    def put(self, offsets: Int64s, numbers: Int64s) -> None:
        """Give each offset its number, instead of one that it may have; each stands once."""
        at, known = self._find(offsets)
        if not known.all():
            self._add_pages(np.unique(offsets[~known] >> _PAGE_BITS))
            at, _ = self._find(offsets)
        self._numbers[at] = numbers

    def _find(self, offsets: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Where the numbers of these stand; and of which there is a page at all."""
        if not len(self._pages):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_)
        pages = offsets >> _PAGE_BITS
        at = np.searchsorted(self._pages, pages)
        at[at == len(self._pages)] = 0
        known = self._pages[at] == pages
        return self._slots[at] | (offsets & _PAGE_MASK), known

    def _add_pages(self, new: Int64s) -> None:
        """Have these pages, which ascend, empty at the end."""
        slots = len(self._numbers) + (np.arange(len(new)) << _PAGE_BITS)
        pages = np.concatenate((self._pages, new))
        order = np.argsort(pages, kind="stable")  # of two sorted runs
        self._pages = pages[order]
        self._slots = np.concatenate((self._slots, slots))[order]
        self._numbers = np.append(self._numbers, np.full(len(new) << _PAGE_BITS, NOWHERE))

    def _check(self) -> None:
        """Assert every invariant."""
        assert (np.diff(self._pages) > 0).all(), "pages are out of order"
        slots = np.sort(self._slots)
        assert np.array_equal(slots, np.arange(len(self._pages)) << _PAGE_BITS), "a page is lost"
