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

from escapement.broker.subscription.keys.busy_keys import BusyKeys
from escapement.broker.subscription.keys.key_queues import KeyQueues
from escapement.broker.subscription.keys.key_table import NO_PLACE, KeyTable, Places
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.wait_limit import WaitLimit
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
        "_come",
        "_freed",
        "_gather",
        "_hold",
        "_in_flight",
        "_open",
        "_removed",
        "queues",
        "table",
    )

    def __init__(self, whole: bool, ageing_ms: int) -> None:
        self.table = KeyTable(whole)
        self.queues = KeyQueues(self.table, ageing_ms)
        self._hold = BusyKeys(self.table)
        self._freed: list[Rows] = []  # ready again or acknowledged, with keys not released yet
        self._removed = 0  # ``held.removed`` at the last ``settle``, and what is noted since
        self._gather = WaitLimit(GATHER_MS)
        # At the last look: how many messages could be delivered, and how many were in flight.
        self._open = self._in_flight = 0
        self._come = 0  # how many became ready since then

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether to call ``assign`` again."""
        return self._gather.advance(now_ms)

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` will return True; None if never."""
        return self._gather.until_ms

    # -- when to deliver ---------------------------------------------------------------

    def may_be_worthwhile(self, wanted: int, in_flight: int, soon: int, now_ms: int) -> bool:
        """Return whether to count deliverable messages; arguments as for ``is_worthwhile``."""
        freed = max(0, self._in_flight - in_flight)
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
        self._open, self._in_flight, self._come = count, in_flight, 0
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
        self._freed.append(rows)
        self.push(rows)

    def done(self, rows: Rows) -> None:
        """Note acknowledged messages, which leave ``held``."""
        self._freed.append(rows)
        self._removed += rows.height

    def settle(self, held: OffsetSet) -> None:
        """Release the keys of all messages that are not in ``held``; put new rows into queues."""
        self._release_freed()
        if held.removed > self._removed:
            self._hold.settle(held)
        self._removed = held.removed
        self.queues.lay_in()

    def deliver(self, rows: Rows, places: Places) -> None:
        """Move rows that ``queues.open`` just returned into flight; they are in order."""
        self._open -= rows.height
        self._in_flight += rows.height
        self.queues.take(rows, places)
        keyed = places != NO_PLACE
        self._hold.take_at(places[keyed], rows.offsets[keyed])

    def hold(self, rows: Rows) -> None:
        """Let rows that are in flight or in retry hold their keys."""
        self._release_freed()
        self._hold.take(rows)

    def release(self, rows: Rows) -> None:
        """Release the keys of rows that are not ready."""
        self._hold.release(rows)

    def _release_freed(self) -> None:
        if self._freed:
            rows, self._freed = Rows.concat(self._freed), []
            self._hold.release(rows)

    def _check(self) -> None:
        """Assert every invariant."""
        self._hold._check()
        self.queues._check()
