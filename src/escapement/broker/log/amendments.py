"""Changes to a topic's messages after their publication: cancelled and moved messages.

A *cancelled* message never goes to a subscription that has not got it yet. The set of cancelled
offsets is a :mod:`cursor <escapement.broker.log.cursor>`, like the set of offsets that a
subscription has acknowledged. It is stored in the same way, in the journal and in chunks, under the
negative id of its topic (``cancellations_id``).

A *moved* message was given another due time. So it has several keys ``(due_ms, offset)`` in the
delivery order. The key in ``moves`` is current, and the others are *stale*. While the move is being
made durable, the message is *withheld*: it is delivered neither at its old due time nor at its new
one.

A *replaced* message is cancelled together with the storing of the message that takes its place. If
that message is refused, the replaced one is restored. Until then it counts as cancelled.

A change does not remove keys from timing wheels or from windows that are being read. Instead, all
code that takes keys from there calls ``deliverable``, which returns the keys that may be delivered.
So the cost of a change depends on the number of changed messages, not on the number of pending
ones.

Pure: no clock, no I/O. This module does not know subscriptions; they and their topic call it.
"""

from __future__ import annotations

import numpy as np

from escapement.broker.log.cursor import Cursor
from escapement.message import Bools, Int64s
from escapement.storage.encoding.moves import Moves
from escapement.storage.offsets import OffsetSet


class Amendments:
    """The changes to one topic's messages. A topic without changes pays no cost for them."""

    __slots__ = ("cancelled", "moves", "repeating", "replacing", "withheld")

    def __init__(self) -> None:
        self.cancelled = Cursor()
        self.moves = Moves()
        self.withheld = OffsetSet()
        # Messages that are being replaced: cancelled, but restored if the new message is refused.
        self.replacing = OffsetSet()
        # Whether the wheel may have a key twice, because a message was moved away and back again.
        self.repeating = False

    def deliverable(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Return which of these sorted keys may be delivered; bool[n], or None for all.

        These are the current keys of messages that are neither cancelled nor withheld. Of equal
        keys only the first may be delivered.
        """
        deliverable = self.uncancelled(offsets)
        if not self.repeating and self.moves.empty:
            return deliverable
        if deliverable is None:
            deliverable = np.ones(len(offsets), bool)
        if len(self.withheld):
            deliverable &= ~self.withheld.contains(offsets)
        stale = self.moves.stale(due_ms, offsets)
        if stale is not None:
            deliverable &= ~stale
        deliverable[1:] &= (due_ms[1:] != due_ms[:-1]) | (offsets[1:] != offsets[:-1])
        return deliverable

    def changed(self, offsets: Int64s) -> Bools:
        """Return which of these messages were cancelled or moved, or are being moved; bool[n]."""
        changed = self.cancelled.contains(offsets) | self.withheld.contains(offsets)
        if not self.moves.empty:
            changed |= self.moves.contains(offsets)
        return changed

    def gone(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Return which of these keys are durably cancelled or stale; bool[n], or None for none."""
        return _either(self.durably_cancelled(offsets), self.moves.stale(due_ms, offsets))

    def hidden(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Return which of these keys are cancelled or stale; bool[n], or None for none."""
        uncancelled = self.uncancelled(offsets)
        cancelled = None if uncancelled is None else ~uncancelled
        return _either(cancelled, self.moves.stale(due_ms, offsets))

    # -- cancelling ----------------------------------------------------------------

    def uncancelled(self, offsets: Int64s) -> Bools | None:
        """Return which of these messages are not cancelled; bool[n], or None for all."""
        if not len(self.cancelled) or not self.cancelled.intersects(offsets):
            return None
        return ~self.cancelled.contains(offsets)

    def durably_cancelled(self, offsets: Int64s) -> Bools | None:
        """Return which of these messages are durably cancelled; bool[n], or None for none."""
        if not len(self.cancelled):
            return None
        gone = self.cancelled.contains_durably(offsets)
        return gone if gone.any() else None

    # -- replacing -----------------------------------------------------------------

    def replace(self, offsets: Int64s) -> None:
        """Cancel messages while others that replace them are stored.

        ``replaced`` or ``restore`` must follow.
        """
        self.cancelled.take(offsets)
        self.replacing.add(offsets)

    def replaced(self, offsets: Int64s) -> None:
        """Make messages durably cancelled: the messages that replace them are durable."""
        self.replacing.discard(offsets)
        self.cancelled.add(offsets)
        self.cancelled.committed(offsets)

    def restore(self, offsets: Int64s) -> Bools:
        """Undo the cancellation of replaced messages, except those that a client cancelled since.

        Returns:
          Which messages are restored; bool[n].
        """
        restored = self.replacing.contains(offsets)
        self.replacing.discard(offsets)
        self.cancelled.give_back(offsets[restored])
        self.repeating = True
        return restored

    def claim(self, offsets: Int64s) -> Int64s:
        """Return which messages are being replaced. They stay cancelled, whatever happens.

        The caller must make their cancellation durable.
        """
        if not len(self.replacing):
            return offsets[:0]
        claimed = offsets[self.replacing.contains(offsets)]
        self.replacing.discard(claimed)
        return claimed

    # -- moving --------------------------------------------------------------------

    def withhold(self, offsets: Int64s) -> None:
        """Withhold messages while their move is stored; ``move`` or ``release`` must follow."""
        self.withheld.add(offsets)
        self.repeating = True

    def release(self, offsets: Int64s) -> None:
        """Release withheld messages, which were not moved and keep their due times."""
        self.withheld.discard(offsets)

    def move(self, offsets: Int64s, due_ms: Int64s, stale_ms: Int64s, bases: Int64s) -> None:
        """Apply a durable move of withheld messages; offsets ascend.

        Args:
          due_ms: the new due time of each message.
          stale_ms: the former due time of each message.
          bases: the key of the log row that restates each message.
        """
        self.moves.put(offsets, due_ms, stale_ms, bases)
        self.withheld.discard(offsets)

    def forgotten(self, start: int, begin: int) -> OffsetSet:
        """Return the offsets in ``[start, begin)`` whose messages no row of the log has any more.

        Args:
          begin: where the log begins. Of earlier messages it has only restated ones, which have an
            entry in ``moves``.
        """
        gone = OffsetSet()
        if start < begin:
            gone.add_range(start, begin)
            gone.discard(self.moves.between(start, begin))
        return gone


def _either(one: Bools | None, other: Bools | None) -> Bools | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other
