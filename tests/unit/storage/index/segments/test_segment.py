"""Segments of the current and of an earlier version."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex
from escapement.storage.index.segments.block import FOOTER, BlockCache, encode
from escapement.storage.index.segments.segment import (
    COUNTS,
    RUN_COLUMNS,
    TRAILER,
    TRAILER_BYTES,
    TRAILER_END,
    Segment,
)
from escapement.traits import traits_of
from support.storage.index_samples import SMALL_BLOCKS, batch_of, write_checkpoint


def as_version_1(path: Path) -> None:
    """Convert a segment to version 1, which has no traits in its directory."""
    data = path.read_bytes()
    at, size = TRAILER.unpack_from(data, len(data) - TRAILER_BYTES)
    body = data[at + 24 : at + size]
    topics, runs = COUNTS.unpack_from(body)
    old = body[: COUNTS.size + 16 * topics + 8 * (len(RUN_COLUMNS) - 1) * runs]
    footer = b"".join(encode(FOOTER, runs, [old]))
    trailer = TRAILER.pack(at, len(footer))
    end = trailer + struct.pack("<I", zlib.crc32(trailer)) + TRAILER_END
    path.write_bytes(data[:12] + struct.pack("<I", 1) + data[16:at] + footer + end)


def test_segment_written_before_traits_existed_has_traits(tmp_path: Path) -> None:
    """V5: after an upgrade, messages stored before it are ordered like the others."""
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    due_ms = np.sort(np.arange(40) % 7)
    batch = batch_of(2, list(range(40)))
    index.add(2, 0, due_ms, batch)
    write_checkpoint(index, {})
    (path,) = tmp_path.glob("*.segment")
    for version in (2, 1):
        if version == 1:
            as_version_1(path)
        part = Segment(path, BlockCache(1 << 20)).slice(2)
        assert part is not None
        span = part.between(KEY_MIN, KEY_MAX)
        assert span is not None
        parts = span.traits(KEY_MAX)
        traits = np.concatenate([part for part in parts if part is not None])
        assert np.array_equal(traits, traits_of(batch))
        assert part.most_traits >= traits.max()
