"""The messages that the index and the log must keep for the subscriptions of a topic.

Checkpoints and compaction ask which messages to keep in the index. The forgetter asks which ones to
keep in the log, before it relocates messages and deletes old generations of the log. Commands that
show pending messages ask too. Messages arrive as columns of keys (a key is a due time and an
offset), and answers leave as columns. A moved message has several keys; all but the current one are
*stale*.

Keeping too much costs space; keeping too little loses messages. So while a subscription is being
created, everything is kept: the subscription may want messages that arrive meanwhile.
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

# Stands for "whatever its due time is" in the times that ``dead`` computes.
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
        """Create the retention of one topic; the topic changes the arguments as it changes.

        Args:
          shared: the topic's shared subscriptions, by name.
          ordered: the topic's exclusive and failover subscriptions, by name.
          amendments: the cancelled and moved messages of the topic.
        """
        self._shared = shared
        self._ordered = ordered
        self._amendments = amendments
        self.subscribing = 0  # how many subscriptions are being created
        # The earliest due time of the messages that arrived while a subscription was being created.
        self.arrived_since_ms = NEVER_MS

    # -- while a subscription is created ---------------------------------------

    def begin_subscribing(self) -> None:
        """Note that a subscription is being created; ``end_subscribing`` must follow."""
        if not self.subscribing:
            self.arrived_since_ms = NEVER_MS
        self.subscribing += 1

    def arrived(self, due_ms: Int64s) -> None:
        """Note the due times of messages that arrive or move while a subscription is created."""
        self.arrived_since_ms = min(self.arrived_since_ms, int(due_ms.min()))

    def end_subscribing(self) -> None:
        """Note that the new subscription is served, or that its creation failed."""
        self.subscribing -= 1

    # -- what the index keeps --------------------------------------------------

    def live(self, due_ms: Int64s, offsets: Int64s, now_ms: int) -> Bools:
        """Return which messages are live, so that the index must keep them; bool[n].

        These messages are live:

        - Messages not yet due, even if acknowledged. A subscription that wants them may still be
          created, or seek.
        - Messages that a shared subscription covers and has not durably acknowledged. A
          subscription *covers* the messages that it is to get, given where it begins.
        - All messages while a subscription is being created.

        There is one exception. The key of a durably cancelled message, or a stale key of a moved
        message, is live only if a shared subscription holds the message.
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
        """Return which messages to show as pending; bool[n].

        These are the messages that are neither due nor cancelled, and the due messages that a
        shared subscription covers and has not acknowledged. A cancelled message is pending if a
        shared subscription holds it. A moved message is shown under its current key, even if a
        subscription holds it under a stale key. It is shown under the stale key only if that
        subscription does not cover the current key.
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
        """Return whether a message with an offset in ``[low, high)`` may be live.

        May return True although none is live. O(log n) per subscription.

        Args:
          max_due_ms: the latest due time of these messages.
        """
        if self.subscribing or max_due_ms > now_ms:
            return True
        return any(one.may_want(low, high, max_due_ms) for one in self._shared.values())

    # -- what the log keeps ----------------------------------------------------

    def pins(self, low: int, high: int) -> bool:
        """Return whether a subscription must still read offsets in ``[low, high)`` from the log.

        Exclusive and failover subscriptions read the log. So do shared subscriptions that begin in
        the past, for messages that the index may have forgotten.
        """
        if self.subscribing:
            return True
        records = (one.record for one in self._shared.values())
        if any(max(low, one.fill_from) < min(high, one.fill_until) for one in records):
            return True
        return any(one.is_to_read(low, high) for one in self._ordered.values())

    def dead(self, low: int, high: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return which offsets in ``[low, high)`` no shared subscription will get any more.

        Without a shared subscription this returns no messages, because one may still be created.

        Returns:
          Three arrays. The first has the offsets of messages that are finished for all shared
          subscriptions: durably acknowledged, or durably cancelled and not held. The second has
          the offsets of messages that are finished for all of these subscriptions except those
          that began later. These do not cover the message if it is due before a time, which is in
          the third array. Both arrays of offsets ascend. All other messages may still be wanted.
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
        """Return the cancelled and moved offsets in ``[low, high)``, with their current due times.

        No subscription will want any other key of these messages. Messages that a shared
        subscription holds are left out, because it may hold them under such a key.

        Returns:
          The offsets, ascending, and for each the due time of its current key, or -1 if the message
          was cancelled and has no current key. int64[n] each.
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
        """Return the offsets of moved messages whose moves can be forgotten; ascending.

        A *move* is the record of a moved message's current key. It is needed while the message is
        live, while one of its keys is not yet due, and while a shared subscription has not read all
        of its keys. Without the move, a stale key would seem current.

        Args:
          below: where the log begins; only messages with lower offsets are examined.
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
