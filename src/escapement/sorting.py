"""Sorting of integers by the faster of numpy's two algorithms, and searches in sorted integers.

A *run* is a sequence of ascending numbers. numpy's stable sort finds runs and merges them. Its
quicksort ignores runs, but compares many numbers at a time: it is several times faster if there are
many runs, and slower if there are few. The order of equal numbers is not defined.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from escapement.message import Bools, Int64s, UInt32s

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

T = TypeVar("T", bound="SupportsRichComparison")

# A column with at most this many numbers is reduced in Python, because a numpy call costs as much.
_FEW: Final = 16
# With this many ascending runs, both sorting algorithms take the same time.
_FEW_RUNS: Final = 4


def argsort(numbers: Int64s) -> npt.NDArray[np.intp]:
    """Return the indexes that sort the numbers in ascending order; intp[n]."""
    return np.argsort(numbers, kind=_kind(numbers))


def find_sorted(numbers: Int64s, sought: Int64s) -> tuple[npt.NDArray[np.intp], Bools]:
    """Search for several numbers in ``numbers``, which are in ascending order.

    Returns:
      The index of each sought number, and whether the number is there. If it is not, its index
      has no meaning, but is valid unless ``numbers`` is empty.
    """
    if not len(numbers):
        return np.zeros(len(sought), np.intp), np.zeros(len(sought), np.bool_)
    at = np.minimum(numbers.searchsorted(sought), len(numbers) - 1)
    return at, numbers[at] == sought


def sort(numbers: Int64s) -> None:
    """Sort ``numbers`` in ascending order, in place."""
    numbers.sort(kind=_kind(numbers))


def lowest(values: Iterable[T | None]) -> T | None:
    """Return the lowest of the values that are not None, or None if all are None."""
    return min((value for value in values if value is not None), default=None)


def bounds(numbers: Int64s | UInt32s) -> tuple[int, int]:
    """Return the lowest and the highest of some numbers; there must be at least one."""
    if len(numbers) <= _FEW:
        few = numbers.tolist()
        return min(few), max(few)
    return int(numbers.min()), int(numbers.max())


def _kind(numbers: Int64s) -> Literal["stable", "quicksort"]:
    """Return the faster algorithm for ``numbers``, by their number of ascending runs."""
    ends = np.count_nonzero(numbers[1:] < numbers[:-1])
    return "stable" if ends < _FEW_RUNS else "quicksort"
