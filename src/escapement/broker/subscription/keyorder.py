"""The order of a subscription that asks for one: what is ready, what is out, what must wait.

It has the queues of what is ready (:mod:`~escapement.broker.subscription.keyqueues`) and knows
which keys are busy (:mod:`~escapement.broker.subscription.keyhold`), and it decides when to
hand out. Keys that acknowledgements have freed go on in frames that are as large as those
acknowledgements, and small frames would stay small for ever, each costing as much as a large
one. So while much more is in hands than could go now, or is being read, it is gathered, for
``GATHER_MS`` at most, and nothing is looked at meanwhile: what comes is counted, and laid in when
it is.

Pure: times arrive as arguments.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.subscription.delivery import Share
from escapement.broker.subscription.keyhold import KeyHold
from escapement.broker.subscription.keyqueues import KeyQueues
from escapement.broker.subscription.keytable import NO_PLACE, Bools, KeyTable, Places
from escapement.broker.subscription.patience import Patience
from escapement.broker.subscription.ready import Rows
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet

# A few times as long as a client gathers acknowledgements, and below what anyone notices.
GATHER_MS: Final = 20
# With fewer in hands there is nothing to be gained.
_GATHER_IN_FLIGHT: Final = 1024
# Gathered is until so much of what is in hands could go again.
_GATHER_SHARE: Final = 4
# ... and until there are so many, while few are ready and more are being read.
GATHER_READ: Final = 8192


class KeyOrder:
    """See the module's docstring.

    Args:
      whole: one message at a time of everything, not of each key.
      ageing_ms: what a step of priority is worth; see ``Rows.ranks``.
    """

    __slots__ = (
        "_back",
        "_come",
        "_done",
        "_gather",
        "_gone",
        "_hold",
        "_in_hands",
        "_open",
        "queues",
        "table",
    )

    def __init__(self, whole: bool, ageing_ms: int) -> None:
        self.table = KeyTable(whole)
        self.queues = KeyQueues(self.table, ageing_ms)
        self._hold = KeyHold(self.table)
        self._back: list[Rows] = []  # ready again, and their keys still held
        self._done: list[Share] = []  # acknowledged while in hands, and their keys still held
        self._gone = 0  # of what was held, how many were gone when all was settled
        self._gather = Patience(GATHER_MS)
        # When it was looked at last: how many could go, how many were in hands.
        self._open = self._in_hands = 0
        self._come = 0  # how many became ready since

    @property
    def whole(self) -> bool:
        """Whether everything is one queue."""
        return self.table.whole

    @property
    def busy(self) -> Bools:
        """The keys, by place, of which nothing may go."""
        return self.table.busy

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether there is something to look at."""
        return self._gather.advance(now_ms)

    def next_wake_ms(self) -> int | None:
        """When ``advance`` will say so."""
        return self._gather.until_ms

    # -- when to hand out --------------------------------------------------------------

    def may_be_worthwhile(self, wanted: int, in_flight: int, soon: int, now_ms: int) -> bool:
        """Whether to look how much may go; arguments as for ``is_worthwhile``."""
        freed = max(0, self._in_hands - in_flight)
        enough = self._is_enough(self._open + self._come + freed, wanted, in_flight, soon)
        # What is not counted here, as keys that are freed otherwise, is found a little later.
        return enough or self._gather.is_out(now_ms)

    def is_worthwhile(
        self, count: int, wanted: int, in_flight: int, soon: int, now_ms: int
    ) -> bool:
        """Whether to hand out ``count`` messages now, or wait for more.

        Args:
          wanted: how many could be handed out at most.
          in_flight: how many are in hands.
          soon: the same once what is being read is there; 0 if nothing is, or much is ready.
        """
        self._open, self._in_hands, self._come = count, in_flight, 0
        enough = self._is_enough(count, wanted, in_flight, soon)
        if count and not enough and not self._gather.is_out(now_ms):
            return False
        self._gather.end()
        return bool(count)

    @staticmethod
    def _is_enough(count: int, wanted: int, in_flight: int, soon: int) -> bool:
        if count < min(soon, GATHER_READ):
            return False
        return in_flight < _GATHER_IN_FLIGHT or count >= min(wanted, in_flight // _GATHER_SHARE)

    # -- what becomes ready, and goes --------------------------------------------------

    def push(self, rows: Rows) -> None:
        """These are ready, in any order."""
        self._come += rows.height
        self.queues.push(rows)

    def fresh_of(self, which: int) -> int:
        """How many messages of a band are ready that were never sent."""
        return self.queues.fresh_of(which)

    def again(self, rows: Rows) -> None:
        """These were out, and are ready again: they hold their keys no more."""
        self._back.append(rows)
        self.push(rows)

    def done(self, share: Share) -> None:
        """These were out, and leave what is held for good: so they do mostly."""
        self._done.append(share)

    def settle(self, held: OffsetSet) -> None:
        """Have everything in its place; whatever is not among these any more is done."""
        self._give_back()
        if held.removed > self._gone + sum(share.height for share in self._done):
            self._hold.settle(held)
        else:
            self._release_done()
        self._done, self._gone = [], held.removed
        self.queues.lay_in()

    def _release_done(self) -> None:
        """What is done holds its keys no more: where these are is mostly known still."""
        known: list[tuple[Places, Int64s]] = []
        others: list[Rows] = []
        for share in self._done:
            placed = share.placed
            if placed is not None and placed.layout == self.table.layout:
                keyed = np.flatnonzero(placed.places != NO_PLACE)
                known.append((placed.places[keyed], share.offsets[keyed]))
            else:
                others.append(share.rows)
        if known:
            places, offsets = zip(*known, strict=True)
            self._hold.release_at(np.concatenate(places), np.concatenate(offsets))
        if others:
            self._hold.release(Rows.concat(others))

    def hand_over(self, rows: Rows, places: Places) -> None:
        """These, some of what ``queues.open`` gave just now, are out from now on; in order."""
        self._open -= rows.height
        self._in_hands += rows.height
        self.queues.take(rows, places)
        keyed = places != NO_PLACE
        self._hold.take_at(places[keyed], rows.offsets[keyed])

    def hold(self, rows: Rows) -> None:
        """These are out, or wait for another attempt, and hold their keys from now on."""
        self._give_back()
        self._hold.take(rows)

    def release(self, rows: Rows) -> None:
        """These hold their keys no more, and are not ready."""
        self._hold.release(rows)

    def _give_back(self) -> None:
        if self._back:
            rows, self._back = Rows.concat(self._back), []
            self._hold.release(rows)

    def _check(self) -> None:
        """Assert every invariant."""
        self._hold._check()
        self.queues._check()
