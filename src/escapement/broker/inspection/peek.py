"""A view of the pending messages of a topic, next due first, that delivers nothing.

A peek searches (:mod:`~escapement.broker.inspection.search`). It returns one page: messages with
their payloads, and the key at which the next page begins.

A page misses no message that is rescheduled while the page is read. But no page shows a message
that is rescheduled between two requests, to a time before the key at which the next page begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from escapement.broker.inspection.search import Bounds, Search, Sought
from escapement.broker.topic.topic import Topic
from escapement.message import Blobs, Bools, Int64s, MessageBatch
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MIN, DelayedIndex, Key

# A page reads no more messages when it has this many bytes.
_PAGE_BYTES: Final = 8 * 1024 * 1024
# The most bytes of the keys and properties of a page, unless those of its first message are larger.
# They are decoded in one step of the event loop, which takes some 10 ms.
PAGE_TEXT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Peeked:
    """One page: messages in the delivery order, as columns.

    ``next`` is the key at which the next page begins; None if this is the last page. ``looked`` is
    how many keys of the index were read.
    """

    due_ms: Int64s
    offsets: Int64s
    batch: MessageBatch
    next: Key | None
    looked: int


async def peek(
    topic: Topic,
    index: DelayedIndex,
    run: Run,
    now_ms: int,
    sought: Sought,
    count: int,
    after: Key = KEY_MIN,
    bounds: Bounds | None = None,
) -> Peeked:
    """Return the first pending messages that match, in one page.

    A message is pending if it is not yet due, or if it is due and a shared subscription has not
    acknowledged it. Messages in flight or in retry are pending too.

    Args:
      sought: the conditions that the messages must fulfil.
      count: the most messages to return.
      after: the key at which the page begins.
      bounds: what to read for it, at most; None: ``PAGE``.
    """
    search, page = Search(topic, index, run, now_ms, sought, bounds), _Page(count)
    begin = at = max(after, sought.start)
    while at < sought.stop and not (page.is_full or search.has_read_enough):
        here = at
        due_ms, offsets, at = await search.keys(begin, here)
        fresh = ~page.has(offsets)
        due_ms, offsets = due_ms[fresh], offsets[fresh]
        for part in search.parts(len(offsets)):
            part_ms, wanted = due_ms[part], offsets[part]
            if not sought.by_content:
                part_ms, wanted = part_ms[: page.missing], wanted[: page.missing]
            rows, batch = await search.messages(part_ms, wanted)
            added = page.add(part_ms[rows], wanted[rows], batch)
            if page.is_full or search.has_read_enough:
                if added < len(rows):
                    following = Key(int(part_ms[rows[added]]), int(wanted[rows[added]]))
                else:
                    following = Key(int(part_ms[-1]), int(wanted[-1])).successor()
                at = max(following, here)
                break
    return page.result(at if at < sought.stop else None, search.looked)


class _Page:
    """The messages found for one page."""

    def __init__(self, count: int) -> None:
        self.missing = count
        none = np.zeros(0, np.int64)
        self._found = [(none, none, MessageBatch(Blobs.empty(0)))]
        self._size_bytes = 0
        self._left_bytes = PAGE_TEXT_BYTES  # for keys and properties
        self.is_full = not count

    def has(self, offsets: Int64s) -> Bools:
        """Return which messages the page already has; bool[n]."""
        found = np.zeros(len(offsets), bool)
        for _, there, _ in self._found:
            found |= np.isin(offsets, there)
        return found

    def add(self, due_ms: Int64s, offsets: Int64s, batch: MessageBatch) -> int:
        """Add messages until the page is full. The rest is left out. Return how many were added."""
        text_bytes = np.cumsum(_text_sizes(batch))
        count = int(np.searchsorted(text_bytes, self._left_bytes, "right"))
        if not count and self._is_empty:
            count = 1
        count = min(count, len(batch), self.missing)
        if count:
            self._left_bytes -= int(text_bytes[count - 1])
            added = batch if count == len(batch) else batch.part(0, count)
            self._found.append((due_ms[:count], offsets[:count], added))
            self._size_bytes += added.size_bytes
            self.missing -= count
        if count < len(batch) or not self.missing or self._size_bytes >= _PAGE_BYTES:
            self.is_full = True
        return count

    @property
    def _is_empty(self) -> bool:
        return len(self._found) == 1

    def result(self, following: Key | None, looked: int) -> Peeked:
        due_ms, offsets, batches = zip(*self._found, strict=True)
        return Peeked(
            np.concatenate(due_ms),
            np.concatenate(offsets),
            MessageBatch.concat(batches),
            following,
            looked,
        )


def _text_sizes(batch: MessageBatch) -> Int64s:
    """Return how many bytes the key and the properties of each message have; int64[n]."""
    sizes = np.zeros(len(batch), np.int64)
    for column in (batch.keys, batch.properties):
        if column is not None:
            sizes += column.lengths
    return sizes
