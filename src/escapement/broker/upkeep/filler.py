"""Adds past messages to the index again, for subscriptions that begin in the past.

Checkpoints and merges remove due messages from the index that no subscription wants any more. A
subscription that is created at, or sought to, the earliest message, an offset or a past time may
want some of them. Its record has the range of log offsets that is still to be read, from
``fill_from`` to ``fill_until``. Reading this range is a *fill*. In bounded steps, the filler adds
the messages of these log rows to the index and lowers the subscription's read mark to them. Adding
a message twice does no harm, so after a crash a fill continues from the last checkpoint.

The log *forgets* messages when it deletes their rows. A message before the beginning of the log
still exists only if a later row restates it. The filler adds these messages first. All others are
forgotten, although the index may have some of them until a merge removes them. A fill begins by
marking the forgotten messages as acknowledged for its subscription. The subscription reads none of
its past before that. So the messages that it gets do not depend on which merges have run. The marks
become durable with the first checkpoint that has progress of the fill. If the broker crashes before
that, the fill sets them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import trio

from escapement.broker.log.log_reader import LogReader
from escapement.broker.subscription.number_map import NOWHERE
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import StorageUnavailable
from escapement.message import Int64s, MessageBatch
from escapement.storage.index import KEY_MIN, DelayedIndex, Key
from escapement.storage.log.published import Published

_RETRY_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Fill:
    """A fill of one subscription."""

    topic: Topic
    subscription: SharedSubscription
    begun: bool = False  # whether the forgotten messages are marked as acknowledged


class Filler:
    """The task that runs the fills of shared subscriptions.

    Args:
      room: waits until the index has room for messages in memory.
      on_step: called after each step that may have made messages deliverable.
    """

    def __init__(
        self,
        index: DelayedIndex,
        clock: Clock,
        log: LogReader,
        room: Callable[[], Awaitable[None]],
        on_step: Callable[[Topic], None],
    ) -> None:
        self._index = index
        self._clock = clock
        self._log = log
        self._room = room
        self._on_step = on_step
        self._waiting: deque[_Fill] = deque()
        self._idle = trio.lowlevel.ParkingLot()

    def add(self, topic: Topic, subscription: SharedSubscription) -> None:
        """Queue a subscription whose record has a range to fill in."""
        # At the front: the subscription reads none of its past before its fill has begun.
        self._waiting.appendleft(_Fill(topic, subscription))
        self._idle.unpark()

    async def run(self) -> None:
        """Run fills forever, one step of each in turn."""
        while True:
            while not self._waiting:
                await self._idle.park()
            fill = self._waiting.popleft()
            try:
                if await (self._go_on(fill) if fill.begun else self._begin(fill)):
                    self._waiting.append(fill)
            except StorageUnavailable:
                self._waiting.append(fill)
                await trio.sleep(_RETRY_S)

    async def _begin(self, fill: _Fill) -> bool:
        """Mark forgotten messages as acknowledged, and let the subscription read its past.

        Returns False if the subscription was deleted or sought meanwhile.
        """
        topic, record = fill.topic, fill.subscription.record
        begin = min(await self._log.first_offset(topic.id, record.fill_until), record.fill_until)
        early = topic.amendments.moves.between(record.fill_from, begin)
        lost = early[await self._log.unstated(topic.id, early, topic.amendments.moves)]
        if topic.shared.get(record.name) is not fill.subscription:
            return False
        by_offset = record.start_offset < record.fill_until
        mark = KEY_MIN if by_offset else Key(record.start_due_ms, 0)
        gone = topic.amendments.forgotten(record.fill_from, begin)
        gone.add(lost)
        fill.subscription.begin_past(gone, mark)
        fill.begun = True
        self._on_step(topic)
        return True

    async def _go_on(self, fill: _Fill) -> bool:
        """Add messages of the next log rows to the index; return False if the fill has ended."""
        topic, subscription = fill.topic, fill.subscription
        await self._room()
        record = subscription.record
        if topic.shared.get(record.name) is not subscription:
            return False  # the subscription was deleted or sought
        if not record.is_filling:
            return False
        # A subscription that begins at a time does not need rows in which all messages are due
        # earlier. If messages of the topic were moved, no row is skipped: rows have the original
        # due times.
        by_time = record.start_offset >= record.fill_until and topic.amendments.moves.empty
        parts, reached = await self._log.read_due(
            topic.id,
            record.fill_from,
            record.fill_until,
            record.start_due_ms if by_time else 0,
        )
        found = [(np.arange(p.base_offset, p.end_offset), p.due_ms, p.batch) for p in parts]
        accepted_ms = parts[-1].accepted_at_ms if parts else 0
        begin = parts[0].base_offset if parts else reached
        if record.fill_from < begin and not topic.amendments.moves.empty:
            early, reached = await self._read_before(topic, record.fill_from, begin)
            found, accepted_ms = [(early.offsets, early.due_ms, early.batch)], 0
        if topic.shared.get(record.name) is not subscription:
            return False
        for offsets, due_ms, batch in found:
            self._take(topic, subscription, offsets, due_ms, batch)
        subscription.filled_until_ms = max(subscription.filled_until_ms, accepted_ms)
        # Take the current record: its policy may have changed while the log was read.
        subscription.record = replace(
            subscription.record, fill_from=min(reached, record.fill_until)
        )
        self._on_step(topic)
        return True

    async def _read_before(self, topic: Topic, start: int, begin: int) -> tuple[Published, int]:
        """Return the first restated messages with offsets in ``[start, begin)``.

        Also return the offset from which to read on. The log begins at ``begin``.
        """
        moves = topic.amendments.moves
        offsets = moves.between(start, begin)
        if not len(offsets):
            return Published.concat([]), begin
        early, count = await self._log.published(topic.id, offsets, moves)
        return early, int(offsets[count]) if count < len(offsets) else begin

    def _take(
        self,
        topic: Topic,
        subscription: SharedSubscription,
        offsets: Int64s,
        due_ms: Int64s,
        batch: MessageBatch,
    ) -> None:
        """Add to the index the messages that the subscription wants and the index may lack."""
        now_ms = self._clock.now_ms()
        wanted = np.ones(len(offsets), bool)
        if topic.amendments.changed(offsets).any():
            # Changes do not apply to messages that were delivered before. The subscription finds
            # these under the due times of then.
            kept_ms = subscription.kept_ms(offsets)
            kept = kept_ms != NOWHERE
            due_ms = np.where(kept, kept_ms, topic.amendments.moves.current(offsets, due_ms))
            wanted = kept | ~topic.amendments.cancelled.contains(offsets)
        # The index keeps messages that are not yet due. But if the clock was set back, a message
        # that is not yet due may have been due before, and the index may have dropped it then.
        wanted &= due_ms <= max(now_ms, self._index.forgotten_until_ms)
        wanted &= offsets >= subscription.record.fill_from
        wanted &= subscription.covers(due_ms, offsets)
        wanted &= ~subscription.acked.contains(offsets)
        at = np.flatnonzero(wanted)
        if len(at):
            topic.fill_in(offsets[at], due_ms[at], batch.take(at), now_ms)
            first = at[np.lexsort((offsets[at], due_ms[at]))[0]]
            if due_ms[first] <= now_ms:
                subscription.fall_behind(Key(int(due_ms[first]), int(offsets[first])))
