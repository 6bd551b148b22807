"""A segment that is written past the system's page cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from escapement.message import Blobs, MessageBatch
from escapement.storage.index import DelayedIndex
from support.storage.index_samples import write_checkpoint


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
