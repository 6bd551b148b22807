"""Reading a topic by offset: pages of the log, without a subscription.

Pages are ordered and repeatable (N1): a page has the messages as they were published, even if they
were delivered, acknowledged or cancelled since. The log deletes its oldest part from time to time.
Messages in that part that were still live were *restated* in a later row, so they can be read; the
others are gone. A page is bounded in messages and bytes, and the broker remembers nothing between
two pages. So a client occupies only the log reader, and only for the time of one page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from escapement.broker.log.log_reader import LogPart, LogReader
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s, MessageBatch
from escapement.storage.log.published import Published

# The most bytes of a page besides its first log row. That row may be as large as a whole batch, and
# the page must still fit a frame of the wire protocol.
_PAGE_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Messages in the arrival order, as columns.

    ``next_offset`` is the offset at which the next page begins. ``end_offset`` is where the log
    ends.
    """

    offsets: Int64s
    due_ms: Int64s
    published_ms: Int64s
    batch: MessageBatch
    next_offset: int
    end_offset: int


async def read_page(
    topic: Topic, log: LogReader, start: int, stop: int | None, max_messages: int
) -> Page:
    """Return a page of the first messages with offsets in ``[start, stop)``.

    Args:
      stop: None: the end of the log.

    Raises:
      StorageUnavailable: if the database cannot be reached.
      LogDamaged: if a row fails its checksum.
    """
    end = topic.next_offset
    stop = end if stop is None else min(stop, end)
    parts: list[LogPart] = []
    reached = start
    if start < stop:
        parts, reached = await log.read_due(topic.id, start, stop, 0, _PAGE_BYTES)
        begin = min(parts[0].base_offset, stop) if parts else stop
        if start < begin:
            early = await _read_before(topic, log, start, begin, max_messages)
            if len(early.offsets) or early.next_offset < begin:
                return early
    found = Published.concat([_published(part) for part in parts])
    found = found.pick((found.offsets >= start) & (found.offsets < stop))
    if len(found.offsets) > max_messages:
        found = found.part(0, max_messages)
        reached = int(found.offsets[-1]) + 1
    return Page(*found, max(start, min(reached, stop)), end)


async def _read_before(
    topic: Topic, log: LogReader, start: int, begin: int, max_messages: int
) -> Page:
    """Return a page of the restated messages in ``[start, begin)``; the log begins at ``begin``."""
    moves = topic.amendments.moves
    offsets = moves.between(start, begin)
    reached = begin
    if len(offsets) > max_messages:
        reached, offsets = int(offsets[max_messages]), offsets[:max_messages]
    found = Published.concat([])
    if len(offsets):
        found, count = await log.published(topic.id, offsets, moves, _PAGE_BYTES)
        reached = int(offsets[count]) if count < len(offsets) else reached
    return Page(*found, reached, topic.next_offset)


def _published(part: LogPart) -> Published:
    offsets = np.arange(part.base_offset, part.end_offset)
    return Published(offsets, part.due_ms, np.full(len(offsets), part.accepted_at_ms), part.batch)
