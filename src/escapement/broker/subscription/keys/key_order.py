"""The key order of a subscription: which messages are ready, which keys are busy, when to deliver.

It owns the queues of ready messages (:mod:`~escapement.broker.subscription.keys.key_queues`) and
the busy keys (:mod:`~escapement.broker.subscription.keys.busy_keys`).

It also decides when to deliver. Keys freed by acknowledgements continue in frames as large as those
acknowledgements. So small frames would stay small forever, although each costs as much as a large
one. If far more messages are in flight, or being read, than could be delivered now, it gathers free
keys, for ``GATHER_MS`` at most. Meanwhile it only counts messages that become ready, and sorts them
in at the end.

Pure: times arrive as arguments.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.subscription.delivery.delivery import Share
from escapement.broker.subscription.key_places import NO_PLACE, Places
from escapement.broker.subscription.keys.busy_keys import BusyKeys
from escapement.broker.subscription.keys.key_queues import KeyQueues
from escapement.broker.subscription.keys.key_table import Bools, KeyTable
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.wait_limit import WaitLimit
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet

# A few times as long as a client gathers acknowledgements, and too short to be noticed.
GATHER_MS: Final = 20
# With fewer messages in flight, gathering gains nothing.
_GATHER_IN_FLIGHT: Final = 1024
# Gather until a quarter of the messages in flight could be delivered, ...
_GATHER_SHARE: Final = 4
# ... and, while few are ready and more are being read, until this many can go.
GATHER_READ: Final = 8192


class KeyOrder:
    """The ready messages and busy keys of one subscription with an order.

    Args:
      whole: keep the whole topic in order, not each key.
      ageing_ms: how many ms a step of priority is worth; see ``Rows.ranks``.
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
        self._hold = BusyKeys(self.table)
        self._back: list[Rows] = []  # ready again, with keys not released yet
        self._done: list[Share] = []  # acknowledged, with keys not released yet
        self._gone = 0  # ``held.removed`` at the last ``settle``
        self._gather = WaitLimit(GATHER_MS)
        # At the last look: how many messages could be delivered, and how many were in flight.
        self._open = self._in_hands = 0
        self._come = 0  # how many became ready since then

    @property
    def whole(self) -> bool:
        """Whether all messages are in one queue."""
        return self.table.whole

    @property
    def busy(self) -> Bools:
        """The busy keys, by place."""
        return self.table.busy

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether to call ``assign`` again."""
        return self._gather.advance(now_ms)

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` will return True; None if never."""
        return self._gather.until_ms

    # -- when to deliver ---------------------------------------------------------------

    def may_be_worthwhile(self, wanted: int, in_flight: int, soon: int, now_ms: int) -> bool:
        """Return whether to count deliverable messages; arguments as for ``is_worthwhile``."""
        freed = max(0, self._in_hands - in_flight)
        enough = self._is_enough(self._open + self._come + freed, wanted, in_flight, soon)
        # This estimate misses some keys, such as those freed in other ways; they are found a little
        # later.
        return enough or self._gather.is_out(now_ms)

    def is_worthwhile(
        self, count: int, wanted: int, in_flight: int, soon: int, now_ms: int
    ) -> bool:
        """Return whether to deliver ``count`` messages now, rather than wait for more.

        Args:
          wanted: how many could be delivered at most.
          in_flight: how many are in flight.
          soon: how many could be delivered once the current read ends; 0 if there is none or enough
            messages are ready.
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

    # -- ready and delivered rows ------------------------------------------------------

    def push(self, rows: Rows) -> None:
        """Add ready rows, in any order."""
        self._come += rows.height
        self.queues.push(rows)

    def fresh_of(self, which: int) -> int:
        """Return how many never-sent messages of a band are ready."""
        return self.queues.fresh_of(which)

    def again(self, rows: Rows) -> None:
        """Add rows that were in flight or in retry, are ready again, and release their keys."""
        self._back.append(rows)
        self.push(rows)

    def done(self, share: Share) -> None:
        """Note acknowledged messages, most of which leave ``held`` for good."""
        self._done.append(share)

    def settle(self, held: OffsetSet) -> None:
        """Release the keys of all messages that are not in ``held``; put new rows into queues."""
        self._give_back()
        if held.removed > self._gone + sum(share.height for share in self._done):
            self._hold.settle(held)
        else:
            self._release_done()
        self._done, self._gone = [], held.removed
        self.queues.lay_in()

    def _release_done(self) -> None:
        """Release the keys of acknowledged messages; the places of most keys are still known."""
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
        """Move rows that ``queues.open`` just returned into flight; they are in order."""
        self._open -= rows.height
        self._in_hands += rows.height
        self.queues.take(rows, places)
        keyed = places != NO_PLACE
        self._hold.take_at(places[keyed], rows.offsets[keyed])

    def hold(self, rows: Rows) -> None:
        """Let rows that are in flight or in retry hold their keys."""
        self._give_back()
        self._hold.take(rows)

    def release(self, rows: Rows) -> None:
        """Release the keys of rows that are not ready."""
        self._hold.release(rows)

    def _give_back(self) -> None:
        if self._back:
            rows, self._back = Rows.concat(self._back), []
            self._hold.release(rows)

    def _check(self) -> None:
        """Assert every invariant."""
        self._hold._check()
        self.queues._check()
