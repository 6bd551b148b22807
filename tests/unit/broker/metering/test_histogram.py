"""The histogram equals a naive count of the same values."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.metering.histogram import Buckets, Histogram

BOUNDS = (1, 10, 100)
BATCHES = st.lists(st.lists(st.integers(-5, 200), max_size=20), max_size=300)


@given(BATCHES, st.integers(1, 50))
def test_histogram_equals_a_naive_count(batches: list[list[int]], every: int) -> None:
    """O4: in batches of any sizes, and if it is read in between."""
    histogram = Histogram(BOUNDS)
    counts, total = [0] * (len(BOUNDS) + 1), 0
    for at, batch in enumerate(batches):
        histogram.add(np.array(batch, np.int64))
        for value in batch:
            counts[bisect_left(BOUNDS, max(value, 0))] += 1
            total += max(value, 0)
        if at % every == 0:
            assert histogram.read() == Buckets(counts, total)
    assert histogram.read() == Buckets(counts, total)


def test_noted_values_are_bounded() -> None:
    """Q10: a histogram that nobody reads keeps few values."""
    histogram = Histogram(BOUNDS)
    for _ in range(10_000):
        histogram.add(np.zeros(3, np.int64))
        assert len(histogram._arrays) < 256
    assert histogram.read() == Buckets([30_000, 0, 0, 0], 0)
