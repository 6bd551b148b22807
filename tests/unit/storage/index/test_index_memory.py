"""The memory tables of the delayed index: growth, readers in threads, and their bounds."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from escapement.message import Blobs, MessageBatch
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, IndexLimits, Lineage
from escapement.storage.index.keys import Keys
from support.storage.index_samples import add_range, batch_of, row_of, rows_of


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
