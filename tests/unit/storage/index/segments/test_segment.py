"""Segment files: what a reader finds in them, and which files it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from escapement.errors import IndexDamaged
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.segment import HEADER, Segment
from escapement.traits import traits_of
from support.storage.index_samples import SMALL_BLOCKS, batch_of, write_checkpoint


def write_segment(directory: Path) -> Path:
    """Write a segment with 40 messages of the topic 2; return its path."""
    index = DelayedIndex.open(directory, SMALL_BLOCKS)
    index.add(2, 0, np.sort(np.arange(40) % 7), batch_of(2, list(range(40))))
    write_checkpoint(index, {})
    (path,) = directory.glob("*.segment")
    return path


def test_segment_has_the_traits_of_its_messages(tmp_path: Path) -> None:
    """V5: they order messages by priority and by key."""
    part = Segment(write_segment(tmp_path), BlockCache(1 << 20)).slice(2)
    assert part is not None
    span = part.between(KEY_MIN, KEY_MAX)
    assert span is not None
    parts = span.traits(KEY_MAX)
    traits = np.concatenate([part for part in parts if part is not None])
    assert np.array_equal(traits, traits_of(batch_of(2, list(range(40)))))
    assert part.most_traits == traits.max()


def test_segment_of_an_unknown_version_counts_as_damaged(tmp_path: Path) -> None:
    """The broker then builds the index again from the log."""
    path = write_segment(tmp_path)
    data = path.read_bytes()
    path.write_bytes(HEADER[:12] + bytes([9, 0, 0, 0]) + data[16:])
    with pytest.raises(IndexDamaged, match="unknown version"):
        Segment(path, BlockCache(1 << 20))
