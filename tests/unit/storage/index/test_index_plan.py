"""Plans and fetches: progress, pinned entries and due times."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest

from escapement.errors import IndexDamaged
from escapement.message import Blobs, MessageBatch
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, Key
from support.storage.index_samples import add_range, batch_of, row_of, rows_of, write_checkpoint

ALL_AT_ONCE = 50_000


def scan_frames(index: DelayedIndex, topic: int, most: int) -> list[int]:
    """Return the sizes of the frames. Assert that together they are the whole topic."""
    at, frames, seen = KEY_MIN, [], []
    while at < KEY_MAX:
        plan = index.plan(topic, at, KEY_MAX, most)
        _, offsets = plan.read()
        seen += offsets.tolist()
        frames.append(len(offsets))
        at = plan.stop
    assert len(seen) == len(set(seen))
    return frames


@pytest.mark.parametrize("on_disk", [False, True])
def test_messages_due_in_one_millisecond_are_read_in_small_plans(
    tmp_path: Path, on_disk: bool
) -> None:
    """Invariants 4 and 9: a plan can stop between messages with equal due times."""
    index = DelayedIndex.open(tmp_path)
    blobs = Blobs(np.ones(ALL_AT_ONCE, np.uint32), b"x" * ALL_AT_ONCE)
    index.add(1, 0, np.full(ALL_AT_ONCE, 7, np.int64), MessageBatch(blobs))
    if on_disk:
        write_checkpoint(index, {})
    frames = scan_frames(index, 1, 500)
    assert sum(frames) == ALL_AT_ONCE
    # A plan from a segment is at least a block.
    assert max(frames) <= (4096 if on_disk else 1000)
    assert len(frames) <= (15 if on_disk else 250)


def test_plan_over_many_segments_differs_from_its_size_by_a_block_each(tmp_path: Path) -> None:
    index = DelayedIndex.open(tmp_path)
    rng = np.random.default_rng(3)
    count, segments, most = 10_000, 6, 20_000
    for number in range(segments):
        blobs = Blobs(np.ones(count, np.uint32), b"x" * count)
        index.add(1, number * count, rng.integers(0, 10_000, count), MessageBatch(blobs))
        write_checkpoint(index, {})
    frames = scan_frames(index, 1, most)
    assert sum(frames) == segments * count
    assert all(abs(frame - most) <= 4096 * segments for frame in frames[:-1])


def test_fetch_accepts_missing_messages_only_in_the_given_range(
    tmp_path: Path,
) -> None:
    """Invariant 4: messages of a running fill may have left the index in the meantime."""
    index = DelayedIndex.open(tmp_path)
    add_range(index, 1, 0, 10, 5)
    write_checkpoint(index, {})
    add_range(index, 1, 20, 10, 5)
    offsets = np.arange(5, 25)[::-1]
    fetch = index.fetch(1, np.full(20, 5, np.int64), offsets)
    there, batch = fetch.read_there(10, 20)
    assert there is not None
    assert offsets[there].tolist() == [24, 23, 22, 21, 20, 9, 8, 7, 6, 5]
    expected = index.fetch(1, np.full(10, 5, np.int64), offsets[there]).read()
    assert batch.payloads.to_list() == expected.payloads.to_list()
    with pytest.raises(IndexDamaged, match="lacks 1 of 20"):
        fetch.read_there(11, 20)
    none, empty = index.fetch(1, np.full(2, 5, np.int64), np.array([12, 13])).read_there(10, 20)
    assert none is not None
    assert (len(none), len(empty)) == (0, 0)


def test_plan_reads_its_entries_after_a_checkpoint_and_a_compaction(
    tmp_path: Path,
) -> None:
    index = DelayedIndex.open(tmp_path)
    add_range(index, 1, 0, 100, 5)
    write_checkpoint(index, {})
    add_range(index, 1, 100, 100, 5)
    plan = index.plan(1, KEY_MIN, KEY_MAX, 1000)
    offsets = np.arange(200)
    fetch = index.fetch(1, np.full(200, 5, np.int64), offsets)
    add_range(index, 1, 200, 5000, 5)
    write_checkpoint(index, {})
    compaction = index.begin_compaction(list(index.manifest.segments if index.manifest else ()))
    compaction.exclude(1, offsets)
    compaction.run_here()
    compaction.finish({})
    replaced = [weakref.ref(segment) for segment in compaction.inputs]
    index.install_compaction(compaction)
    compaction.let_go()
    assert index.count(1) == 5000
    assert plan.read()[1].tolist() == offsets.tolist()
    assert rows_of(fetch.read()) == [row_of(1, offset) for offset in range(200)]
    del plan, fetch
    assert not any(one() for one in replaced)


def test_in_memory_is_false_only_for_entries_on_disk(tmp_path: Path) -> None:
    index = DelayedIndex.open(tmp_path)
    add_range(index, 1, 0, 10, 100)
    write_checkpoint(index, {})
    add_range(index, 1, 10, 10, 200)
    assert not index.plan(1, KEY_MIN, KEY_MAX, 100).in_memory
    assert index.plan(1, Key(101, 0), KEY_MAX, 100).in_memory
    assert not len(index.plan(1, Key(101, 0), Key(200, 0), 100).read()[0])
    assert not len(index.plan(2, KEY_MIN, KEY_MAX, 100).read()[0])
    young = index.fetch(1, np.full(2, 200, np.int64), np.array([12, 11]))
    assert young.in_memory
    assert rows_of(young.read()) == [row_of(1, 12), row_of(1, 11)]
    old = index.fetch(1, np.full(1, 100, np.int64), np.array([3]))
    assert not old.in_memory
    assert rows_of(old.read()) == [row_of(1, 3)]
    assert old.in_memory, "blocks that were read are in the cache"
    assert len(index.fetch(1, np.zeros(0, np.int64), np.zeros(0, np.int64)).read()) == 0


def test_unknown_key_is_damage_and_the_error_names_the_topic(tmp_path: Path) -> None:
    index = DelayedIndex.open(tmp_path)
    add_range(index, 7, 0, 10, 100)
    fetch = index.fetch(7, np.array([100, 100, 101]), np.array([3, 10, 3]))
    with pytest.raises(IndexDamaged, match="lacks 2 of 3 messages of topic 7"):
        fetch.read()


def test_the_next_due_time_is_exact_once_a_block_is_read(tmp_path: Path) -> None:
    """Invariant 4: a task may sleep until this time."""
    index = DelayedIndex.open(tmp_path)
    assert index.next_due(1, KEY_MIN) is None
    index.add(1, 0, np.array([50, 10, 90]), batch_of(1, [0, 1, 2]))
    assert index.next_due(1, KEY_MIN) == 10
    write_checkpoint(index, {})
    assert index.next_due(1, KEY_MIN) == 10
    assert index.next_due(1, Key(11, 0)) == 11  # too early: the block has not been read
    index.plan(1, Key(11, 0), Key(12, 0), 10).read()
    assert index.next_due(1, Key(11, 0)) == 50
    assert index.next_due(1, Key(91, 0)) is None


@pytest.mark.parametrize("on_disk", [False, True])
def test_plan_between_two_keys_is_empty(tmp_path: Path, on_disk: bool) -> None:
    """Invariant 4: a scan that finds nothing continues after the range."""
    index = DelayedIndex.open(tmp_path)
    for first, due_ms in ((0, 10), (20, 30)):
        add_range(index, 1, first, 20, due_ms)
    if on_disk:
        write_checkpoint(index, {})
    plan = index.plan(1, Key(15, 0), Key(25, 0), 100)
    assert list(map(len, plan.read())) == [0, 0]
    due_ms, offsets, traits = plan.read_traits()
    assert (len(due_ms), len(offsets), traits) == (0, 0, None)
    assert plan.stop == Key(25, 0)


@pytest.mark.parametrize("keyed_first", [False, True])
def test_neighbours_with_and_without_keys_are_read_as_one_run(
    tmp_path: Path, keyed_first: bool
) -> None:
    index = DelayedIndex.open(tmp_path)
    for group in range(4):
        payloads = Blobs.of([b"%d" % group] * 3)
        keys = Blobs.of([b"k", b"", b"key"]) if (group % 2 == 0) == keyed_first else None
        index.add(1, 3 * group, np.full(3, 5, np.int64), MessageBatch(payloads, keys))
    batch = index.fetch(1, np.full(12, 5, np.int64), np.arange(12)).read()
    assert batch.payloads.to_list() == [b"%d" % (row // 3) for row in range(12)]
    keyed, plain = [b"k", b"", b"key"], [b"", b"", b""]
    assert batch.keys is not None
    assert batch.keys.to_list() == ([*keyed, *plain] if keyed_first else [*plain, *keyed]) * 2


def test_count_between_two_keys_is_approximate(tmp_path: Path) -> None:
    """P10: the count is exact in memory; on disk it assumes evenly spread blocks."""
    index = DelayedIndex.open(tmp_path)
    rng = np.random.default_rng(5)
    count, segments = 20_000, 3
    due_ms = [rng.integers(0, 10_000, count) for _ in range(segments + 1)]
    for number, column in enumerate(due_ms):
        blobs = Blobs(np.ones(count, np.uint32), b"x" * count)
        index.add(1, number * count, column, MessageBatch(blobs))
        if number < segments:
            write_checkpoint(index, {})
    every = np.concatenate(due_ms)
    for low, high in ((0, 10_000), (2_345, 7_891), (5_000, 5_001), (9_999, 20_000), (7, 7)):
        exact = int(((every >= low) & (every < high)).sum())
        assert abs(index.count_between(1, Key(low, 0), Key(high, 0)) - exact) <= 400
    assert index.count_between(1, KEY_MIN, KEY_MAX) == len(every)
    assert index.count_between(2, KEY_MIN, KEY_MAX) == 0
