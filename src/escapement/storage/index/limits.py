"""The bounds of a delayed index, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.storage.index.memory import KEPT_BYTES, TABLE_ROWS
from escapement.storage.index.segments.segment import BLOCK_ROWS


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """The bounds of one index, and sizes that only tests change."""

    # Messages that are in no segment yet. At half of it the index asks for a checkpoint, because
    # messages stay in memory until the checkpoint is on disk.
    memory_bytes: int = 128 << 20
    # Blocks read from segments: a few of each segment, so that a scan reads each block once.
    cache_bytes: int = 32 << 20
    # More segments than this are merged whatever their sizes, because a plan looks into each.
    max_segments: int = 12
    # At this many segments a checkpoint waits until some are merged. So a read, above all the
    # loading of a partition, opens a bounded number of files, however fast messages arrive and
    # however long a large merge takes. This is well above ``max_segments``, or publishing would
    # wait for each large merge.
    most_segments: int = 32
    # While memory fills so fast that checkpoints begin because it is half full, merging starts
    # only at this many segments. A merge takes disk and processors from publishers and consumers,
    # and the more segments it merges, the less often a byte is rewritten. This is below
    # ``most_segments`` by the segments that may arrive during such a merge.
    filling_segments: int = 20
    # Segments of similar size to merge: fewer rewrite bytes more often, more make reads slower.
    merge_width: int = 4
    block_rows: int = BLOCK_ROWS
    table_rows: int = TABLE_ROWS
    kept_bytes: int = KEPT_BYTES
