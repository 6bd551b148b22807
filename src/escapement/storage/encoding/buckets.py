"""Buckets of a histogram of whole numbers, whose width grows with the numbers.

A histogram, as in HdrHistogram, counts how many numbers are in each bucket. The bucket of a number
is the exponent and the first four bits of the mantissa of its float64. So from each power of two to
the next there are 16 buckets, and each number below 32 has a bucket of its own. A larger number, up
to 2^53, differs from the middle of its bucket by at most 1/32. Negative numbers count as 0. There
are ``BUCKETS`` buckets, enough for all of int64. This module does no I/O.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.message import Int64s

# The number of mantissa bits of a float64 after the first four.
_SHIFT: Final = 48
# The exponent and first mantissa bits of the number 1, less 1. They are subtracted from those of
# each number, so that 1 is in bucket 1, and 0 in bucket 0.
_BEFORE_ONE: Final = (1023 << 4) - 1
BUCKETS: Final = 1024


def bucket_of(values: Int64s) -> Int64s:
    """Return the bucket of each number; int64[n]."""
    bits = values.astype(np.float64).view(np.int64)
    bits >>= _SHIFT
    bits -= _BEFORE_ONE
    return np.maximum(bits, 0, out=bits)


def value_of(buckets: Int64s) -> Int64s:
    """Return the number in the middle of each bucket; int64[n]."""
    low = np.ceil(_lower(buckets))
    high = np.ceil(_lower(buckets + 1)) - 1
    middle: Int64s = ((low + high) // 2).astype(np.int64)
    return middle


def at_share(buckets: Int64s, counts: Int64s, share: float) -> int:
    """Return a quantile of the counted numbers: about the number that a share does not exceed.

    Args:
      buckets: the buckets with numbers, ascending; at least one.
      counts: how many numbers are in each of these buckets; int64[n].
      share: the share of the numbers, such as 0.5 for the median or 1 for the maximum.
    """
    upto = np.cumsum(counts)
    at = int(np.searchsorted(upto, np.ceil(share * upto[-1])))
    return int(value_of(buckets[at : at + 1])[0])


def _lower(buckets: Int64s) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the smallest number of each bucket, as a float."""
    bits = (buckets + _BEFORE_ONE) << _SHIFT
    begins = bits.view(np.float64)
    return np.where(buckets > 0, begins, 0.0)
