"""Ranges of the delivery order, for rebuilding an index in parallel."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.pipeline.rebuilding.ranges import Ranges, Sample

keys = st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(0, 30))


@given(st.lists(keys, unique=True, max_size=60), st.integers(1, 9))
def test_every_key_is_in_the_range_between_its_cuts(
    named: list[tuple[int, int, int]], count: int
) -> None:
    """P5: the ranges are in the order of the keys."""
    samples = []
    for topic in range(1, 5):
        own = [key[1:] for key in named if key[0] == topic]
        due_ms, offsets = np.array(own, np.int64).reshape(-1, 2).T
        samples.append(Sample.of(topic, due_ms, offsets, 1.0))
    ranges = Ranges.cut(samples, count)
    assert ranges.count <= count
    columns = (ranges.topic_ids, ranges.due_ms, ranges.offsets)
    cuts = list(zip(*(column.tolist() for column in columns), strict=True))
    assert cuts == sorted(set(cuts))
    for topic, due_ms, offset in named:
        expected = sum(cut <= (topic, due_ms, offset) for cut in cuts)
        found = ranges.of(topic, np.array([due_ms]), np.array([offset]))
        assert found.tolist() == [expected]


def test_ranges_contain_about_the_same_number_of_messages() -> None:
    """P5: half of one topic falls due at one moment, and the other topic is much larger."""
    rng = np.random.default_rng(5)
    small, large = np.sort(rng.integers(0, 10**9, 10_000)), rng.integers(0, 10**6, 90_000)
    small[:5_000] = 7
    offsets = np.arange(90_000)
    samples = [Sample.of(1, small, offsets[:10_000], 1.0)]
    for row in range(0, 90_000, 9_000):
        # Every third log row is sampled.
        if row % 27_000 == 0:
            part = slice(row, row + 9_000)
            samples.append(Sample.of(2, large[part], offsets[part], 90_000 / 36_000))
    ranges = Ranges.cut(samples, 20)
    found = [ranges.of(1, small, offsets[:10_000]), ranges.of(2, large, offsets)]
    counts = np.bincount(np.concatenate(found), minlength=20)
    assert ranges.count == 20
    assert counts.min() > 3_000
    assert counts.max() < 8_000


def test_no_messages_give_one_range() -> None:
    """P5."""
    none = np.zeros(0, np.int64)
    ranges = Ranges.cut([Sample.of(1, none, none, 1.0)], 4)
    assert ranges.count == 1
    assert ranges.of(1, np.array([5]), np.array([6])).tolist() == [0]
