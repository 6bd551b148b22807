"""The selection of pending messages by their contents, for clients that cancel or reschedule them.

A selection returns only offsets. It searches page by page
(:mod:`~escapement.broker.inspection.search`), and reads messages only to compare their contents. A
message that is rescheduled meanwhile is not missed, and may be found twice
(:mod:`~escapement.broker.inspection.moved_keys`).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import numpy as np

from escapement.broker.inspection.search import Search, Sought
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MIN, DelayedIndex, Key


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """One page: the offsets of messages, in the delivery order.

    ``next`` is the key at which the next page begins; None if this is the last page. ``looked`` is
    how many keys of the index were read.
    """

    offsets: Int64s
    next: Key | None
    looked: int


async def select(
    topic: Topic,
    index: DelayedIndex,
    run: Run,
    now_ms: int,
    sought: Sought,
    after: Key = KEY_MIN,
) -> Selected:
    """Return one page of the pending messages that match.

    A rescheduled message may be named more than once.

    Args:
      sought: the conditions that the messages must fulfil.
      after: the key at which the page begins.
    """
    search, found = Search(topic, index, run, now_ms, sought), [np.zeros(0, np.int64)]
    at = max(after, sought.start)
    while at < sought.stop and not search.has_read_enough:
        due_ms, offsets, at = await search.keys(sought.start, at)
        if not sought.by_content:
            found.append(offsets)
            continue
        for part in search.parts(len(offsets)):
            rows, _ = await search.messages(due_ms[part], offsets[part])
            found.append(offsets[part][rows])
    return Selected(np.concatenate(found), at if at < sought.stop else None, search.looked)


async def select_keys(
    topic: Topic,
    index: DelayedIndex,
    run: Run,
    now_ms: int,
    keys: frozenset[bytes],
    turn: AbstractAsyncContextManager[object],
) -> dict[bytes, Int64s]:
    """Return the offsets of all pending messages with one of these message keys, by key.

    A rescheduled message may be named more than once.

    Args:
      turn: entered for each page of the search, so that several searches take turns.
    """
    found: dict[bytes, list[int]] = {}
    sought = Sought(keys=keys)
    at = sought.start
    while at < sought.stop:
        async with turn:
            search = Search(topic, index, run, now_ms, sought)
            while at < sought.stop and not search.has_read_enough:
                due_ms, offsets, at = await search.keys(sought.start, at)
                for part in search.parts(len(offsets)):
                    rows, batch = await search.messages(due_ms[part], offsets[part])
                    here = zip(batch.strings(batch.keys), offsets[part][rows].tolist(), strict=True)
                    for key, offset in here:
                        found.setdefault(key, []).append(offset)
    return {key: np.array(offsets, np.int64) for key, offsets in found.items()}
