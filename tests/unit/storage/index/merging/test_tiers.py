"""The choice of segments to merge: few segments remain, and little is rewritten."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.storage.index.merging.tiers import SegmentSize, choose

MOST, WIDTH = 12, 4


def alive(name: int, size_bytes: int) -> SegmentSize:
    return SegmentSize(str(name), size_bytes, size_bytes, size_bytes)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 1 << 30), min_size=1, max_size=300))
def test_number_of_segments_stays_bounded_for_any_sizes(sizes: list[int]) -> None:
    segments: list[SegmentSize] = []
    for name, size in enumerate(sizes):
        segments.append(alive(name, size))
        while names := choose(segments, MOST, WIDTH):
            merged = [s for s in segments if s.name in names]
            assert len(merged) >= 2
            segments = [s for s in segments if s.name not in names]
            segments.append(alive(name * 1000 + len(names), sum(s.size_bytes for s in merged)))
        assert len(segments) <= MOST


def test_equal_checkpoints_are_rewritten_a_logarithmic_number_of_times() -> None:
    segments: list[SegmentSize] = []
    written, count, size = 0, 4096, 1 << 20
    for name in range(count):
        segments.append(alive(name, size))
        while names := choose(segments, MOST, WIDTH):
            total = sum(s.size_bytes for s in segments if s.name in names)
            segments = [s for s in segments if s.name not in names]
            segments.append(alive(-name, total))
            written += total
    # log(4096) to the base of 3 is 7.6
    assert written / (count * size) < 10


def test_single_segment_and_segments_of_different_sizes_are_not_merged() -> None:
    assert choose([alive(1, 1 << 30)], MOST, WIDTH) == []
    assert choose([alive(n, 10**n) for n in range(8)], MOST, WIDTH) == []


def test_mostly_dead_segments_are_rewritten_if_that_frees_space() -> None:
    worth, small = 64 << 20, 1 << 20
    live, dead = alive(1, 1 << 30), SegmentSize("2", worth, 1000, 400)
    assert choose([live, dead], MOST, WIDTH) == ["2"]
    assert choose([live, SegmentSize("2", worth, 1000, 600)], MOST, WIDTH) == []
    assert choose([live, SegmentSize("2", small, 1000, 0)], MOST, WIDTH) == []
