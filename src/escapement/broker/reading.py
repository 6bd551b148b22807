"""Reading a topic by offset: pages of the log, without a subscription.

In order and repeatable (N1): a page says what was published, whatever has become of it
since. Bounded in messages and bytes, and nothing is remembered between two pages, so who
reads holds nothing up but the log's reader for the time of a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from escapement.broker.logreader import LogPart, LogReader
from escapement.broker.topic import Topic
from escapement.message import Blobs, Int64s, MessageBatch

# Beyond the first row of the log; with one, which may be as large as a batch, a page
# still fits a frame.
_PAGE_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Messages in the order of their offsets, in columns; where to go on; where the log ends."""

    offsets: Int64s
    due_ms: Int64s
    published_ms: Int64s
    batch: MessageBatch
    next_offset: int
    end_offset: int


async def read_page(
    topic: Topic, log: LogReader, start: int, stop: int | None, max_messages: int
) -> Page:
    """The first messages of ``[start, stop)``; ``stop`` is the log's end or before it.

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


_NOTHING: Final = MessageBatch(Blobs.empty(0))


def _column(parts: list[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
