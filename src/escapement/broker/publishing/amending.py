"""Cancelling messages that are published and not yet handed out.

It is one synchronous step that decides, for each message, whether it still can be
done, and does it; the answer follows when that is durable. So the answer is linear: what
is answered as cancelled is handed to nobody any more, what is answered as delivered had
been handed before to everybody who was to get it.

Where some have been handed a message and others have not, the times may say whether these
were ever to get it: a subscription that began later gets what comes due from then on. Those
times are looked up in the log first, of such messages alone; what they were at first does
not change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from escapement.broker.delivery.pump import Pump
from escapement.broker.limits import BrokerLimits
from escapement.broker.log.logreader import LogReader
from escapement.broker.publishing.outcome import (
    Decision,
    Outcome,
    PastTimes,
    decide,
    still_wanted,
)
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.errors import StorageReadOnly, StorageUnavailable
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.protocol.fate import Fate
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.items import Acks
from escapement.storage.commit.lane import State
from escapement.storage.journal.journalentry import cancellations_id

# How much of the log is read at once for times.
_STEP_BYTES: Final = 1024 * 1024
# Nobody wants a message for being due then.
_NEVER_MS: Final = -1


class Amending:
    """See the module's docstring."""

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
        """Cancel messages for every subscription that has not been handed them.

        A message that was cancelled before is cancelled again, without harm. While the
        database is away the answer waits; the messages are handed to nobody meanwhile.

        Args:
          offsets: int64[n], any order, repeats allowed.
          done: told what became of each, in their order, once that is durable.

        Raises:
          NotFound: there is no such topic.
          Busy: it is being deleted.
          StorageReadOnly, StorageUnavailable: it cannot be kept now; nothing happened.
        """
        topic = self._registry.topic(TopicName.parse(topic_text))
        wanted, back = np.unique(offsets, return_inverse=True)
        past = await self._past_times(topic, wanted)
        known = due_ms = np.zeros(0, np.int64)  # when some of them were due at first
        while True:
            self._check(topic, len(offsets))
            decision = decide(topic, wanted, topic.subscriptions(), past)
            unknown = _settle_by_time(topic, wanted, decision, known, due_ms)
            if not len(unknown):
                break
            moves = topic.amendments.moves
            found, count = await self._log.published(topic.id, unknown, moves, _STEP_BYTES)
            first_ms = np.full(count, _NEVER_MS)
            first_ms[np.searchsorted(unknown[:count], found.offsets)] = found.due_ms
            known = np.concatenate((known, unknown[:count]))
            due_ms = np.concatenate((due_ms, first_ms))
            order = np.argsort(known)
            known, due_ms = known[order], due_ms[order]
        outcome = decision.outcome()
        self._cancel(topic, wanted, outcome, partial(done, outcome.take(back)))

    async def _past_times(self, topic: Topic, offsets: Int64s) -> PastTimes:
        """Look up the times of messages that a broker before us may have handed out.

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
        found = [PastTimes.none()]
        while len(asked):
            part, count = await self._log.published(topic.id, asked, moves, _STEP_BYTES)
            due_ms = moves.current(part.offsets, part.due_ms)
            found.append(PastTimes(part.offsets, due_ms, part.published_ms))
            asked = asked[count:]
        return PastTimes(*map(np.concatenate, zip(*found, strict=True)))

    def _cancel(
        self, topic: Topic, wanted: Int64s, outcome: Outcome, tell: Callable[[], None]
    ) -> None:
        """What was decided in this very step."""
        open_offsets = wanted[outcome.fates == Fate.DONE]
        fresh = topic.amendments.cancelled.new_of(open_offsets).offsets
        if len(fresh):
            self._withdraw(topic, fresh)
            topic.amendments.cancelled.take(fresh)
        elif not (
            topic.amendments.cancelled.undurable.intersects(open_offsets)
            or topic.is_settling(wanted[outcome.fates == Fate.OVER])
        ):
            tell()
            return
        self._pipeline.submit(Acks(topic.id, cancellations_id(topic.id), fresh, tell))

    def _withdraw(self, topic: Topic, offsets: Int64s) -> None:
        """Take messages out of every subscription's hands that has not handed them out."""
        for subscription in topic.subscriptions():
            topic.withdraw_from(subscription, offsets)
            if subscription.consumers:
                self._pump.wake_subscription(topic, subscription)

    def _check(self, topic: Topic, count: int) -> None:
        self._registry.check_open(topic)
        if self._pipeline.state is State.READ_ONLY:
            raise StorageReadOnly("nothing can be made durable now; ask again later")
        if self._pipeline.waiting_acks + count > 2 * self._limits.unwritten_acks:
            raise StorageUnavailable("too much waits for the database; ask again later")


def _settle_by_time(
    topic: Topic, offsets: Int64s, decision: Decision, known: Int64s, due_ms: Int64s
) -> Int64s:
    """Enter as delivered what has been handed to all that were to get it.

    Args:
      known: messages whose times are known; ascending.
      due_ms: when these were due at first; of what is forgotten never.

    Returns:
      The messages of which that must be known, too; ascending.
    """
    handed = np.zeros(len(offsets), bool)
    for mask in decision.settled.values():
        handed |= mask
    handed &= decision.fates == Fate.DONE
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
    decision.fates[at[delivered]] = Fate.DELIVERED
    return split[:0]
