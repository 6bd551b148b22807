"""The cancellation of published messages that are not yet delivered.

One synchronous step decides for each message whether it can still be cancelled, and cancels it.
The answer follows when the cancellation is durable. So the answer is linearizable: a message
answered as cancelled is never delivered afterwards. A message answered as delivered had been
delivered to every subscription that was to get it.

If only some subscriptions have received a message, its due time may decide whether the others are
to get it: a subscription that was created after the message was published gets it only if it falls
due after the subscription's beginning. Such due times are read from the log before the synchronous
step. This is safe, because the original due time of a message never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from escapement.broker.delivery.pump import Pump
from escapement.broker.log.log_reader import LogReader
from escapement.broker.publishing.outcome import (
    Decision,
    Outcome,
    PastMessages,
    decide,
    still_wanted,
)
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.topic.topic import Topic
from escapement.failpoints import failpoint
from escapement.message import Bools, Int64s
from escapement.names import TopicName
from escapement.protocol.amend_status import AmendStatus
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.items import Acks
from escapement.storage.journal.entry import cancellations_id

# ``LogReader.times`` returns this due time for a message that the log does not have any more. It is
# too early for every subscription that gets messages by their due times.
_NEVER_MS: Final = -1
# An original due time that was not looked up yet.
_UNKNOWN_MS: Final = -2


class Amending:
    """Answers requests to cancel messages."""

    def __init__(
        self,
        registry: Registry,
        pipeline: CommitPipeline,
        pump: Pump,
        log: LogReader,
    ) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._pump = pump
        self._log = log

    async def cancel(
        self, topic_text: str, offsets: Int64s, done: Callable[[Outcome], None]
    ) -> None:
        """Cancel messages for every subscription that has not received them.

        Cancelling a message twice does no harm. While the database is unavailable the answer
        waits, and the messages are not delivered.

        Args:
          offsets: int64[n], any order, repeats allowed.
          done: called with the outcome of each message, in the order of ``offsets``, once the
            cancellation is durable.

        Raises:
          NotFound: the topic does not exist.
          Busy: the topic is being deleted.
          StorageReadOnly, StorageUnavailable: the cancellation cannot be stored now; nothing has
            changed.
        """
        topic = self._registry.topic(TopicName.parse(topic_text))
        wanted, back = np.unique(offsets, return_inverse=True)
        past = await self._past_messages(topic, wanted)
        first_ms = np.full(len(wanted), _UNKNOWN_MS)
        while True:
            self._registry.check_open(topic)
            self._pipeline.check_acks(len(offsets))
            decision = decide(topic, wanted, topic.subscriptions(), past)
            unknown = _settle_by_time(topic, wanted, decision, first_ms)
            if not len(unknown):
                break
            moves = topic.amendments.moves
            first_ms[unknown], _ = await self._log.times(topic.id, wanted[unknown], moves)
        failpoint("cancel")
        outcome = decision.outcome()
        self._cancel(topic, wanted, outcome, past, partial(done, outcome.take(back)))

    async def _past_messages(self, topic: Topic, offsets: Int64s) -> PastMessages:
        """Read the messages that an earlier broker may have delivered without a record.

        An unclean end of the broker may lose such records.

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
        parts = [PastMessages.none()]
        while len(asked):
            found, count = await self._log.published(topic.id, asked, moves)
            parts.append(PastMessages.of(topic, found))
            asked = asked[count:]
        rows, published_ms = zip(*parts, strict=True)
        return PastMessages(Rows.concat(list(rows)), np.concatenate(published_ms))

    def _cancel(
        self,
        topic: Topic,
        wanted: Int64s,
        outcome: Outcome,
        past: PastMessages,
        tell: Callable[[], None],
    ) -> None:
        """Cancel the messages that can be cancelled, in the synchronous step that decided so.

        Args:
          wanted: the offsets of all messages of the request.
          outcome: the decision for each of them.
          past: messages that an earlier broker may have delivered without a record.
          tell: called when the cancellation is durable.
        """
        open_offsets = wanted[outcome.statuses == AmendStatus.DONE]
        fresh = topic.amendments.cancelled.new_of(open_offsets).offsets
        claimed = topic.amendments.claim(open_offsets)
        if len(fresh):
            past.record(topic.subscriptions(), fresh)
            self._withdraw(topic, fresh)
            topic.amendments.cancelled.take(fresh)
        elif not (
            len(claimed)
            or topic.amendments.cancelled.undurable.intersects(open_offsets)
            or topic.is_settling(wanted[outcome.statuses == AmendStatus.OVER])
        ):
            tell()
            return
        # Claimed messages are cancelled by a replacement that may still fail.
        offsets = np.union1d(fresh, claimed) if len(claimed) else fresh
        self._pipeline.submit(Acks(topic.id, cancellations_id(topic.id), offsets, lambda _: tell()))

    def _withdraw(self, topic: Topic, offsets: Int64s) -> None:
        """Remove cancelled messages from each subscription, except those that it has delivered."""
        for subscription in topic.subscriptions():
            subscription.withdraw(offsets)
            if subscription.consumers:
                self._pump.wake_subscription(topic, subscription)


def _settle_by_time(topic: Topic, offsets: Int64s, decision: Decision, first_ms: Int64s) -> Int64s:
    """Mark messages as delivered in ``decision`` if no further subscription is to get them.

    These are messages that some subscriptions have received, and that are due too early for the
    others. If due times must be looked up for this, nothing is marked.

    Args:
      offsets: the messages of the request.
      decision: the decision for each of them, which is changed.
      first_ms: the original due time of each message; ``_UNKNOWN_MS`` if it was not looked up yet,
        ``_NEVER_MS`` if the log does not have the message any more.

    Returns:
      The rows of the messages whose original due times must be looked up first; ascending.
    """
    handed = np.zeros(len(offsets), bool)
    for mask in decision.settled.values():
        handed |= mask
    handed &= decision.statuses == AmendStatus.DONE
    handed &= ~topic.amendments.cancelled.contains(offsets)
    at = np.flatnonzero(handed)
    at = at[~_wanted(topic, offsets, decision, at, np.full(len(at), _NEVER_MS))]
    unknown: Int64s = at[first_ms[at] == _UNKNOWN_MS]
    if not len(unknown):
        due_ms = topic.amendments.moves.current(offsets[at], first_ms[at])
        delivered = ~_wanted(topic, offsets, decision, at, due_ms)
        decision.statuses[at[delivered]] = AmendStatus.DELIVERED
    return unknown


def _wanted(topic: Topic, offsets: Int64s, decision: Decision, at: Int64s, due_ms: Int64s) -> Bools:
    """Return which messages at least one subscription has still to get; bool[n].

    Args:
      at: the positions in ``offsets`` of the n messages to look at; int64[n].
      due_ms: when each of these is due; int64[n].
    """
    settled = {name: mask[at] for name, mask in decision.settled.items()}
    return still_wanted(topic.subscriptions(), offsets[at], due_ms, settled)
