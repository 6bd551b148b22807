"""Relocation: live messages of an old generation are stated again in the current one.

What was read is gathered until it is worth a row of the log. Then one synchronous step looks
at what of it is still live, and hands a restatement that changes nothing to the commit
pipeline: the same offsets, the same times. The index has these keys already, so delivery is
not touched. A message that is being given another time just then stays where it is; so does
one that was given another while a subscription holds it at its old time, which nothing but
its old row states. Both pass.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import trio

from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import EscapementError
from escapement.message import Int64s
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.items import Restate
from escapement.storage.log.logtable import LogRow
from escapement.storage.log.published import Published

# What is stated again in one row.
_ROW_BYTES: Final = 1 << 20


class Relocation:
    """Of one topic; see the module's docstring."""

    def __init__(self, topic: Topic, pipeline: CommitPipeline, clock: Clock) -> None:
        self._topic = topic
        self._pipeline = pipeline
        self._clock = clock
        self._parts: list[Published] = []  # live messages of a row each
        self._due_ms: list[Int64s] = []  # as their rows say: of a restatement not the first
        self._size_bytes = 0

    @property
    def is_due(self) -> bool:
        """Enough has been gathered for a row."""
        return self._size_bytes >= _ROW_BYTES

    def gather(self, row: LogRow) -> bool:
        """Take what is live in a row of the log; whether there was anything."""
        offsets, due_ms = row.offsets, row.content.due_ms
        at = np.flatnonzero(self._topic.claims.live(due_ms, offsets, self._clock.now_ms()))
        if not len(at):
            return False
        part = Published.of(row).take(at)
        self._parts.append(part)
        self._due_ms.append(due_ms[at])
        self._size_bytes += part.batch.size_bytes
        return True

    async def state(self) -> bool:
        """State what was gathered again, durably; False if some of it cannot be moved now.

        Raises:
          StorageUnavailable: it may have been stated or not.
          NotFound: the topic was deleted.
        """
        if not self._parts:
            return True
        gathered = Published.concat(self._parts)
        offsets, first = np.unique(gathered.offsets, return_index=True)
        due_ms = np.concatenate(self._due_ms)[first]
        self._parts, self._due_ms, self._size_bytes = [], [], 0
        # From here to the hand-in nothing waits: what is not live any more is left out.
        amendments, now_ms = self._topic.amendments, self._clock.now_ms()
        at = np.flatnonzero(self._topic.claims.live(due_ms, offsets, now_ms))
        offsets, due_ms = offsets[at], due_ms[at]
        if not len(at):
            return True
        if amendments.withheld.intersects(offsets):
            return False
        if (amendments.moves.current(offsets, due_ms) != due_ms).any():
            return False
        for subscription in self._topic.shared.values():
            # As before any restatement: what was handed out is on record.
            subscription.attempts.keep(offsets[subscription.was_handed(offsets)])
        await self._restate(gathered.take(first[at]), due_ms)
        return True

    async def _restate(self, live: Published, due_ms: Int64s) -> None:
        over = trio.Event()
        errors: list[EscapementError] = []

        def fail(error: EscapementError) -> None:
            errors.append(error)
            over.set()

        key = self._topic.restatements.next()
        item = Restate(
            self._topic.id,
            key,
            live.offsets,
            live.batch.encode(),
            None,
            due_ms,
            live.due_ms,
            live.published_ms,
            over.set,
            fail,
        )
        self._pipeline.submit(item)
        await over.wait()
        if errors:
            raise errors[0]
