"""The histogram equals a naive count of the same values."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

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


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=50), st.sampled_from([0.01, 0.5, 0.99, 1])
)
def test_quantile_is_in_the_bucket_of_the_value(values: list[int], share: float) -> None:
    """B14: at least the share of the values is not above the upper bound of its bucket."""
    histogram = Histogram(BOUNDS)
    histogram.add(np.array(values, np.int64))
    found = histogram.quantile(share)
    exact = sorted(values)[max(ceil(share * len(values)) - 1, 0)]
    at = bisect_left(BOUNDS, exact)
    assert found is not None
    if at == len(BOUNDS):
        assert found == BOUNDS[-1]
    else:
        assert (0, *BOUNDS)[at] <= found <= BOUNDS[at]
    assert histogram.size == len(values)
    assert Histogram(BOUNDS).quantile(share) is None
