"""The order of a subscription that asks for one: what is ready, what is out, what must wait.

It has the queues of what is ready (:mod:`~escapement.broker.subscription.keyqueues`) and knows
which keys are busy (:mod:`~escapement.broker.subscription.keyhold`), and it decides two
things more.

*When* to hand out. Keys that acknowledgements have freed go on in frames that are as large
as those acknowledgements, and small frames would stay small for ever, each costing as much as
a large one. So while much more is in hands than could go now, it is gathered, for
``GATHER_MS`` at most.

*What to leave out* of memory. When ready has been full for ``STUCK_MS`` and yet less of it
may go than is asked for, the ends of its queues are removed and their keys *skipped*: what is
in the index of such a key stays there, so that reading comes to other keys. When nothing of a
skipped key is left, and it is not busy, reading begins again at the first that was passed
over, and takes it in.

Pure: times arrive as arguments.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.subscription.keyhold import KeyHold
from escapement.broker.subscription.keyqueues import Bools, KeyQueues, slots_of
from escapement.broker.subscription.ready import Rows
from escapement.storage.index import Key
from escapement.storage.offsets import OffsetSet
from escapement.traits import SLOTS

# So long what is ready stays as it is although nothing of it may go and more cannot be read,
# and a skipped key waits for its next messages.
STUCK_MS: Final = 1000
# It does not stay as it is where one in so many of it has been handed out.
_FLOW_SHARE: Final = 4
# Less, where one in so many of the skipped keys waits.
_DRY_SHARE: Final = 4
# Twice as long as a client gathers acknowledgements, and below what anyone notices.
GATHER_MS: Final = 10
# With fewer in hands there is nothing to be gained.
_GATHER_IN_FLIGHT: Final = 1024
# Gathered is until so much of what is in hands could go again.
_GATHER_SHARE: Final = 4


class KeyOrder:
    """See the module's docstring.

    Args:
      whole: one message at a time of everything, not of each key.
      ageing_ms: what a step of priority is worth; see ``Rows.ranks``.
    """

    __slots__ = (
        "_dry",
        "_gather",
        "_handed",
        "_skipped",
        "_stuck",
        "hold",
        "queues",
        "skipped_from",
    )

    def __init__(self, whole: bool, ageing_ms: int) -> None:
        self.hold = KeyHold(whole)
        self.queues = KeyQueues(whole, ageing_ms)
        self.skipped_from: Key | None = None  # the lowest key that was passed over
        self._handed = 0  # since reading was found stuck
        self._skipped: Bools | None = None
        self._gather = _Patience(GATHER_MS)
        self._stuck = _Patience(STUCK_MS)
        self._dry = _Patience(STUCK_MS)

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether there is something to look at."""
        gathered, stuck = self._gather.advance(now_ms), self._stuck.advance(now_ms)
        return self._dry.advance(now_ms) or gathered or stuck

    def next_wake_ms(self) -> int | None:
        """When ``advance`` will say so."""
        times = (self._gather.until_ms, self._stuck.until_ms, self._dry.until_ms)
        return min((time for time in times if time is not None), default=None)

    # -- when to hand out ------------------------------------------------------------

    def is_worthwhile(self, count: int, wanted: int, in_flight: int, now_ms: int) -> bool:
        """Whether to hand out ``count`` messages now, or wait for more.

        Args:
          wanted: how many could be handed out at most.
          in_flight: how many are in hands.
        """
        enough = in_flight < _GATHER_IN_FLIGHT
        enough |= count >= min(wanted, in_flight // _GATHER_SHARE)
        if count and not enough and not self._gather.is_out(now_ms):
            return False
        self._gather.end()
        return bool(count)

    # -- what to leave out -----------------------------------------------------------

    def found_stuck(self, stuck: bool, now_ms: int) -> None:
        """Whether nothing more can be read now, although more is wanted than may go."""
        if not stuck:
            self._stuck.end()
        elif not self._stuck.has_begun:
            self._handed = 0
            self._stuck.is_out(now_ms)

    def wants_room(self, now_ms: int, limit: int) -> bool:
        """Whether that has been so for so long that room is to be made.

        Args:
          limit: how many rows ready takes of a band. Where many of them were handed out
            meanwhile, there will be room soon.
        """
        if not self._stuck.has_begun or not self._stuck.is_out(now_ms):
            return False
        handed, self._handed = self._handed, 0
        if _FLOW_SHARE * handed >= limit:
            self._stuck.end()
            self._stuck.is_out(now_ms)
            return False
        return True

    @property
    def skips(self) -> bool:
        """Whether any key is skipped."""
        return self._skipped is not None

    def pass_over(self, rows: Rows) -> Rows:
        """Those of rows, sorted by key, whose keys are not skipped."""
        if self._skipped is None:
            return rows
        slots = slots_of(rows, self.hold.whole)
        skipped = self._skipped[slots]
        if not skipped.any():
            return rows
        self._note(rows.pick(skipped))
        return rows.pick(~skipped)

    def make_room(self, closed: Bools, most: int) -> Rows:
        """Remove and return fresh rows of keys of which more is here, or which are closed.

        Reading passes over their keys from now on. Arguments as for ``KeyQueues.shorten``.
        """
        self._stuck.end()
        rows = self.queues.shorten(closed, most)
        if rows.height:
            if self._skipped is None:
                self._skipped = np.zeros(SLOTS + 1, bool)  # what has no key never is
            self._skipped[slots_of(rows, self.hold.whole)] = True
            self._note(rows.in_order())
        return rows

    def take_in_again(self, closed: Bools, now_ms: int) -> Key | None:
        """Where to read from, because skipped keys have nothing left; None if it can wait.

        Such keys are skipped no longer.
        """
        if self._skipped is None:
            return None
        dry = np.append(self._skipped[:-1] & self.queues.empty & ~closed, False)
        count = np.count_nonzero(dry)
        # Reading passes everything else that is due: not for each key by itself.
        many = _DRY_SHARE * count >= np.count_nonzero(self._skipped)
        if count and not many and not self._dry.is_out(now_ms):
            return None
        self._dry.end()
        return self._read_again(dry) if count else None

    def skip_none(self) -> Key | None:
        """Skip no key any longer: where to read from; None if nothing was passed over."""
        return None if self._skipped is None else self._read_again(self._skipped.copy())

    def _read_again(self, slots: Bools) -> Key | None:
        assert self._skipped is not None
        self._skipped[slots] = False
        if not self._skipped.any():
            self._skipped = None
            self._dry.end()
        # What is passed over again is noted again.
        found, self.skipped_from = self.skipped_from, None
        return found

    def _note(self, rows: Rows) -> None:
        first = Key(int(rows.due_ms[0]), int(rows.offsets[0]))
        low = self.skipped_from
        self.skipped_from = first if low is None else min(low, first)

    # -- what becomes of rows ----------------------------------------------------------

    def settle(self, held: OffsetSet) -> None:
        """Whatever is not among these any more is done."""
        self.hold.settle(held)

    def hand_over(self, rows: Rows) -> None:
        """These are out from now on; in order."""
        self._handed += rows.height
        self.queues.take(rows)
        self.hold.take(rows)

    def _check(self) -> None:
        """Assert every invariant."""
        self.hold._check()
        self.queues._check()
        assert self._skipped is None or self._skipped.any(), "no key is skipped"


class _Patience:
    """So long something is waited for; the clock may be set back meanwhile."""

    __slots__ = ("_is_out", "_span_ms", "until_ms")

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._is_out = False
        self.until_ms: int | None = None  # a wake-up is wanted then

    def is_out(self, now_ms: int) -> bool:
        """Wait, or go on waiting; returns whether that was long enough."""
        latest_ms = now_ms + self._span_ms
        if not self._is_out and (self.until_ms is None or self.until_ms > latest_ms):
            self.until_ms = latest_ms
        self.advance(now_ms)
        return self._is_out

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether that was long enough just now."""
        if self.until_ms is None or now_ms < self.until_ms:
            return False
        self.until_ms, self._is_out = None, True
        return True

    @property
    def has_begun(self) -> bool:
        """Whether it is waited, or was long enough."""
        return self._is_out or self.until_ms is not None

    def end(self) -> None:
        """Wait no longer."""
        self.until_ms, self._is_out = None, False
