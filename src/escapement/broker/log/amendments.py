"""What was changed of a topic's messages after they were published.

A *cancelled* message goes to no subscription that has not been handed it, ever. The set is
a :mod:`cursor <escapement.broker.log.cursor>`, as that of a subscription: durable in the journal
and in chunks, under the negative id of its topic (``cancellations_id``).

A *moved* message has another time, and two keys in the delivery order, of which the one
that ``moves`` names counts. While that is being made durable it is *withheld*: it is handed
out neither at its old time nor at its new one.

Nothing is taken out of wheels and windows for it: everybody who takes keys in, wherever
they come from, asks ``standing`` which of them may still go out. So a window or a scan that
is being read meanwhile needs no care, and a change costs by what is changed, not by what is
pending.

Pure: no clock, no I/O. It does not know subscriptions; they and their topic ask it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from escapement.broker.log.cursor import Cursor
from escapement.message import Int64s
from escapement.storage.moves import Moves
from escapement.storage.offsets import OffsetSet

Bools = npt.NDArray[np.bool_]


class Amendments:
    """See the module's docstring. A topic without any costs nothing."""

    __slots__ = ("cancelled", "moves", "repeating", "withheld")

    def __init__(self) -> None:
        self.cancelled = Cursor()
        self.moves = Moves()
        self.withheld = OffsetSet()
        # Whether the wheel may have a key twice: what was moved there and back is.
        self.repeating = False

    def standing(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Which of these sorted keys may be taken to be handed out; bool[n], or None for all."""
        standing = self.uncancelled(offsets)
        if not self.repeating and self.moves.empty:
            return standing
        if standing is None:
            standing = np.ones(len(offsets), bool)
        if len(self.withheld):
            standing &= ~self.withheld.contains(offsets)
        stale = self.moves.stale(due_ms, offsets)
        if stale is not None:
            standing &= ~stale
        standing[1:] &= (due_ms[1:] != due_ms[:-1]) | (offsets[1:] != offsets[:-1])
        return standing

    def changed(self, offsets: Int64s) -> Bools:
        """Which of these were cancelled or moved; bool[n]."""
        changed = self.cancelled.contains(offsets)
        if not self.moves.empty:
            changed |= self.moves.contains(offsets)
        return changed

    def gone(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Which of these keys nobody is handed any more, for good; bool[n], or None for none."""
        return _either(self.durably_cancelled(offsets), self.moves.stale(due_ms, offsets))

    def hidden(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Which of these keys nobody is handed any more, durably or not; or None for none."""
        uncancelled = self.uncancelled(offsets)
        cancelled = None if uncancelled is None else ~uncancelled
        return _either(cancelled, self.moves.stale(due_ms, offsets))

    # -- cancelling ----------------------------------------------------------------

    def uncancelled(self, offsets: Int64s) -> Bools | None:
        """Which of these are not cancelled; bool[n], or None for all."""
        if not len(self.cancelled) or not self.cancelled.intersects(offsets):
            return None
        return ~self.cancelled.contains(offsets)

    def durably_cancelled(self, offsets: Int64s) -> Bools | None:
        """Which of these are cancelled for good; bool[n], or None for none."""
        if not len(self.cancelled):
            return None
        gone = self.cancelled.contains_durably(offsets)
        return gone if gone.any() else None

    # -- moving --------------------------------------------------------------------

    def withhold(self, offsets: Int64s) -> None:
        """These are being moved; ``move`` or ``release`` follows."""
        self.withheld.add(offsets)
        self.repeating = True

    def release(self, offsets: Int64s) -> None:
        """These stay where they were."""
        self.withheld.discard(offsets)

    def move(self, offsets: Int64s, due_ms: Int64s, stale_ms: Int64s, bases: Int64s) -> None:
        """These are due at another time, durably, as the rows ``bases`` say; offsets ascend."""
        self.moves.put(offsets, due_ms, stale_ms, bases)
        self.withheld.discard(offsets)

    def forgotten(self, start: int, begin: int) -> OffsetSet:
        """Which of ``[start, begin)`` the log, which begins at ``begin``, does not have at all."""
        gone = OffsetSet()
        if start < begin:
            gone.add_range(start, begin)
            gone.discard(self.moves.between(start, begin))
        return gone


def _either(one: Bools | None, other: Bools | None) -> Bools | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other
