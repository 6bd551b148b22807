"""How messages of a topic stand: a state and a count of attempts for each, in columns.

Seen from one subscription, in the words of ``escapement message show``:

    =============  ==================================================================
    not covered    the subscription begins elsewhere
    pending        not due yet; of a shared subscription
    waiting        due, or in the order of the log its turn may come; not tried, as
                   far as is recorded: it may have come to a consumer just now
    in retry       was delivered and not acknowledged: a consumer has it, or it waits
    acknowledged   done, by a consumer or because it expired or was dropped by a quota
                   between two attempts, or went to the dead letters after some; of what is
                   archived also what lapsed
    lapsed         expired, or was dropped by a quota, before anybody was handed it
    cancelled      was cancelled before it was tried
    =============  ==================================================================

Seen from the topic as a whole: ``acked``, ``lapsed`` or ``cancelled``, when all subscriptions
that are to get it are done with it, the first of these that it is for any of them; else ``fired``,
when it is due or was tried; else ``to_be_fired``. Q2.

Pure, but for the state it is cut from (storage/topicstate.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s, UInt8s
from escapement.storage.offsets import OffsetSet
from escapement.storage.topicstate import SubscriptionState, TopicState

Bools = npt.NDArray[np.bool_]

# By their codes.
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
# Of what is done no count is kept.
NO_COUNT: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """What is to be known of some messages of a topic to tell how they stand."""

    now_ms: int
    cancelled: OffsetSet
    subscriptions: list[SubscriptionState]
    one: bool  # seen from the only one of them

    @classmethod
    def of(
        cls,
        state: TopicState,
        subscription: str | None,
        low: int,
        high: int,
        *,
        forgotten: bool = False,
    ) -> Standing:
        """Of the messages ``[low, high)``. Raises ``NotFound``.

        Args:
          forgotten: the log does not have them any more; then it is not known what lapsed.
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
        """For each message the code of its state, and its attempts or ``NO_COUNT``.

        Args:
          due_ms: when each is due now; int64[n].
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
        """Which messages nobody is to get any more, so that the log may forget them; bool[n].

        What is due, or cancelled, and what each subscription that is to get it has acknowledged,
        or was not handed before it was cancelled.
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
        if len(one.tried):
            at = np.minimum(one.tried.searchsorted(offsets), len(one.tried) - 1)
            there = one.tried[at] == offsets
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
