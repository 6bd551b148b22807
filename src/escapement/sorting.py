"""Sorting of integers, by the algorithm that suits their number of ascending runs.

numpy's stable sort finds ascending runs and merges them. Its quicksort ignores runs, but compares
many numbers at a time: it is several times faster with many runs and slower with few. The order of
equal numbers is not defined.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from escapement.message import Bools, Int64s

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

T = TypeVar("T", bound="SupportsRichComparison")

# With this many ascending runs, both sorting algorithms take the same time.
_FEW_RUNS: Final = 4


def argsort(numbers: Int64s) -> npt.NDArray[np.intp]:
    """Return the indexes that sort the numbers in ascending order; intp[n]."""
    return np.argsort(numbers, kind=_kind(numbers))


def find_sorted(numbers: Int64s, sought: Int64s) -> tuple[npt.NDArray[np.intp], Bools]:
    """Return the index of each sought number in ascending ``numbers``, and whether it is there."""
    if not len(numbers):
        return np.zeros(len(sought), np.intp), np.zeros(len(sought), np.bool_)
    at = np.minimum(numbers.searchsorted(sought), len(numbers) - 1)
    return at, numbers[at] == sought


def sort(numbers: Int64s) -> None:
    """Sort the numbers in place."""
    numbers.sort(kind=_kind(numbers))


def lowest(values: Iterable[T | None]) -> T | None:
    """Return the lowest of the values that are not None, or None if all are None."""
    return min((value for value in values if value is not None), default=None)


def _kind(numbers: Int64s) -> Literal["stable", "quicksort"]:
    ends = np.count_nonzero(numbers[1:] < numbers[:-1])
    return "stable" if ends < _FEW_RUNS else "quicksort"
