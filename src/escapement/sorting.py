"""Sorting whole numbers that mostly come in a few ascending runs, or in many.

numpy has two sorts for them: one finds the runs that there are and merges them, and one takes no
notice, but compares many numbers at a time. With more than a few runs that is several times
faster, with fewer it is slower. Neither promises in which order equal numbers come.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s

# With so many runs both sorts take the same time.
_FEW_RUNS: Final = 4


def argsort(numbers: Int64s) -> npt.NDArray[np.intp]:
    """The positions of the numbers, the lowest number's first; intp[n]."""
    return np.argsort(numbers, kind=_kind(numbers))


def sort(numbers: Int64s) -> None:
    """Sort the numbers where they are."""
    numbers.sort(kind=_kind(numbers))


def _kind(numbers: Int64s) -> Literal["stable", "quicksort"]:
    ends = np.count_nonzero(numbers[1:] < numbers[:-1])
    return "stable" if ends < _FEW_RUNS else "quicksort"
