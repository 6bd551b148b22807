"""The selection of pending messages: only their offsets, for callers that change all of them.

A selection reads the delayed index page by page, as :mod:`~escapement.broker.inspection.peek` does,
but returns a column of offsets. It reads messages only to compare their contents; for a key, only
messages with the same key hash.

A message that is rescheduled meanwhile is not missed, and may be found twice
(:mod:`~escapement.broker.inspection.moved_keys`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from escapement.broker.inspection.moved_keys import with_passed
from escapement.broker.inspection.peek import Sought
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MIN, DelayedIndex, Fetch, Key

# The most keys read in one step and for one page, and the most messages read for one page. A page
# of either takes a quarter of a second.
_STEP_KEYS: Final = 16_384
_PAGE_KEYS: Final = 1 << 20
_PAGE_MESSAGES: Final = 1 << 16
# The most messages that are read and compared at once, with their payloads.
_READ_MESSAGES: Final = 2_048
_READ_BYTES: Final = 4 * 1024 * 1024
_ANY_OFFSET: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """Offsets in the delivery order.

    ``next`` is where to continue; None at the end. ``looked`` is how many keys were read.
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
    """Return one page of the pending messages from ``after`` on that match.

    A rescheduled message may be named more than once.
    """
    found: list[Int64s] = [np.zeros(0, np.int64)]
    looked = read = 0
    at, until = max(after, sought.start), sought.stop
    while at < until and looked < _PAGE_KEYS and read < _PAGE_MESSAGES:
        plan = index.plan(topic.id, at, until, _STEP_KEYS)
        due_ms, offsets, count = await sought.candidates(plan, run)
        looked += count
        moves = topic.amendments.moves
        due_ms, offsets = with_passed(moves, due_ms, offsets, sought.start, plan.stop)
        pending = topic.retention.pending(due_ms, offsets, now_ms)
        due_ms, offsets = due_ms[pending], offsets[pending]
        if sought.by_content:
            read += len(offsets)
            offsets = await _matching(topic, index, run, sought, due_ms, offsets)
        found.append(offsets)
        at = plan.stop
        await trio.lowlevel.checkpoint()
    return Selected(np.concatenate(found), at if at < until else None, looked)


async def _matching(
    topic: Topic, index: DelayedIndex, run: Run, sought: Sought, due_ms: Int64s, offsets: Int64s
) -> Int64s:
    step = topic.sizes.frame_messages(_READ_MESSAGES, _READ_BYTES)
    found = [np.zeros(0, np.int64)]
    for low in range(0, len(offsets), step):
        part = slice(low, low + step)
        fetch = index.fetch(topic.id, due_ms[part], offsets[part])
        rows = _rows(sought, fetch) if fetch.in_memory else await run(_rows, sought, fetch)
        found.append(offsets[part][rows])
    return np.concatenate(found)


def _rows(sought: Sought, fetch: Fetch) -> Int64s:
    """Return the rows of a fetch that match. Blocking."""
    # Messages that were done meanwhile may have left the index.
    there, batch = fetch.read_there(0, _ANY_OFFSET)
    matching = sought.matching(batch)
    return matching if there is None else there[matching]
