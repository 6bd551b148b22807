"""Whole numbers in buckets whose width grows with them, to count many in little room.

The bucket of a number is what a float64 says of it first: its exponent and four bits of its
mantissa. So each power of two is cut into 16 buckets, numbers below 32 have one each, and what is
said of a larger number, up to 2^53, is off by 1/32 of it at most. What is below 0 counts as 0.
There are ``BUCKETS`` for all that an int64 can be. The idea is that of HdrHistogram. Pure.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.message import Int64s

# The bits of a mantissa behind the first four.
_SHIFT: Final = 48
# What the number 1 has before them: it is bucket 1, and 0 is bucket 0.
_BEFORE_ONE: Final = (1023 << 4) - 1
BUCKETS: Final = 1024


def bucket_of(values: Int64s) -> Int64s:
    """The bucket of each number; int64[n]."""
    bits = values.astype(np.float64).view(np.int64)
    bits >>= _SHIFT
    bits -= _BEFORE_ONE
    return np.maximum(bits, 0, out=bits)


def value_of(buckets: Int64s) -> Int64s:
    """The number in the middle of each bucket; int64[n]."""
    low = np.ceil(_lower(buckets))
    high = np.ceil(_lower(buckets + 1)) - 1
    middle: Int64s = ((low + high) // 2).astype(np.int64)
    return middle


def at_share(buckets: Int64s, counts: Int64s, share: float) -> int:
    """The number that so large a share of what was counted does not exceed.

    Args:
      buckets: ascending; not none.
      counts: how many are in each; int64[n].
      share: 0.5 for the median, 1 for the greatest.
    """
    upto = np.cumsum(counts)
    at = int(np.searchsorted(upto, np.ceil(share * upto[-1])))
    return int(value_of(buckets[at : at + 1])[0])


def _lower(buckets: Int64s) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Where buckets begin."""
    bits = (buckets + _BEFORE_ONE) << _SHIFT
    begins = bits.view(np.float64)
    return np.where(buckets > 0, begins, 0.0)
