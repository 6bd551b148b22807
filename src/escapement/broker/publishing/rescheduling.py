"""The rescheduling (*moving*) of published messages to another due time.

The messages are read from the log first, some at a time; their contents do not change. Then one
synchronous step decides which of them can still be moved, *withholds* these from delivery, and
submits a *restatement* to the commit pipeline: a log row that states the messages again, with their
new due times. When it is durable, another step releases the messages at their new times. If it is
refused, the messages are released at their old times. So a message is delivered at its old time or
at its new one, and never at both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import trio

from escapement.broker.log.log_reader import LogReader
from escapement.broker.publishing.outcome import (
    Decision,
    Outcome,
    PastMessages,
    decide,
    still_wanted,
)
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.durations import MAX_DURATION_MS
from escapement.errors import EscapementError, InvalidRequest
from escapement.message import NO_TIMES, Bools, Int64s, MessageBatch, Times
from escapement.names import TopicName
from escapement.protocol.amend_status import AmendStatus
from escapement.spread import places_ms, seeds, spread
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.commit_wait import CommitWait
from escapement.storage.commit.items import Acks, Restate
from escapement.storage.journal.entry import cancellations_id
from escapement.storage.log.published import Published

# The most requests that have more than ``_SMALL_BYTES`` of messages in memory before these are
# submitted. One read returns some megabytes of messages, or one larger message.
_LARGE: Final = 4
_SMALL_BYTES: Final = 64 * 1024


@dataclass(slots=True, eq=False)
class Restatement:
    """The messages of a restatement that is being committed.

    ``done`` is called with None when it is durable, or with the error that refused it.
    """

    batch: MessageBatch
    done: Callable[[EscapementError | None], None]


class Rescheduling:
    """Answers requests to reschedule messages.

    Args:
      on_change: called with a topic whose withheld messages were released at their old times.
    """

    def __init__(
        self,
        registry: Registry,
        pipeline: CommitPipeline,
        publishing: Publishing,
        log: LogReader,
        clock: Clock,
        on_change: Callable[[Topic], None],
    ) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._publishing = publishing
        self._log = log
        self._clock = clock
        self._on_change = on_change
        self._moved = trio.lowlevel.ParkingLot()
        self._large = trio.Semaphore(_LARGE)

    async def reschedule(
        self,
        topic_text: str,
        offsets: Int64s,
        delay_ms: int,
        at_ms: int,
        *,
        spread_ms: int = 0,
        by_policy: bool = True,
    ) -> Outcome:
        """Move messages to another due time, for shared subscriptions that have not received them.

        Args:
          offsets: int64[n], any order, repeats allowed.
          delay_ms, at_ms: the new due time, as a delay from now or as a time; -1 if not given. With
            neither, the messages are due now.
          spread_ms: scatter the due times over this span, from the new due time on.
          by_policy: whether the maximum of the topic's delay policy applies.

        Returns:
          The outcome of each message, in the order of ``offsets``. It is durable.

        Raises:
          NotFound: the topic does not exist.
          Busy: the topic is being deleted.
          DelaysDisabled, DelayTooLong: the time is refused; nothing has changed.
          StorageUnavailable: some messages may have been moved; the others keep their times.
        """
        topic = self._registry.topic(TopicName.parse(topic_text))
        if spread_ms > MAX_DURATION_MS - max(delay_ms, at_ms):
            raise InvalidRequest(f"a spread of {spread_ms} ms is too long")
        wanted, back = np.unique(offsets, return_inverse=True)
        new_time = _NewTime(topic.name.full, delay_ms, at_ms, spread_ms)
        times = new_time.of(wanted if len(wanted) else np.zeros(1, np.int64))
        self.check_times(topic, times, max(len(wanted), 1), by_policy=by_policy)
        if not topic.restatements.known:
            topic.restatements.know(await self._log.lowest_base(topic.id))
        statuses = np.full(len(wanted), AmendStatus.UNKNOWN, np.uint8)
        handed: dict[str, Bools] = {}
        known = wanted[(wanted >= 0) & (wanted < topic.next_offset)]
        at = 0
        while at < len(known):
            there, count, moved = await self._move(topic, known[at:], new_time)
            outcomes = [(there, moved)]
            if len(there) < count:
                lost = np.setdiff1d(known[at : at + count], there, assume_unique=True)
                outcomes.append((lost, _too_late(topic, lost)))
            for part, outcome in outcomes:
                rows = np.searchsorted(wanted, part)
                statuses[rows] = outcome.statuses
                for name, mask in outcome.handed.items():
                    handed.setdefault(name, np.zeros(len(wanted), bool))[rows] = mask
            at += count
        return Outcome(statuses, handed).take(back)

    def check_times(self, topic: Topic, times: Times, count: int, *, by_policy: bool) -> None:
        """Check that ``count`` messages of a topic may be moved to these times.

        Args:
          by_policy: whether the maximum of the topic's delay policy applies.

        Raises:
          DelaysDisabled, DelayTooLong: a time is refused.
        """
        self._publishing.check_times(topic, times)
        if by_policy and topic.delays is not None:
            topic.delays.check_moved(times, count, self._clock.now_ms())

    # -- moving --------------------------------------------------------------------

    async def _move(
        self, topic: Topic, offsets: Int64s, new_time: _NewTime
    ) -> tuple[Int64s, int, Outcome]:
        """Move the first of some messages, as many as one read of the log returns.

        Args:
          offsets: the messages, ascending.

        Returns:
          The messages that were found, how many of ``offsets`` were looked for, and the outcome of
          each message that was found.
        """
        found, count = await self._read(topic, offsets)
        self._registry.check_open(topic)
        past = PastMessages.of(topic, found)
        decision, due_ms = _decide(topic, found, past)
        at = np.flatnonzero(decision.statuses == AmendStatus.DONE)
        offsets = found.offsets
        if len(at):
            past.record(topic.shared.values(), offsets[at])
            wait = self._restate(topic, found, at, due_ms[at], new_time.of(offsets[at]))
            del found, past  # they may be large
            await wait.ended()
        outcome = decision.outcome()
        await self._settled(topic, offsets[outcome.statuses == AmendStatus.OVER])
        return offsets, count, outcome

    async def _read(self, topic: Topic, offsets: Int64s) -> tuple[Published, int]:
        """Read the first of some messages when no other request is moving or replacing them.

        The caller must submit them without waiting, because their memory counts only from then on.

        Returns:
          The messages that were found, and how many of ``offsets`` were looked for.
        """
        while True:
            await self._publishing.room()
            found, count = await self._log.published(topic.id, offsets, topic.amendments.moves)
            if found.batch.size_bytes > _SMALL_BYTES:
                del found  # read them again when few other requests have large messages
                async with self._large:
                    await self._publishing.room()
                    moves = topic.amendments.moves
                    found, count = await self._log.published(topic.id, offsets, moves)
            amendments = topic.amendments
            if amendments.replacing.intersects(found.offsets):
                del found
                await self._publishing.progress()
            elif amendments.withheld.intersects(found.offsets):
                del found
                await self._moved.park()
            else:
                return found, count

    async def _settled(self, topic: Topic, offsets: Int64s) -> None:
        """Wait until the expiry or drop of these lapsed messages is durable."""
        if topic.is_settling(offsets):
            wait = CommitWait()
            behind = Acks(topic.id, cancellations_id(topic.id), offsets[:0], lambda _: wait.end())
            self._pipeline.submit(behind)
            await wait.ended()

    def _restate(
        self, topic: Topic, found: Published, at: Int64s, due_ms: Int64s, times: Times
    ) -> CommitWait:
        """Withhold the messages at these rows, and submit a restatement of them."""
        moving, wait = found.take(at), CommitWait()
        offsets, body = moving.offsets, moving.batch.encode()
        batch = MessageBatch.decode(body)  # a view: the messages are in memory once

        def release() -> None:
            topic.release(offsets, due_ms, batch, self._clock.now_ms())
            self._on_change(topic)

        def done(error: EscapementError | None) -> None:
            if error is not None:
                release()
            wait.end(error)
            self._moved.unpark_all()

        topic.withhold(offsets)
        item = Restate(
            topic.id,
            topic.restatements.next(),
            offsets,
            body,
            times,
            due_ms,
            moving.due_ms,
            moving.published_ms,
            Restatement(batch, done),
            done,
            _earliest_ms(topic, offsets, self._clock.now_ms()),
        )
        try:
            self._pipeline.submit(item)
        except EscapementError:
            release()
            raise
        return wait


def _decide(topic: Topic, found: Published, past: PastMessages) -> tuple[Decision, Int64s]:
    """Decide which messages can still be moved. Return the decision and their current due times."""
    offsets = found.offsets
    due_ms = topic.amendments.moves.current(offsets, found.due_ms)
    decision = decide(topic, offsets, topic.shared.values(), past)
    if topic.shared:
        # A message can be moved only if a subscription that has not received it is to get it.
        wanted = still_wanted(topic.shared.values(), offsets, due_ms, decision.settled)
        decision.statuses[(decision.statuses == AmendStatus.DONE) & ~wanted] = AmendStatus.DELIVERED
    decision.statuses[topic.amendments.cancelled.contains(offsets)] = AmendStatus.CANCELLED
    return decision, due_ms


def _earliest_ms(topic: Topic, offsets: Int64s, now_ms: int) -> Int64s:
    """Return the earliest due time at which all subscriptions still get each message; int64[n].

    A subscription that was created or sought in this very millisecond gets only messages that are
    due later. It would not get a message that is moved to now.
    """
    earliest_ms = np.zeros(len(offsets), np.int64)
    for one in topic.shared.values():
        if one.record.start_due_ms == now_ms + 1:
            earliest_ms[offsets < one.record.start_offset] = now_ms + 1
    return earliest_ms


def _too_late(topic: Topic, offsets: Int64s) -> Outcome:
    """Return the outcome of messages that the log has deleted: no subscription is to get them."""
    cancelled = topic.amendments.cancelled.contains(offsets)
    statuses = np.where(cancelled, AmendStatus.CANCELLED, AmendStatus.DELIVERED).astype(np.uint8)
    decision = decide(topic, offsets, topic.subscriptions(), PastMessages.none())
    return decision._replace(statuses=statuses).outcome()


class _NewTime(NamedTuple):
    """The due time that messages of a topic get: a delay or a time, -1 if not given, and a spread.

    The place of a message in the spread depends on its offset. So it is the same if a request is
    repeated, or carried out in several parts.
    """

    topic: str
    delay_ms: int
    at_ms: int
    spread_ms: int

    def of(self, offsets: Int64s) -> Times:
        """Return the new times of messages, as columns."""
        times, count = NO_TIMES, len(offsets)
        if self.delay_ms >= 0:
            times = Times(delay_ms=np.full(count, self.delay_ms))
        elif self.at_ms >= 0:
            times = Times(at_ms=np.full(count, self.at_ms))
        if not self.spread_ms:
            return times
        return spread(times, places_ms(seeds(self.topic, offsets), self.spread_ms))
