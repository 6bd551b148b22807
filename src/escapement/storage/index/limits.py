"""The bounds of a delayed index, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.storage.index.memory import KEPT_BYTES, TABLE_ROWS
from escapement.storage.index.segment import BLOCK_ROWS


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """What one index may take, and the sizes that only tests have reason to change."""

    # Messages that no segment has yet. Half of it asks for a checkpoint, because what
    # is being written stays in memory until it is on disk.
    memory_bytes: int = 128 << 20
    # Blocks read from segments: a few of each, so that a scan reads each block once.
    cache_bytes: int = 32 << 20
    # More segments than this are merged whatever their sizes: a plan looks into each.
    max_segments: int = 12
    # No checkpoint adds one to so many: it waits until some are merged. So no read, and above
    # all no loading of a partition, opens more files, however fast messages come in and however
    # long a large merge takes. Some room above the number that merging keeps to, or publishing
    # would wait for each large merge.
    most_segments: int = 32
    # While memory fills so fast that it is written because it is half full, only from so many on:
    # a merge takes disk and processors from those who publish and those who wait, and the more
    # there are, the less often is a byte written again. Below ``most_segments`` by what may come
    # while so many are merged.
    filling_segments: int = 20
    # Segments of like size that are merged: fewer write more often, more read more files.
    merge_width: int = 4
    block_rows: int = BLOCK_ROWS
    table_rows: int = TABLE_ROWS
    kept_bytes: int = KEPT_BYTES
