"""Who still wants what of a topic's messages, and so what index and log must keep.

Asked by whoever forgets: checkpoints and compaction of the index, relocation and forgetting
of the log; and by whoever looks at what is still to be done. Keys arrive and answers leave
in columns. What is wrongly kept costs space; what is wrongly given up is lost, so while a
subscription is being made everything is wanted: it may want what arrives meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.log.amendments import Amendments
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.shared import SharedSubscription
from escapement.message import Int64s

# Later than any time.
_NEVER_MS: Final = 1 << 62
# Of what is not wanted whenever it is due.
_ALWAYS_MS: Final = (1 << 63) - 1


class Claims:
    """The claims of a topic's subscriptions; see the module's docstring."""

    __slots__ = ("_amendments", "_ordered", "_shared", "arrived_since_ms", "subscribing")

    def __init__(
        self,
        shared: Mapping[str, SharedSubscription],
        ordered: Mapping[str, OrderedSubscription],
        amendments: Amendments,
    ) -> None:
        """Of the topic's subscriptions as they come and go, by name."""
        self._shared = shared
        self._ordered = ordered
        self._amendments = amendments
        self.subscribing = 0  # subscriptions being made durable
        self.arrived_since_ms = _NEVER_MS  # the earliest due time that arrived meanwhile

    # -- while a subscription is made ------------------------------------------

    def begin_subscribing(self) -> None:
        """A subscription is being made durable; ``end_subscribing`` follows."""
        if not self.subscribing:
            self.arrived_since_ms = _NEVER_MS
        self.subscribing += 1

    def arrived(self, due_ms: Int64s) -> None:
        """Messages came, or have another time, while a subscription is being made."""
        self.arrived_since_ms = min(self.arrived_since_ms, int(due_ms.min()))

    def end_subscribing(self) -> None:
        """It is served, or is not made after all."""
        self.subscribing -= 1

    # -- what the index keeps --------------------------------------------------

    def live(self, due_ms: Int64s, offsets: Int64s, now_ms: int) -> npt.NDArray[np.bool_]:
        """Which messages a checkpoint must write; bool[n].

        What is not yet due, because a subscription may still come, or be sought, that wants
        it, whoever has acknowledged it before its time; what a shared subscription is to
        get and has not durably acknowledged; and everything while a subscription is being
        made that may want what arrives meanwhile. What is durably cancelled, and the stale
        key of what was moved, is live only for a subscription that holds the message.
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

    def pending(self, due_ms: Int64s, offsets: Int64s, now_ms: int) -> npt.NDArray[np.bool_]:
        """Which messages are still to be done, for somebody who looks; bool[n].

        What is not yet due and not cancelled; and what is due and a shared subscription is to
        get, or holds, and has not acknowledged. Of a moved message the key that counts is
        named, whoever holds it under an earlier one; that only where nobody would find it by
        the other.
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
        """Whether any of ``[low, high)``, due by ``max_due_ms``, may be live; cheap.

        May say so of what is not. O(log n) a subscription.
        """
        if self.subscribing or max_due_ms > now_ms:
            return True
        return any(one.may_want(low, high, max_due_ms) for one in self._shared.values())

    # -- what the log keeps ----------------------------------------------------

    def pins(self, low: int, high: int) -> bool:
        """Whether someone is still to read ``[low, high)`` from the log itself."""
        if self.subscribing:
            return True
        records = (one.record for one in self._shared.values())
        if any(max(low, one.fill_from) < min(high, one.fill_until) for one in records):
            return True
        return any(one.is_to_read(low, high) for one in self._ordered.values())

    def dead(self, low: int, high: int) -> tuple[Int64s, Int64s, Int64s]:
        """The offsets of ``[low, high)`` that nobody is to get any more; sorted.

        First those that everybody has durably acknowledged; then others, which somebody who
        began later has not and is not to get, if they are due before a time, and these times.
        What is not named may be wanted; without a shared subscription nothing is named,
        because one may still come.
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
                break  # somebody wants whatever there is
        dead = np.flatnonzero(before_ms == _ALWAYS_MS)
        early = np.flatnonzero((before_ms > 0) & (before_ms < _ALWAYS_MS))
        return offsets[dead], offsets[early], before_ms[early]

    def outdated(self, low: int, high: int) -> tuple[Int64s, Int64s]:
        """Of ``[low, high)`` what was changed, and when the key of each is due that counts.

        The other keys nobody comes to want. -1: none counts, it was cancelled. What some
        subscription holds, under whichever key, is not named. Offsets ascend; int64[n] each.
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
        """The log begins at ``below``: what lies before and needs no time any more; ascending.

        A time needs what is live, and what has a key that is not yet due, or that somebody has
        not read yet: without its entry that key would seem to count.
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
