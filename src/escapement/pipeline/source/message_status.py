"""The status of a topic's messages: the state and the number of attempts of each, in columns.

An attempt is a delivery of the message to a consumer. For one subscription, a message has one of
the states that ``escapement message show`` shows:

    =============  ==================================================================
    not covered    the subscription starts after this message
    pending        not due yet; shared subscriptions only
    waiting        due, or in arrival order for subscriptions that ignore delays, and
                   without a recorded attempt; it may have been delivered just now
    in retry       was delivered and not acknowledged: it is in flight or to be retried
    acknowledged   acknowledged by a consumer; or dead-lettered, expired or dropped by
                   a quota after an attempt; for archived messages, also lapsed ones
    lapsed         expired, or dropped by a quota, before its first delivery
    cancelled      cancelled before its first delivery
    =============  ==================================================================

For the topic as a whole, a message is finished if it is acknowledged, lapsed or cancelled for every
subscription that covers it. Then its state is ``acked`` if any of them has acknowledged it, else
``lapsed`` if it lapsed for any of them, else ``cancelled``. A message that no subscription covers
is finished only if it is cancelled. A message that is not finished is ``fired`` if it is due or has
an attempt, else ``to_be_fired`` (promise Q2 in docs/features.md).

This module does no I/O. Its data comes from the state of a topic (storage/state/topic_state.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from escapement.message import Bools, Int64s, UInt8s
from escapement.sorting import find_sorted
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.topic_state import SubscriptionState, TopicState

# The names of the states, by their codes.
STATES: Final = (
    "to_be_fired",
    "fired",
    "acked",
    "cancelled",
    "not covered",
    "pending",
    "waiting",
    "in retry",
    "acknowledged",
    "lapsed",
)
_TO_BE_FIRED, _FIRED, _ACKED, _CANCELLED = range(4)
_NOT_COVERED, _PENDING, _WAITING, _IN_RETRY, _ACKNOWLEDGED, _LAPSED = range(4, 10)
# Stands for the number of attempts of an acknowledged message, because the broker keeps no count.
NO_COUNT: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class MessageStatuses:
    """The data that determines the status of some messages of a topic."""

    now_ms: int  # when the topic's state was read, by the database's clock
    cancelled: OffsetSet
    subscriptions: list[SubscriptionState]
    one: bool  # true: states are those in the only subscription given; false: those in the topic

    @classmethod
    def of(
        cls,
        state: TopicState,
        subscription: str | None,
        low: int,
        high: int,
        *,
        forgotten: bool = False,
    ) -> MessageStatuses:
        """Return the data for the messages with offsets ``[low, high)``.

        Args:
          subscription: the subscription whose states are wanted; None for states in the topic.
          forgotten: whether the log has forgotten the messages. Then it is not known which of the
            acknowledged messages lapsed.

        Raises:
          NotFound: if the subscription does not exist.
        """
        seen_from = state.subscriptions
        if subscription is not None:
            seen_from = [state.subscription(subscription)]
        parts = []
        for one in seen_from:
            first, end = one.tried.searchsorted([low, high]).tolist()
            tried, counts = one.tried[first:end].copy(), one.counts[first:end].copy()
            acked = one.acked.part(low, high)
            lapsed = OffsetSet() if forgotten else one.lapsed.part(low, high)
            parts.append(SubscriptionState(one.record, acked, tried, counts, lapsed))
        cancelled = state.cancelled.part(low, high)
        return cls(state.read_at_ms, cancelled, parts, subscription is not None)

    def codes_and_counts(self, due_ms: Int64s, offsets: Int64s) -> tuple[UInt8s, Int64s]:
        """Return the code of each message's state, and its attempts or ``NO_COUNT``.

        Args:
          due_ms: the current due times; int64[n].
          offsets: in any order; int64[n].
        """
        cancelled = self.cancelled.contains(offsets)
        due = due_ms <= self.now_ms
        seen = [self._seen_from(one, due_ms, offsets, cancelled) for one in self.subscriptions]
        if self.one:
            return seen[0]
        codes = np.where(due, _FIRED, _TO_BE_FIRED).astype(np.uint8)
        counts = np.zeros(len(offsets), np.int64)
        covered, over = np.zeros(len(offsets), bool), np.ones(len(offsets), bool)
        acked, lapsed = np.zeros((2, len(offsets)), bool)
        for theirs, tried in seen:
            covered |= theirs != _NOT_COVERED
            over &= np.isin(theirs, (_NOT_COVERED, _ACKNOWLEDGED, _LAPSED, _CANCELLED))
            acked |= theirs == _ACKNOWLEDGED
            lapsed |= theirs == _LAPSED
            np.maximum(counts, tried, out=counts)
        codes[counts > 0] = _FIRED
        over &= covered
        codes[(over | ~covered) & cancelled] = _CANCELLED
        codes[over & lapsed] = _LAPSED
        codes[over & acked] = _ACKED
        counts[over & acked] = NO_COUNT
        return codes, counts

    def done(self, due_ms: Int64s, offsets: Int64s) -> Bools:
        """Return a mask of finished messages, which the log may forget; bool[n].

        A message is finished if it is due or cancelled, and each subscription that covers it has
        acknowledged it, or had no attempt at it before it was cancelled.
        """
        cancelled = self.cancelled.contains(offsets)
        done: Bools = (due_ms <= self.now_ms) | cancelled
        for one in self.subscriptions:
            left = one.covers(due_ms, offsets) & ~one.acked.contains(offsets)
            left &= ~cancelled | np.isin(offsets, one.tried)
            done &= ~left
        return done

    def _seen_from(
        self, one: SubscriptionState, due_ms: Int64s, offsets: Int64s, cancelled: Bools
    ) -> tuple[UInt8s, Int64s]:
        counts = np.zeros(len(offsets), np.int64)
        at, there = find_sorted(one.tried, offsets)
        counts[there] = one.counts[at[there]]
        codes = np.full(len(offsets), _WAITING, np.uint8)
        if one.record.kind == "shared":
            codes[due_ms > self.now_ms] = _PENDING
        codes[~one.covers(due_ms, offsets)] = _NOT_COVERED
        codes[cancelled] = _CANCELLED
        codes[counts > 0] = _IN_RETRY
        acked = one.acked.contains(offsets)
        codes[acked] = _ACKNOWLEDGED
        lapsed = acked & one.lapsed.contains(offsets)
        codes[lapsed] = _LAPSED
        counts[acked & ~lapsed] = NO_COUNT
        counts[lapsed] = 0
        return codes, counts
