"""A look at what is pending on a topic, next due first, without consuming anything.

Read from the delayed index, so it costs the same for ten messages as for ten million
pending ones: the keys of a bounded piece at a time, and the payloads of what is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from escapement.broker.topic import Topic
from escapement.message import Blobs, Int64s, MessageBatch
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex

# Keys looked at in one step; among them may be many that are done.
_STEP_KEYS: Final = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Peeked:
    """Messages in delivery order, in columns."""

    due_ms: Int64s
    offsets: Int64s
    batch: MessageBatch

    def keys(self) -> list[bytes]:
        """The key of each, empty where it has none."""
        return (self.batch.keys or Blobs.empty(len(self.offsets))).to_list()


async def peek(topic: Topic, index: DelayedIndex, run: Run, now_ms: int, count: int) -> Peeked:
    """Up to ``count`` messages that are not yet due, or due and not yet done.

    Due means: some shared subscription has not acknowledged it. What is handed out or
    waits for a retry is shown too.
    """
    found: list[tuple[Int64s, Int64s]] = []
    missing, at = count, KEY_MIN
    while missing and at < KEY_MAX:
        plan = index.plan(topic.id, at, KEY_MAX, _STEP_KEYS)
        due_ms, offsets = plan.read() if plan.in_memory else await run(plan.read)
        live = np.flatnonzero(topic.live(due_ms, offsets, now_ms))[:missing]
        found.append((due_ms[live], offsets[live]))
        missing -= len(live)
        at = plan.stop
    due_ms = np.concatenate([due for due, _ in found])
    offsets = np.concatenate([own for _, own in found])
    if not len(offsets):
        return Peeked(due_ms, offsets, MessageBatch(Blobs.empty(0)))
    fetch = index.fetch(topic.id, due_ms, offsets)
    batch = fetch.read() if fetch.in_memory else await run(fetch.read)
    return Peeked(due_ms, offsets, batch)
