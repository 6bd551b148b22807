"""Due-soon blocks: blocks of a new segment file whose messages are due soon.

A segment consists of blocks: for each *run* of messages, one of keys, one of messages and, if
needed, one of traits. While a checkpoint writes them, those with messages due soon are collected
here. When the segment is complete, the checkpoint puts them into the block cache. Delivering their
messages then needs no disk access and waits for no thread.

Each block is copied, because it is a view of a larger buffer. The blocks of one topic, earliest
first, are bounded in bytes, so that no topic evicts the blocks of other topics from the cache.
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
      until_ms: messages due up to this time are due soon.
      topic_bytes: the maximal size of the collected blocks of one topic.
    """

    def __init__(self, until_ms: int, topic_bytes: int) -> None:
        self.blocks: list[tuple[int, Block]] = []  # (position in the file, block)
        self._until_ms = until_ms
        self._topic_bytes = topic_bytes
        self._topic_id = -1
        self._left_bytes = 0

    def take(
        self, topic_id: int, at: int, first_ms: int, blocks: Sequence[Sequence[Buffer]]
    ) -> None:
        """Collect the blocks of a run if its first message is due soon and the topic has room.

        Args:
          at: the position of the first block in the file.
          first_ms: when the first message of the run is due.
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
