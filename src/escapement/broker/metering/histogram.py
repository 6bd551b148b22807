"""A histogram that counts batches of values, with numpy and not one by one.

``add`` takes an array of values. It only notes the array, because most batches are small and each
numpy call costs about a microsecond. The arrays are counted together when they have
``_NOTED_VALUES`` values, or when the histogram is read.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from escapement.message import Int64s

# Bounds on the noted values and arrays, which are then counted together.
_NOTED_VALUES: Final = 8_192
_NOTED_ARRAYS: Final = 256


class Buckets(NamedTuple):
    """The state of a histogram."""

    # How many values each bucket has. A bucket has the values up to its bound, the last bucket
    # those beyond all bounds.
    counts: list[int]
    total: int  # the sum of all values


class Histogram:
    """The counts of non-negative integers by bucket.

    Args:
      bounds: the highest value of each bucket but the last; ascending.
    """

    __slots__ = ("_arrays", "_bounds", "_counts", "_noted", "_total", "bounds")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self._bounds = np.array(bounds, np.int64)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._total = 0
        self._arrays: list[Int64s] = []
        self._noted = 0

    def add(self, values: Int64s) -> None:
        """Count a batch of values. The array must not change afterwards. Negative ones count as 0.

        Complexity: amortized O(log bounds) for each value.
        """
        self._arrays.append(values)
        self._noted += len(values)
        if self._noted >= _NOTED_VALUES or len(self._arrays) >= _NOTED_ARRAYS:
            self._count()

    def read(self) -> Buckets:
        """Return the counts of all values so far."""
        self._count()
        return Buckets(self._counts.tolist(), self._total)

    @property
    def size(self) -> int:
        """The number of values so far."""
        return sum(self.read().counts)

    def quantile(self, share: float) -> int | None:
        """Return the value below which a share of the values lies, about; None without values.

        The values of a bucket count as spread evenly over it. Beyond all bounds, the highest bound
        is the answer.
        """
        counts = self.read().counts
        below, wanted = 0, share * sum(counts)
        for count, low, high in zip(counts, (0, *self.bounds), self.bounds, strict=False):
            if count and below + count >= wanted:
                return low + round((high - low) * (wanted - below) / count)
            below += count
        return self.bounds[-1] if any(counts) else None

    def _count(self) -> None:
        if not self._arrays:
            return
        values = np.maximum(np.concatenate(self._arrays), 0)
        self._arrays.clear()
        self._noted = 0
        at = self._bounds.searchsorted(values)
        self._counts += np.bincount(at, minlength=len(self._counts))
        self._total += int(values.sum())
