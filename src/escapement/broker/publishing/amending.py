"""The cancellation of published messages that are not yet delivered.

One synchronous step decides for each message whether it can still be cancelled, and cancels it.
The answer follows when that is durable. So the answer is linearizable: a message answered as
cancelled is never delivered afterwards. A message answered as delivered had been delivered to
every subscription that was to get it.

If only some subscriptions have received a message, its due time may decide whether the others were
ever to get it: a subscription that began later gets only messages that fall due after its
beginning. Such due times are looked up in the log first. That is safe, because the original due
time of a message never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from escapement.broker.delivery.pump import Pump
from escapement.broker.limits import BrokerLimits
from escapement.broker.log.log_reader import LogReader
from escapement.broker.publishing.outcome import (
    Decision,
    Outcome,
    PastTimes,
    decide,
    still_wanted,
)
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.protocol.amend_status import AmendStatus
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.items import Acks
from escapement.storage.journal.entry import cancellations_id

# The due time of a forgotten message, as ``LogReader.times`` returns it: no subscription gets a
# message because of it.
_NEVER_MS: Final = -1


class Amending:
    """The requests to cancel messages."""

    def __init__(
        self,
        registry: Registry,
        pipeline: CommitPipeline,
        pump: Pump,
        log: LogReader,
        limits: BrokerLimits,
    ) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._pump = pump
        self._log = log
        self._limits = limits

    async def cancel(
        self, topic_text: str, offsets: Int64s, done: Callable[[Outcome], None]
    ) -> None:
        """Cancel messages for every subscription that has not received them.

        Cancelling a message twice does no harm. While the database is unavailable the answer
        waits, and the messages are not delivered.

        Args:
          offsets: int64[n], any order, repeats allowed.
          done: called with the outcome of each message, in their order, once it is durable.

        Raises:
          NotFound: the topic does not exist.
          Busy: the topic is being deleted.
          StorageReadOnly, StorageUnavailable: it cannot be stored now; nothing has changed.
        """
        topic = self._registry.topic(TopicName.parse(topic_text))
        wanted, back = np.unique(offsets, return_inverse=True)
        past = await self._past_times(topic, wanted)
        known = due_ms = np.zeros(0, np.int64)  # original due times found so far
        while True:
            self._registry.check_open(topic)
            self._pipeline.check_acks(len(offsets), 2 * self._limits.unwritten_acks)
            decision = decide(topic, wanted, topic.subscriptions(), past)
            unknown = _settle_by_time(topic, wanted, decision, known, due_ms)
            if not len(unknown):
                break
            first_ms, _ = await self._log.times(topic.id, unknown, topic.amendments.moves)
            known = np.concatenate((known, unknown))
            due_ms = np.concatenate((due_ms, first_ms))
            order = np.argsort(known)
            known, due_ms = known[order], due_ms[order]
        outcome = decision.outcome()
        self._cancel(topic, wanted, outcome, partial(done, outcome.take(back)))

    async def _past_times(self, topic: Topic, offsets: Int64s) -> PastTimes:
        """Look up the times of messages that an earlier broker may have delivered.

        Raises:
          StorageUnavailable: the database cannot be reached.
          LogDamaged: a row of the log fails its checksum.
        """
        open_rows = np.zeros(len(offsets), bool)
        for one in topic.subscriptions():
            if one.doubtful_until_ms:
                open_rows |= ~one.was_handed(offsets)
        open_rows &= (offsets >= 0) & (offsets < topic.doubtful_below)
        asked, moves = offsets[open_rows], topic.amendments.moves
        first_ms, published_ms = await self._log.times(topic.id, asked, moves)
        there = first_ms != _NEVER_MS
        asked = asked[there]
        return PastTimes(asked, moves.current(asked, first_ms[there]), published_ms[there])

    def _cancel(
        self, topic: Topic, wanted: Int64s, outcome: Outcome, tell: Callable[[], None]
    ) -> None:
        """Apply a decision that was made in the same synchronous step."""
        open_offsets = wanted[outcome.statuses == AmendStatus.DONE]
        fresh = topic.amendments.cancelled.new_of(open_offsets).offsets
        if len(fresh):
            self._withdraw(topic, fresh)
            topic.amendments.cancelled.take(fresh)
        elif not (
            topic.amendments.cancelled.undurable.intersects(open_offsets)
            or topic.is_settling(wanted[outcome.statuses == AmendStatus.OVER])
        ):
            tell()
            return
        self._pipeline.submit(Acks(topic.id, cancellations_id(topic.id), fresh, tell))

    def _withdraw(self, topic: Topic, offsets: Int64s) -> None:
        """Withdraw messages from every subscription that has not delivered them."""
        for subscription in topic.subscriptions():
            topic.withdraw_from(subscription, offsets)
            if subscription.consumers:
                self._pump.wake_subscription(topic, subscription)


def _settle_by_time(
    topic: Topic, offsets: Int64s, decision: Decision, known: Int64s, due_ms: Int64s
) -> Int64s:
    """Mark as delivered the messages that every subscription has received that was to get them.

    Args:
      known: messages whose original due times are known; ascending.
      due_ms: these due times; ``_NEVER_MS`` for forgotten messages.

    Returns:
      The messages whose original due times must be looked up first; ascending.
    """
    handed = np.zeros(len(offsets), bool)
    for mask in decision.settled.values():
        handed |= mask
    handed &= decision.statuses == AmendStatus.DONE
    handed &= ~topic.amendments.cancelled.contains(offsets)
    at = np.flatnonzero(handed)
    if not len(at):
        return at
    split = offsets[at]
    masks = {name: mask[at] for name, mask in decision.settled.items()}
    at_least = still_wanted(topic.subscriptions(), split, np.full(len(at), _NEVER_MS), masks)
    at, split = at[~at_least], split[~at_least]
    has_time = np.isin(split, known, assume_unique=True)
    if not has_time.all():
        return split[~has_time]
    masks = {name: mask[at] for name, mask in decision.settled.items()}
    first_ms = due_ms[np.searchsorted(known, split)]
    now_due_ms = topic.amendments.moves.current(split, first_ms)
    delivered = ~still_wanted(topic.subscriptions(), split, now_due_ms, masks)
    decision.statuses[at[delivered]] = AmendStatus.DELIVERED
    return split[:0]
