"""Which pending messages match: their offsets alone, for whoever wants to change them all.

Like :mod:`peek <escapement.broker.looking.peek>`, page by page over the delayed index; but what is
found is a column of offsets, and messages are read only where their contents are asked for:
of a key those whose key has the same hash.

What is given another time meanwhile does not slip through, and may be found twice
(:mod:`~escapement.broker.looking.passed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from escapement.broker.looking.passed import with_passed
from escapement.broker.looking.peek import Sought
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MIN, DelayedIndex, Fetch, Key

# Keys looked at in one step, for one page, and how many of their messages: a quarter of a
# second each.
_STEP_KEYS: Final = 16_384
_PAGE_KEYS: Final = 1 << 20
_PAGE_MESSAGES: Final = 1 << 16
# Messages read at once to be looked at: their payloads come with them.
_READ_MESSAGES: Final = 2_048
_READ_BYTES: Final = 4 * 1024 * 1024
_ANY_OFFSET: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """Offsets in delivery order; where to go on, if anything may be left.

    ``looked`` is how many keys were looked at.
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
    """One page of the messages from ``after`` on that are pending and sought.

    A message that was moved may be named more than once.
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
        pending = topic.claims.pending(due_ms, offsets, now_ms)
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
    """The rows of a fetch that are sought. Blocking."""
    # What was done meanwhile may be gone.
    there, batch = fetch.read_there(0, _ANY_OFFSET)
    matching = sought.matching(batch)
    return matching if there is None else there[matching]
