"""The slices of a bulk change: some messages that are cancelled, moved or redriven at once.

A slice uses the operations that clients use, so it has their guarantees. Its effect is durable when
it returns. Repeating a slice after a crash changes nothing more: a cancelled message stays
cancelled, a moved one gets the same time again, and a redriven dead letter is not pending any more.
"""

from __future__ import annotations

import numpy as np

from escapement.broker.inbox.dead_letter_topic import Whose
from escapement.broker.inbox.dead_letters import DeadLetters
from escapement.broker.limits import BrokerLimits
from escapement.broker.publishing.amending import Amending
from escapement.broker.publishing.outcome import Outcome
from escapement.broker.publishing.rescheduling import Rescheduling
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.message import NO_TIME, Int64s, Times
from escapement.names import TopicName
from escapement.protocol.amend_status import AmendStatus
from escapement.storage.bulk_change import Action, BulkChange, Counts
from escapement.storage.commit.commit_wait import CommitWait


def whose_of(change: BulkChange) -> Whose | None:
    """Return the subscription whose dead letters a bulk change redrives; None for other actions."""
    if change.action is not Action.REDRIVE:
        return None
    lie_in = TopicName.parse(change.dead_letter_topic)
    return Whose(TopicName.parse(change.topic), change.subscription, lie_in)


class Slices:
    """Carries out slices of bulk changes."""

    def __init__(
        self,
        amending: Amending,
        rescheduling: Rescheduling,
        dead_letters: DeadLetters,
        clock: Clock,
        limits: BrokerLimits,
    ) -> None:
        self._amending = amending
        self._rescheduling = rescheduling
        self._dead_letters = dead_letters
        self._clock = clock
        self._limits = limits

    async def check(self, topic: Topic, change: BulkChange) -> None:
        """Check that a new bulk change may set the latest of its due times.

        Args:
          topic: the topic that has the messages.

        Raises:
          DelaysDisabled, DelayTooLong: it may not.
          NotFound: the topic to redrive to does not exist.
        """
        whose = whose_of(change)
        if whose is not None:
            await self._dead_letters.check_redrive(whose, change.spread_ms)
        elif change.action is not Action.CANCEL and _has_time(change):
            latest = Times(at_ms=np.array([(change.at_ms or 0) + change.spread_ms]))
            by_policy = change.action is Action.RESCHEDULE
            self._rescheduling.check_times(topic, latest, 1, by_policy=by_policy)

    def size(self, topic: Topic) -> int:
        """Return the number of messages of a topic in one slice."""
        limits = self._limits
        return topic.sizes.frame_messages(limits.bulk_slice_messages, limits.bulk_slice_bytes)

    async def carry_out(self, change: BulkChange, offsets: Int64s) -> Counts:
        """Carry out the action of a bulk change on some messages. It is durable then.

        Args:
          offsets: the messages; ascending.

        Raises:
          EscapementError: as the action itself; some of the messages may have been changed.
        """
        whose = whose_of(change)
        if whose is not None:
            passed_ms = max(self._clock.now_ms() - (change.at_ms or 0), 0)
            done = await self._dead_letters.redrive_these(
                whose, offsets, change.spread_ms, passed_ms
            )
            return Counts(done, 0, len(offsets) - done)
        if change.action is Action.CANCEL:
            return _counts(await self._cancel(change.topic, offsets))
        at_ms = NO_TIME if change.at_ms is None else change.at_ms
        if not change.spread_ms and at_ms <= self._clock.now_ms():
            at_ms = (
                NO_TIME  # the namespace may refuse delays, but not messages that are due at once
            )
        # The start has checked the times; a delay policy that changed since does not count.
        outcome = await self._rescheduling.reschedule(
            change.topic, offsets, NO_TIME, at_ms, spread_ms=change.spread_ms, by_policy=False
        )
        return _counts(outcome)

    async def _cancel(self, topic: str, offsets: Int64s) -> Outcome:
        found: list[Outcome] = []
        wait = CommitWait()

        def done(outcome: Outcome) -> None:
            found.append(outcome)
            wait.end()

        await self._amending.cancel(topic, offsets, done)
        await wait.ended()
        return found[0]


def _has_time(change: BulkChange) -> bool:
    return bool(change.spread_ms) or change.action is Action.RESCHEDULE


def _counts(outcome: Outcome) -> Counts:
    done = int((outcome.statuses == AmendStatus.DONE).sum())
    delivered = int((outcome.statuses == AmendStatus.DELIVERED).sum())
    return Counts(done, delivered, len(outcome.statuses) - done - delivered)
