"""Relocation: restates live messages of an old log generation in the current one.

The old generation, a set of log tables, can then be deleted. Messages are gathered until they fill
a row of the log. Then one synchronous step selects those that are still live, and submits a
*restatement* to the commit pipeline: a log row with the same messages, offsets and due times. The
index has these keys already, so delivery is not affected.

Two kinds of messages cannot be relocated until later: messages whose reschedule is not committed
yet, and rescheduled messages that a subscription still holds at their old due time. Only the old
row states that time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.failpoints import failpoint
from escapement.message import Int64s
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.commit_wait import CommitWait
from escapement.storage.commit.items import Restate
from escapement.storage.log.log_table import LogRow
from escapement.storage.log.published import Published

# The size at which gathered messages fill a row.
_ROW_BYTES: Final = 1 << 20


class Relocation:
    """The relocation of one topic's messages."""

    def __init__(self, topic: Topic, pipeline: CommitPipeline, clock: Clock) -> None:
        self._topic = topic
        self._pipeline = pipeline
        self._clock = clock
        self._parts: list[Published] = []  # the gathered messages, by row
        self._due_ms: list[Int64s] = []  # their due times, as stated by the rows
        self._size_bytes = 0

    @property
    def is_due(self) -> bool:
        """Whether the gathered messages fill a row."""
        return self._size_bytes >= _ROW_BYTES

    def gather(self, row: LogRow) -> bool:
        """Gather the live messages of a log row; return whether there are any."""
        offsets, due_ms = row.offsets, row.content.due_ms
        at = np.flatnonzero(self._topic.retention.live(due_ms, offsets, self._clock.now_ms()))
        if not len(at):
            return False
        part = Published.of(row).take(at)
        self._parts.append(part)
        self._due_ms.append(due_ms[at])
        self._size_bytes += part.batch.size_bytes
        return True

    async def state(self) -> bool:
        """Restate the gathered messages durably. The next ``gather`` begins a new row.

        Returns False, and restates none of them, if some cannot be relocated now.

        Raises:
          StorageUnavailable: if it is unknown whether they were restated.
          NotFound: if the topic was deleted.
        """
        if not self._parts:
            return True
        gathered = Published.concat(self._parts)
        offsets, first = np.unique(gathered.offsets, return_index=True)
        due_ms = np.concatenate(self._due_ms)[first]
        self._parts, self._due_ms, self._size_bytes = [], [], 0
        failpoint("relocation")
        # No await from here to the submission. Messages that are not live any more are left out.
        amendments, now_ms = self._topic.amendments, self._clock.now_ms()
        at = np.flatnonzero(self._topic.retention.live(due_ms, offsets, now_ms))
        offsets, due_ms = offsets[at], due_ms[at]
        if not len(at):
            return True
        if amendments.withheld.intersects(offsets):
            return False
        if (amendments.moves.current(offsets, due_ms) != due_ms).any():
            return False
        for subscription in self._topic.shared.values():
            # Record the attempts of delivered messages before the restatement.
            subscription.attempts.keep(offsets[subscription.was_handed(offsets)])
        await self._restate(gathered.take(first[at]), due_ms)
        return True

    async def _restate(self, live: Published, due_ms: Int64s) -> None:
        wait = CommitWait()
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
            wait.end,
            wait.end,
        )
        self._pipeline.submit(item)
        await wait.ended()
