"""The bounds of a delayed index, each with its reason.

The index has new messages in memory tables, until a checkpoint writes them to a file, a *segment*.
Merges keep the number of segments small.
"""

from __future__ import annotations

from dataclasses import dataclass

from escapement.storage.index.memory import KEPT_BYTES, TABLE_ROWS
from escapement.storage.index.segments.segment import BLOCK_ROWS


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """The bounds of one delayed index, with their defaults."""

    # The memory of messages that are in no segment yet. When half of it is used, the index asks
    # for a checkpoint: new messages need the other half until the checkpoint is on disk.
    memory_bytes: int = 128 << 20
    # The size of the cache of blocks that were read from segments. A few blocks of each segment
    # fit, so that a scan reads each block once.
    cache_bytes: int = 32 << 20
    # If there are more segments than this, the smallest are merged whatever their sizes, because
    # each read looks into every segment.
    max_segments: int = 12
    # If there are this many segments, a checkpoint waits until some are merged. So a read opens a
    # bounded number of files, however fast messages arrive and however long a large merge takes.
    # The number is well above ``max_segments``, or publishing would wait for each large merge.
    most_segments: int = 32
    # While messages arrive so fast that checkpoints begin because memory is half full, a merge
    # begins only if there are this many segments. A merge takes disk and processors from
    # publishers and consumers, and the more segments it merges, the less often a byte is
    # rewritten. The difference to ``most_segments`` leaves room for the segments that are written
    # during such a merge.
    filling_segments: int = 20
    # Segments of similar size are merged when there are this many. With a smaller number, bytes
    # are rewritten more often. With a larger number, reads look into more segments.
    merge_width: int = 4
    # At most this many messages are in one block of a segment.
    block_rows: int = BLOCK_ROWS
    # At most this many messages are in one memory table.
    table_rows: int = TABLE_ROWS
    # A batch with payloads of at least this size becomes a memory table without a copy.
    kept_bytes: int = KEPT_BYTES
