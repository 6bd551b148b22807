"""A view of the pending messages of a topic, next due first, that consumes nothing.

Peeking searches (:mod:`~escapement.broker.inspection.search`), and returns the messages with their
payloads, and where to continue.

A page has the messages that are rescheduled while it is read. It does not have messages that lie
before it when it begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from escapement.broker.inspection.search import Search, Sought
from escapement.broker.topic.topic import Topic
from escapement.message import Blobs, Bools, Int64s, MessageBatch
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MIN, DelayedIndex, Key

_PAGE_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Peeked:
    """Messages in the delivery order, in columns.

    ``next`` is where to continue; None at the end. ``looked`` is how many keys were read.
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
) -> Peeked:
    """Return the first pending messages from ``after`` on that match, up to ``count``.

    A message is pending if it is not yet due, or if it is due and a shared subscription has not
    acknowledged it. Messages in flight or in retry are pending too.
    """
    search, page = Search(topic, index, run, now_ms, sought), _Page(count)
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
            missing = page.missing
            page.add(part_ms[rows], wanted[rows], batch)
            if page.is_full or search.has_read_enough:
                last = int(rows[missing - 1]) if len(rows) >= missing and sought.by_content else -1
                at = max(Key(int(part_ms[last]), int(wanted[last])).successor(), here)
                break
    return page.result(at if at < sought.stop else None, search.looked)


class _Page:
    """The messages that one page has found."""

    def __init__(self, count: int) -> None:
        self.missing = count
        none = np.zeros(0, np.int64)
        self._found = [(none, none, MessageBatch(Blobs.empty(0)))]
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        return not self.missing or self._size_bytes >= _PAGE_BYTES

    def has(self, offsets: Int64s) -> Bools:
        """Return which messages the page has found already; bool[n]."""
        found = np.zeros(len(offsets), bool)
        for _, there, _ in self._found:
            found |= np.isin(offsets, there)
        return found

    def add(self, due_ms: Int64s, offsets: Int64s, batch: MessageBatch) -> None:
        """Add the first of these messages, as many as are missing."""
        if len(batch) > self.missing:
            batch = batch.take(np.arange(self.missing))
        if len(batch):
            self._found.append((due_ms[: len(batch)], offsets[: len(batch)], batch))
            self._size_bytes += batch.size_bytes
            self.missing -= len(batch)

    def result(self, following: Key | None, looked: int) -> Peeked:
        due_ms, offsets, batches = zip(*self._found, strict=True)
        return Peeked(
            np.concatenate(due_ms),
            np.concatenate(offsets),
            MessageBatch.concat(batches),
            following,
            looked,
        )
