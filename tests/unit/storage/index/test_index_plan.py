"""Plans and fetches: progress, pinned entries, and the memory of idle topics."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from escapement.errors import IndexDamaged
from escapement.message import Blobs, MessageBatch
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, IndexLimits, Key, Lineage
from escapement.storage.index.keys import Keys
from escapement.storage.index.segments.block import BlockCache, KeyBlock
from support.storage.index_samples import batch_of, row_of, rows_of, write_checkpoint

ALL_AT_ONCE = 50_000


def add_range(index: DelayedIndex, topic: int, first: int, count: int, due_ms: int) -> None:
    offsets = list(range(first, first + count))
    index.add(topic, first, np.full(count, due_ms, np.int64), batch_of(topic, offsets))


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


def test_excluded_messages_are_kept_until_they_are_due(tmp_path: Path) -> None:
    """N3: a new subscription, or one after a seek, may still need them."""
    index = DelayedIndex.open(tmp_path)
    add_range(index, 1, 0, 10, 5)
    add_range(index, 1, 10, 10, 7)
    write_checkpoint(index, {})
    compaction = index.begin_compaction([s.name for s in tmp_path.glob("*.segment")], 6)
    compaction.exclude(1, np.arange(20))
    compaction.run_here()
    compaction.finish()
    index.install_compaction(compaction)
    due_ms, offsets = index.plan(1, KEY_MIN, KEY_MAX, 1000).read()
    assert set(due_ms.tolist()) == {7}
    assert offsets.tolist() == list(range(10, 20))


def test_compaction_keeps_one_key_or_none_of_an_outdated_message(tmp_path: Path) -> None:
    """B1: for messages that are due or not, and for one that is excluded too."""
    index = DelayedIndex.open(tmp_path)
    for topic in (1, 2):
        for due_ms in (5, 7, 9):
            offsets = np.arange(20)
            index.add(topic, offsets, np.full(20, due_ms), batch_of(topic, offsets.tolist()))
            write_checkpoint(index, {})
    compaction = index.begin_compaction([s.name for s in tmp_path.glob("*.segment")], 6)
    compaction.exclude(1, np.array([1, 2]))
    compaction.outdate(1, np.array([2, 3, 4, 11]), np.array([5, 7, -1, 9]))
    compaction.outdate(1, np.array([12]), np.array([-1]))
    compaction.run_here()
    compaction.finish()
    index.install_compaction(compaction)
    due_ms, offsets = index.plan(1, KEY_MIN, KEY_MAX, 1000).read()
    found: dict[int, list[int]] = {}
    for due, offset in zip(due_ms.tolist(), offsets.tolist(), strict=True):
        found.setdefault(offset, []).append(due)
    changed = {1: [7, 9], 3: [7], 11: [9]}
    gone = (2, 4, 12)
    assert found == {n: changed.get(n, [5, 7, 9]) for n in range(20) if n not in gone}
    assert index.count(2) == 60
    assert {path.suffix for path in tmp_path.iterdir()} == {"", ".segment"}


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
    compaction.finish()
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


def test_messages_due_soon_are_in_memory_after_a_checkpoint(tmp_path: Path) -> None:
    """P3: delivered without reading the disk; later messages are read when they are due."""
    index = DelayedIndex.open(tmp_path, IndexLimits(block_rows=10))
    add_range(index, 1, 0, 40, 100)
    add_range(index, 1, 40, 10, 300)
    add_range(index, 2, 0, 30, 200)
    add_range(index, 2, 30, 30, 100)
    write_checkpoint(index, {}, due_soon_ms=200, far_ms=250)
    for topic, offsets, due_ms in ((1, range(40), 100), (2, range(30), 200), (2, [59, 31], 100)):
        fetch = index.fetch(topic, np.full(len(offsets), due_ms, np.int64), np.array(offsets))
        assert fetch.in_memory
        assert rows_of(fetch.read()) == [row_of(topic, offset) for offset in offsets]
    assert not index.fetch(1, np.full(1, 300, np.int64), np.array([45])).in_memory
    both = index.fetch(1, np.array([100, 300]), np.array([3, 45]))
    assert not both.in_memory
    assert rows_of(both.read()) == [row_of(1, 3), row_of(1, 45)]


def test_due_soon_blocks_of_one_topic_do_not_fill_the_cache(tmp_path: Path) -> None:
    """Invariant 9: only the earliest messages of a large topic are in memory."""
    size = 1000
    limits = IndexLimits(block_rows=10, cache_bytes=400 * size)
    index = DelayedIndex.open(tmp_path, limits)
    payloads = Blobs(np.full(200, size, np.uint32), b"x" * (200 * size))
    for topic in (1, 2):
        index.add(topic, 0, np.arange(200), MessageBatch(payloads))
    write_checkpoint(index, {}, due_soon_ms=1000, far_ms=1000)
    for topic in (1, 2):
        in_memory = [
            index.fetch(topic, np.array([row]), np.array([row])).in_memory for row in range(200)
        ]
        assert in_memory == [row < sum(in_memory) for row in range(200)]
        assert 30 <= sum(in_memory) <= 50, "a topic uses an eighth of the cache"


@pytest.mark.parametrize("far_ms", [50, 150])
def test_large_segment_written_past_the_cache_is_read_like_any_other(
    tmp_path: Path, far_ms: int
) -> None:
    index = DelayedIndex.open(tmp_path)
    count, size = 20_000, 1000
    data = np.random.default_rng(1).bytes(count * size)
    batch = MessageBatch(Blobs(np.full(count, size, np.uint32), data))
    index.add(1, 0, np.full(count, 100, np.int64), batch)
    write_checkpoint(index, {}, due_soon_ms=-1, far_ms=far_ms)
    offsets = np.arange(0, count, 97)
    found = index.fetch(1, np.full(len(offsets), 100, np.int64), offsets).read()
    assert found.payloads.to_list() == [data[at * size : (at + 1) * size] for at in offsets]
    assert DelayedIndex.open(tmp_path).count(1) == count


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


def test_no_message_is_lost_while_tables_grow(tmp_path: Path) -> None:
    index = DelayedIndex.open(tmp_path, IndexLimits(table_rows=1000))
    rng = np.random.default_rng(5)
    at = 0
    for count in (1, 1, 5000, 300, 999, 1, 2):
        offsets = list(range(at, at + count))
        index.add(1, at, rng.integers(0, 50, count), batch_of(1, offsets))
        at += count
    due_ms, offsets_read = index.plan(1, KEY_MIN, KEY_MAX, 10**9).read()
    assert sorted(offsets_read.tolist()) == list(range(at))
    rows = rows_of(index.fetch(1, due_ms, offsets_read).read())
    assert rows == [row_of(1, offset) for offset in offsets_read.tolist()]


def test_reader_in_another_thread_sees_complete_rows_while_topic_grows(
    tmp_path: Path,
) -> None:
    """P3: pinned rows are read while another thread adds rows."""
    index = DelayedIndex.open(tmp_path, IndexLimits(table_rows=3000))
    rng = np.random.default_rng(9)
    groups = [list(range(first, first + 70)) for first in range(0, 7_000, 70)]
    with ThreadPoolExecutor(1) as reader:
        reads: list[tuple[int, Keys, Future[Any]]] = []
        for number, offsets in enumerate(groups):
            index.add(1, offsets[0], rng.integers(0, 90, 70), batch_of(1, offsets))
            if number % 10 == 0:
                plan = index.plan(1, KEY_MIN, KEY_MAX, 10**6)
                keys = plan.read()
                reads.append((number, keys, reader.submit(plan.read)))
                fetch = index.fetch(1, *keys)
                reads.append((number, keys, reader.submit(fetch.read)))
        for number, (due_ms, offsets_read), read in reads:
            assert sorted(offsets_read.tolist()) == list(range(70 * number + 70))
            result = read.result()
            if isinstance(result, MessageBatch):
                assert rows_of(result) == [row_of(1, offset) for offset in offsets_read.tolist()]
            else:
                assert result[0].tolist() == due_ms.tolist()


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


def test_dropped_topic_leaves_memory_at_once_and_the_disk_when_merged(tmp_path: Path) -> None:
    index = DelayedIndex.open(tmp_path)
    for topic in (1, 2):
        add_range(index, topic, 0, 10, 5)
    write_checkpoint(index, {})
    for topic in (1, 2):
        add_range(index, topic, 10, 10, 5)
    index.drop_topic(1)
    index.add(1, 20, np.array([5]), batch_of(1, [20]))
    assert index.topics() == {2}
    assert index.count(1) == 0
    assert not len(index.plan(1, KEY_MIN, KEY_MAX, 10).read()[0])
    assert index.next_due(1, KEY_MIN) is None
    write_checkpoint(index, {})
    # After a start the index names the topic until the caller drops it again.
    index = DelayedIndex.open(tmp_path)
    assert index.topics() == {1, 2}
    index.drop_topic(1)
    assert index.manifest is not None
    compaction = index.begin_compaction(list(index.manifest.segments))
    assert [each.topic_id for each in compaction.ranges()] == [2]
    compaction.run()
    compaction.finish()
    index.install_compaction(compaction)
    assert DelayedIndex.open(tmp_path).topics() == {2}


def test_topics_with_one_message_take_little_memory(tmp_path: Path) -> None:
    """Invariant 9: a broker may have a hundred thousand topics, most of them idle."""
    index = DelayedIndex.open(tmp_path)
    batch, due_ms = MessageBatch(Blobs.of([b"x" * 100])), np.array([5])
    index.add(0, 0, due_ms, batch)
    gc.collect()
    tracemalloc.start()
    count = 2000
    for topic in range(1, count + 1):
        index.add(topic, 0, due_ms, batch)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count < 1500
    assert used == pytest.approx(index.memory_bytes, rel=0.2)


def test_large_batch_is_kept_without_a_copy_and_counted(tmp_path: Path) -> None:
    """Invariant 9."""
    index = DelayedIndex.open(tmp_path, IndexLimits(kept_bytes=100_000))
    batch = MessageBatch.decode(MessageBatch(Blobs.of([b"x" * 1000] * 200)).encode())
    due_ms = np.full(200, 5)
    tracemalloc.start()
    index.add(1, 0, due_ms, batch)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 20_000
    assert 200_000 < index.memory_bytes < 220_000
    assert index.fetch(1, due_ms, np.arange(200)).read().payloads.to_list() == [b"x" * 1000] * 200


def test_batch_that_is_a_small_part_of_a_buffer_is_copied(tmp_path: Path) -> None:
    """Invariant 9: no memory is held that is not counted."""
    index = DelayedIndex.open(tmp_path, IndexLimits(kept_bytes=100_000))
    whole = np.zeros(1_000_000, np.uint8)
    gone = weakref.ref(whole)
    part = Blobs(np.full(200, 1000, np.uint32), whole[:200_000].data)
    index.add(1, 0, np.full(200, 5), MessageBatch(part))
    del whole, part
    assert gone() is None
    assert index.memory_bytes < 220_000


def test_index_needs_a_checkpoint_at_half_of_its_memory(tmp_path: Path) -> None:
    """Invariant 9: entries of a running checkpoint count as memory until they are on disk."""
    index = DelayedIndex.open(tmp_path, IndexLimits(memory_bytes=400_000))
    at = 0
    while not index.needs_checkpoint:
        add_range(index, 1, at, 100, 5)
        at += 100
    assert not index.is_full
    checkpoint = index.begin_checkpoint()
    assert not index.needs_checkpoint
    while not index.is_full:
        add_range(index, 1, at, 100, 5)
        at += 100
    for group in checkpoint.groups():
        checkpoint.write(group, [None] * len(group.parts()))
    checkpoint.finish("log", {}, Lineage())
    index.install(checkpoint)
    assert not index.is_full
    assert index.count(1) == at


def test_block_cache_keeps_recently_read_blocks_within_its_bound() -> None:
    """Invariant 9."""
    column = np.arange(10)
    cache = BlockCache(50_000)
    for number in range(100):
        cache.put((1, number), KeyBlock((column, column), 1_000))
    assert cache.get((1, 50)) is not None
    cache.put((1, 100), KeyBlock((column, column), 50_001))
    cache.put((1, 101), KeyBlock((column, column), 2_000))
    kept = [number for number in range(102) if cache.get((1, number)) is not None]
    assert kept == [50, *range(53, 100), 101]


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
