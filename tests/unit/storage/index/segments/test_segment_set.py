"""The set of segments: their order, lookups of topics, and changes of the set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from escapement.errors import IndexDamaged
from escapement.storage.index import DelayedIndex
from escapement.storage.index.segments import segment_set
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.segment import Segment
from escapement.storage.index.segments.segment_set import Segments
from support.storage.index_samples import SMALL_BLOCKS, batch_of, write_checkpoint

# For each segment, in the order in which they are written: the due time of all messages, and the
# topics, which have a message each.
WRITTEN = ((30, [1, 2]), (10, [2, 3]), (20, [1]))


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    for number, (due_ms, topics) in enumerate(WRITTEN):
        for topic in topics:
            index.add(topic, number, np.array([due_ms]), batch_of(topic, [number]))
        write_checkpoint(index, {0: (number + 1, b"")})
    manifest = index.manifest
    assert manifest is not None
    return Segments.open(tmp_path, manifest.segments, BlockCache(1 << 20))


def due_times(segments: Segments, topic: int) -> list[int]:
    return [part.segment.first_due_ms for part in segments.of(topic)]


def test_a_topics_parts_are_in_the_order_of_the_earliest_due_times(segments: Segments) -> None:
    """V5."""
    assert [segment.first_due_ms for segment in segments] == [10, 20, 30]
    assert [due_times(segments, topic) for topic in range(5)] == [
        [],
        [20, 30],
        [10, 30],
        [10],
        [],
    ]


def test_a_swap_takes_effect_for_topics_that_were_looked_up_before(segments: Segments) -> None:
    """V5: a lookup after a merge never returns a segment that is gone."""
    early, middle, late = segments
    for topic in (1, 2, 3):
        segments.of(topic)
    segments.swap([early, late], None)
    assert [due_times(segments, topic) for topic in (1, 2, 3)] == [[20], [], []]
    segments.swap([middle], late)
    assert [due_times(segments, topic) for topic in (1, 2, 3)] == [[30], [30], []]
    segments.swap([], early)
    assert list(segments) == [early, late]
    assert segments.size_bytes == early.size_bytes + late.size_bytes


def test_lookups_of_many_topics_are_right_and_keep_the_cache_bounded(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 9."""
    monkeypatch.setattr(segment_set, "_REMEMBERED_TOPICS", 2)
    for topic in (1, 2, 3, 2, 1):
        assert due_times(segments, topic) == {1: [20, 30], 2: [10, 30], 3: [10]}[topic]
        assert len(segments._slices) <= 2


def test_new_paths_never_name_an_existing_segment(segments: Segments) -> None:
    """Invariant 7: also not one that a merge has removed."""
    existing = {segment.path for segment in segments}
    segments.swap(list(segments), None)
    paths = [segments.next_path() for _ in range(3)]
    assert len({*paths, *existing}) == len(existing) + 3
    assert paths == sorted(paths)
    assert all(path > max(existing) for path in paths)


def test_segment_of_another_size_than_the_manifest_names_is_damage(
    segments: Segments, tmp_path: Path
) -> None:
    """Invariant 7."""
    (first, *_) = segments
    sizes = {first.path.name: first.size_bytes}
    cache = BlockCache(1 << 20)
    assert [one.path for one in Segments.open(tmp_path, sizes, cache)] == [first.path]
    with pytest.raises(IndexDamaged, match=f"has {first.size_bytes} of {first.size_bytes + 1}"):
        Segments.open(tmp_path, {first.path.name: first.size_bytes + 1}, cache)
    assert isinstance(Segments(tmp_path, [first]).named([first.path.name])[0], Segment)
