"""Blocks of a segment that is being written whose messages are due soon.

They are in memory anyway, and will be read within seconds: they go into the cache together
with the segment, so that delivering them touches no disk and waits for no thread. A copy of each
is kept, because what they were cut out of is larger. How much of each topic is bounded, the
earliest first, so that none drives out of the cache what others need.

Knows nothing of segments; whoever opens the one that was written hands them over.
"""

from __future__ import annotations

from escapement.message import MessageBatch, UInt32s
from escapement.storage.index.block import Block, KeyBlock, MessageBlock, TraitBlock
from escapement.storage.index.keys import Keys


class NearBlocks:
    """See the module's docstring.

    Args:
      until_ms: until when a message is due soon.
      topic_bytes: how much is kept of each topic.
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
        """A run was written at ``at``: keep its blocks if it begins soon, and there is room."""
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
