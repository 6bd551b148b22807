"""Relocation: live messages of an old generation are stated again in the current one.

What was read is gathered until it is worth a row of the log. Then one synchronous step looks
at what of it is still live, and hands a restatement that changes nothing to the commit
pipeline: the same offsets, the same times. The index has these keys already, so delivery is
not touched. A message that is being given another time just then stays where it is; so does
one that was given another while a subscription holds it at its old time, which nothing but
its old row states. Both pass.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import trio

from escapement.broker.topic import Topic
from escapement.clock import Clock
from escapement.errors import EscapementError
from escapement.message import Int64s, MessageBatch
from escapement.storage.commit import CommitPipeline
from escapement.storage.group import Restate
from escapement.storage.logtable import LogRow

# What is stated again in one row.
_ROW_BYTES: Final = 1 << 20


class _Part(NamedTuple):
    """Live messages of one row."""

    offsets: Int64s
    due_ms: Int64s
    batch: MessageBatch


class Relocation:
    """Of one topic; see the module's docstring."""

    def __init__(self, topic: Topic, pipeline: CommitPipeline, clock: Clock) -> None:
        self._topic = topic
        self._pipeline = pipeline
        self._clock = clock
        self._parts: list[_Part] = []
        self._size_bytes = 0

    @property
    def is_due(self) -> bool:
        """Enough has been gathered for a row."""
        return self._size_bytes >= _ROW_BYTES

    def gather(self, row: LogRow) -> bool:
        """Take what is live in a row of the log; whether there was anything."""
        offsets, due_ms = row.content.offsets, row.content.due_ms
        if offsets is None:
            offsets = np.arange(row.key.base_offset, row.end_offset)
        at = np.flatnonzero(self._topic.live(due_ms, offsets, self._clock.now_ms()))
        if not len(at):
            return False
        batch = row.content.batch().take(at)
        self._parts.append(_Part(offsets[at], due_ms[at], batch))
        self._size_bytes += batch.size_bytes
        return True

    async def state(self) -> bool:
        """State what was gathered again, durably; False if some of it cannot be moved now.

        Raises:
          StorageUnavailable: it may have been stated or not.
          NotFound: the topic was deleted.
        """
        if not self._parts:
            return True
        offsets, first = np.unique(
            np.concatenate([part.offsets for part in self._parts]), return_index=True
        )
        due_ms = np.concatenate([part.due_ms for part in self._parts])[first]
        batch = MessageBatch.concat([part.batch for part in self._parts]).take(first)
        self._parts, self._size_bytes = [], 0
        # From here to the hand-in nothing waits: what is not live any more is left out.
        amendments, now_ms = self._topic.amendments, self._clock.now_ms()
        at = np.flatnonzero(self._topic.live(due_ms, offsets, now_ms))
        offsets, due_ms = offsets[at], due_ms[at]
        if not len(at):
            return True
        if amendments.withheld.intersects(offsets):
            return False
        if (amendments.moves.current(offsets, due_ms) != due_ms).any():
            return False
        for subscription in self._topic.shared.values():
            # As before any restatement: what was handed out is on record.
            subscription.keep(offsets[subscription.was_handed(offsets)], now_ms)
        await self._restate(offsets, due_ms, batch.take(at))
        return True

    async def _restate(self, offsets: Int64s, due_ms: Int64s, batch: MessageBatch) -> None:
        over = trio.Event()
        errors: list[EscapementError] = []

        def fail(error: EscapementError) -> None:
            errors.append(error)
            over.set()

        key = self._topic.next_restatement()
        body = batch.encode()
        self._pipeline.submit(
            Restate(self._topic.id, key, offsets, body, None, due_ms, over.set, fail)
        )
        await over.wait()
        if errors:
            raise errors[0]
