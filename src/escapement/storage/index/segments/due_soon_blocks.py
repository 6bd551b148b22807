"""Due-soon blocks: blocks of a segment under construction whose messages are due soon.

They are in memory anyway and will be read within seconds, so they go into the cache together
with the segment. Delivering their messages then touches no disk and waits for no thread. Each
block is copied, because it is a view of something larger. The bytes of each topic are bounded,
and its earliest blocks come first, so that no topic evicts the blocks that others need.

This module does not know segments. The checkpoint puts the blocks into the cache after it has
opened the new segment.
"""

from __future__ import annotations

from escapement.message import MessageBatch, UInt32s
from escapement.storage.index.keys import Keys
from escapement.storage.index.segments.block import Block, KeyBlock, MessageBlock, TraitBlock


class DueSoonBlocks:
    """Collects the due-soon blocks of one segment.

    Args:
      until_ms: a message due up to this time is due soon.
      topic_bytes: how much to keep of each topic.
    """

    def __init__(self, until_ms: int, topic_bytes: int) -> None:
        self.blocks: list[tuple[int, Block]] = []  # with their positions in the file
        self._until_ms = until_ms
        self._topic_bytes = topic_bytes
        self._topic_id = -1
        self._left_bytes = 0

    def take(
        self, topic_id: int, at: int, keys: Keys, batch: MessageBatch, traits: UInt32s | None
    ) -> None:
        """Keep the blocks of a run written at ``at``, if it begins soon and there is room."""
        if int(keys[0][0]) > self._until_ms:
            return
        if topic_id != self._topic_id:
            self._topic_id, self._left_bytes = topic_id, self._topic_bytes
        if self._left_bytes < batch.size_bytes:
            return
        self._left_bytes -= batch.size_bytes
        blocks: list[Block] = [KeyBlock.of(keys), MessageBlock.of(batch)]
        if traits is not None:
            blocks.append(TraitBlock.of(traits))
        for block in blocks:
            self.blocks.append((at, block))
            at += block.file_bytes
