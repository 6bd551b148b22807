"""Fills in the past: adds log rows that a subscription wants and the index has forgotten.

A checkpoint keeps only messages that a subscription still wants. A subscription that begins at the
earliest message, or at an offset or a time of the past (created or sought there), wants more. Its
record has the range of the log that is still to be read (``fill_from``, ``fill_until``). The filler
adds these rows to the index again, in bounded steps, and lowers the subscription's read mark to
them. Adding a message twice does no harm, so an interrupted fill continues from its last
checkpoint. Before the beginning of the log there are only restated messages; they are filled in
first.

All other messages before the beginning of the log are forgotten, even if the index still has some.
A fill begins by marking them as acknowledged for its subscription, which reads none of the past
before that. So the messages that it gets do not depend on what merges have left. The marks become
durable with the checkpoint that has the progress of the fill; otherwise they are set again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import trio

from escapement.broker.log.log_reader import LogReader
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
    """One fill, and whether it has marked the forgotten messages."""

    topic: Topic
    subscription: SharedSubscription
    begun: bool = False


class Filler:
    """The task that fills in the past of shared subscriptions.

    Args:
      room: waits until the index has room.
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
        self._waiting.appendleft(_Fill(topic, subscription))  # first: it cannot read until then
        self._idle.unpark()

    async def run(self) -> None:
        """Fill forever, one step for each subscription in turn."""
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
        """Mark forgotten messages as acknowledged; then the subscription may read its past.

        Returns whether the fill goes on.
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
        """Fill in some rows; return whether there may be more."""
        topic, subscription = fill.topic, fill.subscription
        await self._room()
        record = subscription.record
        if topic.shared.get(record.name) is not subscription:
            return False  # the subscription was deleted or sought
        if not record.is_filling:
            return False
        # If the subscription begins at a time, skip the rows in which all messages are due earlier;
        # not if messages were moved, because a row has their original due times.
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
        # Its policy may have changed while the log was read.
        subscription.record = replace(
            subscription.record, fill_from=min(reached, record.fill_until)
        )
        self._on_step(topic)
        return True

    async def _read_before(self, topic: Topic, start: int, begin: int) -> tuple[Published, int]:
        """Return restated messages of ``[start, begin)``, before the log's beginning.

        Also returns the offset to go on from.
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
        """Add to the index the messages that are wanted and that it may have forgotten."""
        now_ms = self._clock.now_ms()
        due_ms = topic.amendments.moves.current(offsets, due_ms)
        # Messages not yet due were not forgotten, unless the clock was set back since.
        wanted = due_ms <= max(now_ms, self._index.forgotten_until_ms)
        wanted &= offsets >= subscription.record.fill_from
        wanted &= subscription.covers(due_ms, offsets)
        wanted &= ~subscription.acked.contains(offsets)
        standing = topic.amendments.uncancelled(offsets)
        if standing is not None:
            # The subscription keeps messages that it got before they were cancelled.
            wanted &= standing | subscription.holds(offsets)
        at = np.flatnonzero(wanted)
        if len(at):
            topic.fill_in(offsets[at], due_ms[at], batch.take(at), now_ms)
            first = at[np.lexsort((offsets[at], due_ms[at]))[0]]
            if due_ms[first] <= now_ms:
                subscription.fall_behind(Key(int(due_ms[first]), int(offsets[first])))
