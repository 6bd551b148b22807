"""The cache of blocks of segments."""

from __future__ import annotations

import numpy as np

from escapement.storage.index.segments.block import BlockCache, KeyBlock


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
