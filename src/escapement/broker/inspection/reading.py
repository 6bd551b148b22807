"""Reading a topic by offset: pages of the log, without a subscription.

Pages are ordered and repeatable (N1): a page has the messages that were published, whatever has
become of them since. Before the beginning of the log, a page has only the messages that were live
when the log forgot the others; they were stated again. A page is bounded in messages and bytes,
and the broker keeps nothing between two pages. So a reader occupies only the log reader, and only
for the time of one page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from escapement.broker.log.log_reader import LogPart, LogReader
from escapement.broker.topic.topic import Topic
from escapement.message import Blobs, Int64s, MessageBatch
from escapement.storage.log.published import Published

# The most bytes of a page without its first log row. That row may be as large as a batch, and the
# page still fits a frame.
_PAGE_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Messages in the arrival order, in columns; where to continue; where the log ends."""

    offsets: Int64s
    due_ms: Int64s
    published_ms: Int64s
    batch: MessageBatch
    next_offset: int
    end_offset: int


async def read_page(
    topic: Topic, log: LogReader, start: int, stop: int | None, max_messages: int
) -> Page:
    """Return the first messages of ``[start, stop)``; None as ``stop`` is the end of the log.

    Raises:
      StorageUnavailable: when the database cannot be reached.
      LogDamaged: when a row fails its checksum.
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
    offsets = _column([np.arange(part.base_offset, part.end_offset) for part in parts])
    rows = np.flatnonzero((offsets >= start) & (offsets < stop))
    if len(rows) > max_messages:
        rows = rows[:max_messages]
        reached = int(offsets[rows[-1]]) + 1
    batch = MessageBatch.concat([part.batch for part in parts]) if parts else _NOTHING
    return Page(
        offsets[rows],
        _column([part.due_ms for part in parts])[rows],
        _column([np.full(len(part.batch), part.accepted_at_ms) for part in parts])[rows],
        batch if len(rows) == len(batch) else batch.take(rows),
        max(start, min(reached, stop)),
        end,
    )


async def _read_before(
    topic: Topic, log: LogReader, start: int, begin: int, max_messages: int
) -> Page:
    """Return a page of the messages in ``[start, begin)`` that were stated again."""
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


_NOTHING: Final = MessageBatch(Blobs.empty(0))


def _column(parts: list[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
