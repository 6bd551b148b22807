"""Due-soon blocks: blocks of a segment under construction whose messages are due soon.

They are in memory anyway and will be read within seconds, so they go into the cache together
with the segment. Delivering their messages then touches no disk and waits for no thread. Each
block is copied, because it is a view of something larger. The bytes of each topic are bounded,
and its earliest blocks come first, so that no topic evicts the blocks that others need.

This module does not know segments. The checkpoint puts the blocks into the cache after it has
opened the new segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from escapement.message import Buffer
from escapement.storage.index.segments.block import Block, KeyBlock, MessageBlock, TraitBlock

_KINDS: Final[tuple[type[Block], ...]] = (KeyBlock, MessageBlock, TraitBlock)


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
        self, topic_id: int, at: int, first_ms: int, blocks: Sequence[Sequence[Buffer]]
    ) -> None:
        """Keep the blocks of a run written at ``at``, if it begins soon and there is room.

        Args:
          first_ms: when the first message is due.
          blocks: the encoded blocks of keys, of messages and, if there are any, of traits.
        """
        if first_ms > self._until_ms:
            return
        if topic_id != self._topic_id:
            self._topic_id, self._left_bytes = topic_id, self._topic_bytes
        size_bytes = sum(len(piece) for block in blocks for piece in block)
        if self._left_bytes < size_bytes:
            return
        self._left_bytes -= size_bytes
        for kind, pieces in zip(_KINDS, blocks, strict=False):
            block = b"".join(pieces)
            self.blocks.append((at, kind.decode(block, "a new segment")))
            at += len(block)
