"""The messages that index and log must keep for the subscriptions of a topic.

Checkpoints and compaction ask for the index. Relocation and the deletion of generations ask for the
log. Views of pending messages ask too. Keys arrive and answers leave as columns. Keeping too much
costs space; keeping too little loses messages. So while a subscription is being created, everything
is kept: the subscription may want messages that arrive meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from escapement.broker.log.amendments import Amendments
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.start_position import NEVER_MS
from escapement.message import Bools, Int64s

# Marks a message that no subscription wants, whatever its due time.
_ALWAYS_MS: Final = (1 << 63) - 1


class Retention:
    """The messages that the subscriptions of one topic still want."""

    __slots__ = ("_amendments", "_ordered", "_shared", "arrived_since_ms", "subscribing")

    def __init__(
        self,
        shared: Mapping[str, SharedSubscription],
        ordered: Mapping[str, OrderedSubscription],
        amendments: Amendments,
    ) -> None:
        """Keep the mappings, which change as the topic's subscriptions come and go; by name."""
        self._shared = shared
        self._ordered = ordered
        self._amendments = amendments
        self.subscribing = 0  # subscriptions being made durable
        self.arrived_since_ms = NEVER_MS  # the earliest due time that arrived meanwhile

    # -- while a subscription is created ---------------------------------------

    def begin_subscribing(self) -> None:
        """Note that a subscription is being made durable; ``end_subscribing`` must follow."""
        if not self.subscribing:
            self.arrived_since_ms = NEVER_MS
        self.subscribing += 1

    def arrived(self, due_ms: Int64s) -> None:
        """Note messages that arrive, or move, while a subscription is being created."""
        self.arrived_since_ms = min(self.arrived_since_ms, int(due_ms.min()))

    def end_subscribing(self) -> None:
        """Note that the new subscription is served, or that its creation failed."""
        self.subscribing -= 1

    # -- what the index keeps --------------------------------------------------

    def live(self, due_ms: Int64s, offsets: Int64s, now_ms: int) -> Bools:
        """Return which messages a checkpoint must write; bool[n].

        - Messages not yet due, even if acknowledged: a subscription that wants them may still be
          created, or sought.
        - Messages that a shared subscription covers and has not durably acknowledged.
        - All messages while a subscription is being created, which may want those that arrive
          meanwhile.

        A durably cancelled message, and the stale key of a moved one, is live only for a
        subscription that holds the message.
        """
        if self.subscribing:
            return np.ones(len(offsets), bool)
        gone = self._amendments.gone(due_ms, offsets)
        live = due_ms > now_ms
        if gone is not None:
            live &= ~gone
        for subscription in self._shared.values():
            wanted = subscription.covers(due_ms, offsets)
            if gone is not None:
                wanted &= ~gone | subscription.holds(offsets)
            wanted &= ~subscription.acked.contains_durably(offsets)
            live |= wanted
        return live

    def pending(self, due_ms: Int64s, offsets: Int64s, now_ms: int) -> Bools:
        """Return which messages are pending, for a view; bool[n].

        These are the messages not yet due and not cancelled, and the due messages that a shared
        subscription covers and has not acknowledged. A cancelled one is pending only for a
        subscription that holds it. A moved message is reported by its current key, even if a
        subscription holds it under an earlier one. It is reported by the earlier key only if that
        subscription does not cover the current one.
        """
        hidden = self._amendments.hidden(due_ms, offsets)
        pending = due_ms > now_ms
        if hidden is not None:
            pending &= ~hidden
        rest = np.flatnonzero(~pending)
        if not len(rest):
            return pending
        due_ms, offsets = due_ms[rest], offsets[rest]
        moves = self._amendments.moves
        stale = moves.stale(due_ms, offsets)
        for subscription in self._shared.values():
            wanted = subscription.covers(due_ms, offsets)
            if hidden is not None:
                wanted &= ~hidden[rest] | subscription.holds(offsets)
            if stale is not None:
                wanted &= ~stale | ~subscription.covers(moves.current(offsets, due_ms), offsets)
            wanted &= ~subscription.acked.contains(offsets)
            pending[rest] |= wanted
        return pending

    def may_keep(self, low: int, high: int, max_due_ms: int, now_ms: int) -> bool:
        """Return whether any of ``[low, high)``, due by ``max_due_ms``, may be live.

        May return True although none is. O(log n) per subscription.
        """
        if self.subscribing or max_due_ms > now_ms:
            return True
        return any(one.may_want(low, high, max_due_ms) for one in self._shared.values())

    # -- what the log keeps ----------------------------------------------------

    def pins(self, low: int, high: int) -> bool:
        """Return whether a subscription must still read ``[low, high)`` from the log itself."""
        if self.subscribing:
            return True
        records = (one.record for one in self._shared.values())
        if any(max(low, one.fill_from) < min(high, one.fill_until) for one in records):
            return True
        return any(one.is_to_read(low, high) for one in self._ordered.values())

    def dead(self, low: int, high: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return the sorted offsets of ``[low, high)`` that no subscription will get any more.

        Returns three arrays. The first has offsets that all shared subscriptions have durably
        acknowledged. The second has other offsets, which no subscription will get if they are due
        before the time in the third array: a subscription that began later does not cover them
        then. Other offsets may be wanted. Without a shared subscription nothing is returned,
        because one may still be created.
        """
        none = np.zeros(0, np.int64)
        if not self._shared or self.subscribing:
            return none, none, none
        offsets = np.arange(low, high)
        cancelled = self._amendments.durably_cancelled(offsets)
        before_ms = np.full(len(offsets), _ALWAYS_MS)
        for subscription in self._shared.values():
            done = subscription.acked.durable_between(low, high)
            if cancelled is not None:
                done |= cancelled & ~subscription.holds(offsets)
            record = subscription.record
            early_ms = np.where(offsets < record.start_offset, record.start_due_ms, 0)
            before_ms = np.where(done, before_ms, np.minimum(before_ms, early_ms))
            if not before_ms.any():
                break  # a subscription wants all of them
        dead = np.flatnonzero(before_ms == _ALWAYS_MS)
        early = np.flatnonzero((before_ms > 0) & (before_ms < _ALWAYS_MS))
        return offsets[dead], offsets[early], before_ms[early]

    def outdated(self, low: int, high: int) -> tuple[Int64s, Int64s]:
        """Return the changed offsets of ``[low, high)``, and when the current key of each is due.

        No subscription will want the other keys of these messages. A due time of -1 means that no
        key is current, because the message was cancelled. Messages that a subscription holds, under
        any key, are left out. Offsets ascend; int64[n] each.
        """
        none = np.zeros(0, np.int64)
        if self.subscribing:
            return none, none
        cancelled = self._amendments.cancelled.to_array(low, high)
        moved = self._amendments.moves.between(low, high)
        offsets = np.union1d(cancelled, moved)
        if not len(offsets):
            return none, none
        staying_ms = self._amendments.moves.current(offsets, np.full(len(offsets), -1))
        named = staying_ms >= 0
        gone = self._amendments.durably_cancelled(offsets)
        if gone is not None:
            named |= gone
            staying_ms = np.where(gone, -1, staying_ms)
        for subscription in self._shared.values():
            named &= ~subscription.holds(offsets)
        return offsets[named], staying_ms[named]

    def moves_over(self, below: int, now_ms: int) -> Int64s:
        """Return the moves of offsets below ``below`` that can be forgotten; ascending.

        ``below`` is where the log begins. A move is needed while the message is live, while one of
        its keys is not yet due, and while a subscription has not read that key yet: without the
        move, a stale key would seem current.
        """
        due_ms, last_ms, offsets = self._amendments.moves.below(below)
        if not len(offsets):
            return offsets
        unread = [one.waits_from for one in self._shared.values()]
        read_ms = min((key.due_ms for key in unread if key is not None), default=now_ms + 1)
        over = (last_ms <= now_ms) & (last_ms < read_ms)
        cancelled = self._amendments.durably_cancelled(offsets)
        if cancelled is not None:
            over |= cancelled
        return offsets[over & ~self.live(due_ms, offsets, now_ms)]
