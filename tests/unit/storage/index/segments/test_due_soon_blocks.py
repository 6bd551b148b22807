"""Messages that are due soon are in memory after a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from escapement.message import Blobs, MessageBatch
from escapement.storage.index import DelayedIndex, IndexLimits
from support.storage.index_samples import add_range, row_of, rows_of, write_checkpoint


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
