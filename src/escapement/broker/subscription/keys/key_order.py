"""The key order of a subscription: which messages are ready, which keys are busy, when to deliver.

It owns the queues of ready messages (:mod:`~escapement.broker.subscription.keys.key_queues`) and
the busy keys (:mod:`~escapement.broker.subscription.keys.busy_keys`). A key is busy while one of
its messages holds it: no other message of the key may be delivered.

It also decides when to deliver. An acknowledgement frees as many keys as it has messages, and the
next frame could have one message of each. So small frames would stay small forever, although each
costs as much as a large one. Therefore deliveries wait (*gather*) while far more messages are in
flight, or being read, than could be delivered now, for ``GATHER_MS`` at most. Meanwhile messages
that become ready are only counted. They are put into queues at the end.

Pure: times arrive as arguments.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.subscription.keys.busy_keys import BusyKeys
from escapement.broker.subscription.keys.key_queues import KeyQueues
from escapement.broker.subscription.keys.key_table import NO_INDEX, Indexes, KeyTable
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.wait_limit import WaitLimit
from escapement.storage.offsets import OffsetSet

# The longest wait for more deliverable messages: a few times as long as a client gathers
# acknowledgements, and too short to be noticed.
GATHER_MS: Final = 20
# With fewer messages in flight than this, deliveries do not wait, because it would gain nothing.
_GATHER_IN_FLIGHT: Final = 1024
# Deliveries wait until this share of the messages in flight (a quarter) could be delivered.
_GATHER_SHARE: Final = 4
# While few messages are ready and more are being read, deliveries wait until this many can be made.
GATHER_READ: Final = 8192


class KeyOrder:
    """The ready messages and busy keys of one subscription with an order.

    Args:
      whole: whether to keep the whole topic in order, and not each key.
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
        self._freed: list[Rows] = []  # acknowledged or ready again; their keys must be released
        # How many removals from the subscription's ``held`` were handled: those before the last
        # ``settle``, and those of ``done`` since.
        self._removed = 0
        self._gather = WaitLimit(GATHER_MS)
        # How many messages could be delivered, and were in flight, at the last count.
        self._open = self._in_flight = 0
        self._come = 0  # how many messages became ready since that count

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether the wait for more messages has just ended."""
        return self._gather.advance(now_ms)

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` will return True; None if never."""
        return self._gather.until_ms

    # -- when to deliver ---------------------------------------------------------------

    def may_be_worthwhile(self, wanted: int, in_flight: int, soon: int, now_ms: int) -> bool:
        """Estimate whether it is time to deliver.

        If so, the caller counts the deliverable messages, which costs more, and calls
        ``is_worthwhile``. Arguments are as there.
        """
        freed = max(0, self._in_flight - in_flight)
        enough = self._is_enough(self._open + self._come + freed, wanted, in_flight, soon)
        # The estimate misses keys that were freed in other ways than by acknowledgements. They are
        # found when the wait ends.
        return enough or self._gather.is_out(now_ms)

    def is_worthwhile(
        self, count: int, wanted: int, in_flight: int, soon: int, now_ms: int
    ) -> bool:
        """Return whether to deliver messages now, rather than wait for more.

        Args:
          count: how many messages could be delivered now.
          wanted: how many messages consumers accept, and limits allow, at most.
          in_flight: how many messages are in flight.
          soon: how many messages could be delivered when the current read of the index ends; 0 if
            there is no such read, or if enough messages are ready.
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
        """Add rows that come from flight or from retry to the ready ones, and free their keys."""
        self._freed.append(rows)
        self.push(rows)

    def done(self, rows: Rows) -> None:
        """Note acknowledged messages, whose keys become free; they leave ``held``."""
        self._freed.append(rows)
        self._removed += rows.height

    def settle(self, held: OffsetSet) -> None:
        """Release the keys of all messages that are not in ``held``; put new rows into queues.

        Args:
          held: the messages that the subscription has ready, in flight or in retry.
        """
        self._release_freed()
        if held.removed > self._removed:
            self._hold.settle(held)
        self._removed = held.removed
        self.queues.lay_in()

    def deliver(self, rows: Rows, indexes: Indexes) -> None:
        """Remove rows that are delivered from the queues, and let them hold their keys.

        Args:
          rows: rows that ``queues.open`` has just returned, in the same order.
          indexes: the index of each row's key in the key table, as returned with the rows.
        """
        self._open -= rows.height
        self._in_flight += rows.height
        self.queues.take(rows, indexes)
        keyed = indexes != NO_INDEX
        self._hold.take_at(indexes[keyed], rows.offsets[keyed])

    def hold(self, rows: Rows) -> None:
        """Let rows that are in flight or in retry hold their keys."""
        self._release_freed()
        self._hold.take(rows)

    def release(self, rows: Rows) -> None:
        """Release the keys of rows that hold them."""
        self._hold.release(rows)

    def _release_freed(self) -> None:
        if self._freed:
            rows, self._freed = Rows.concat(self._freed), []
            self._hold.release(rows)

    def _check(self) -> None:
        """Assert every invariant."""
        self._hold._check()
        self.queues._check()
