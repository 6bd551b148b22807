"""The order of a subscription that asks for one: what is ready, what is out, what must wait.

It has the queues of what is ready (:mod:`~escapement.broker.subscription.keyqueues`) and knows
which keys are busy (:mod:`~escapement.broker.subscription.keyhold`), and it decides when to
hand out. Keys that acknowledgements have freed go on in frames that are as large as those
acknowledgements, and small frames would stay small for ever, each costing as much as a large
one. So while much more is in hands than could go now, it is gathered, for ``GATHER_MS`` at
most.

Pure: times arrive as arguments.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.subscription.keyhold import KeyHold
from escapement.broker.subscription.keyqueues import KeyQueues
from escapement.broker.subscription.patience import Patience
from escapement.broker.subscription.ready import Rows
from escapement.storage.offsets import OffsetSet

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

    __slots__ = ("_gather", "hold", "queues")

    def __init__(self, whole: bool, ageing_ms: int) -> None:
        self.hold = KeyHold(whole)
        self.queues = KeyQueues(whole, ageing_ms)
        self._gather = Patience(GATHER_MS)

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether there is something to look at."""
        return self._gather.advance(now_ms)

    def next_wake_ms(self) -> int | None:
        """When ``advance`` will say so."""
        return self._gather.until_ms

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

    def settle(self, held: OffsetSet) -> None:
        """Whatever is not among these any more is done."""
        self.hold.settle(held)

    def hand_over(self, rows: Rows) -> None:
        """These are out from now on; in order."""
        self.queues.take(rows)
        self.hold.take(rows)

    def _check(self) -> None:
        """Assert every invariant."""
        self.hold._check()
        self.queues._check()
