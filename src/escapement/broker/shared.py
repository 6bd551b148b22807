"""A shared subscription: reads the delivery order, hands to whoever has credit.

Fresh messages arrive in two ways, and the *read mark* decides which.

- While the mark is at the frontier (``mark is None``) everything with a smaller key
  is acknowledged or held. What the wheel returns is *offered* and goes into ready.
- When an offer finds no room, the mark stays at its first key and the subscription is
  *behind*. It then reads the index from the mark on by itself: ``begin_scan`` says
  how far, ``end_scan`` takes what was found. Offers at or past the mark may be
  ignored, because the scan will come to them; offers before it lower it.

A scan is read while the world goes on. Offers that fall into the range being read
lower the mark again when the scan ends; those beyond the range are taken as if the
subscription were not behind, if the scan is the one that catches up. So the mark only
ever passes keys that are acknowledged or held, and nothing due is forgotten without
traffic (invariant 4).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from escapement.broker.amendments import Amendments
from escapement.broker.dispatcher import share_out
from escapement.broker.limits import BrokerLimits
from escapement.broker.ready import Ready, Rows
from escapement.broker.subscription import HandOver, Subscription
from escapement.message import Int64s
from escapement.storage.catalog import SubscriptionRecord
from escapement.storage.group import Acks, Attempts
from escapement.storage.index import Key


class SharedSubscription(Subscription):
    """See the module's docstring."""

    def __init__(
        self,
        record: SubscriptionRecord,
        limits: BrokerLimits,
        submit: Callable[[Acks | Attempts], None],
        rng: np.random.Generator,
        now_ms: int,
        amendments: Amendments,
        mark: Key,
        doubtful_until_ms: int,
        on_dead: Callable[[Subscription], None],
    ) -> None:
        """As the base class, and:

        Args:
          mark: where reading begins; a new or recovered subscription starts behind.
          doubtful_until_ms: what was due by then is marked redelivered, because a broker
            that did not stop cleanly may have delivered it.
        """
        super().__init__(record, limits, submit, rng, now_ms, amendments, on_dead)
        self.ready = Ready(limits.ready_messages)
        self.mark: Key | None = mark
        self._doubtful_until_ms = doubtful_until_ms
        self._scan_until: Key | None = None  # a scan is under way up to here
        self._scan_catches_up = False  # and that is the frontier of when it began
        self._scan_low: Key | None = None  # the lowest key offered inside it
        self._scan_over: Key | None = None  # the first key beyond it that found no room
        self._early_ms: int | None = None  # what is ready waits: the clock was set back
        self._turn = 0

    # -- what is mine -----------------------------------------------------------

    def covers(self, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which messages this subscription is to get at all; bool[n].

        Created at latest, it gets what was published after its creation and what
        comes due after it; at earliest, everything.
        """
        record = self.record
        return (offsets >= record.start_offset) | (due_ms >= record.start_due_ms)

    def _fresh(self, due_ms: Int64s, offsets: Int64s) -> tuple[Int64s, Int64s]:
        if int(offsets.min()) < self.record.start_offset:
            mine = self.covers(due_ms, offsets)
            due_ms, offsets = due_ms[mine], offsets[mine]
        for taken in (self.acked, self.held):
            if taken.intersects(offsets):
                fresh = ~taken.contains(offsets)
                due_ms, offsets = due_ms[fresh], offsets[fresh]
        standing = self._amendments.standing(offsets)
        if standing is not None:
            due_ms, offsets = due_ms[standing], offsets[standing]
        return due_ms, offsets

    # -- offers --------------------------------------------------------------------

    def offer(self, due_ms: Int64s, offsets: Int64s) -> None:
        """These are due; sorted by key. Takes what it may, remembers the rest by its mark."""
        if not len(offsets):
            return
        first = Key(int(due_ms[0]), int(offsets[0]))
        if self._scan_until is not None:
            inside = _below(due_ms, offsets, self._scan_until)
            if inside:
                self._scan_low = first if self._scan_low is None else min(self._scan_low, first)
            if inside < len(offsets) and self._scan_catches_up:
                self._offer_beyond(due_ms[inside:], offsets[inside:])
            return
        if self.mark is not None:
            self.mark = min(self.mark, first)
            return
        self.mark = self._take(due_ms, offsets)

    def _offer_beyond(self, due_ms: Int64s, offsets: Int64s) -> None:
        """These are past the scan under way, which is the one that catches up."""
        if self._scan_over is None:
            self._scan_over = self._take(due_ms, offsets)
        else:
            # Something found no room already. This may come before it in order: what the
            # wheel passes with its next tick is often due earlier than what came due at once.
            self._scan_over = min(self._scan_over, Key(int(due_ms[0]), int(offsets[0])))

    def fall_behind(self, key: Key) -> None:
        """Everything from ``key`` on may be in the index without having been offered."""
        if self._scan_until is not None:
            self._scan_low = key if self._scan_low is None else min(self._scan_low, key)
        elif self.mark is None or key < self.mark:
            self.mark = key

    def await_fill(self, offsets: Int64s) -> None:
        """These were handed out, but have left the index before the fill came to them.

        They were done for all others when a checkpoint or a merge began, and are no longer
        for this subscription. The fill brings them again, or has just done so.
        """
        rows = self.in_flight.take_back(offsets)
        self.held.discard(rows.offsets)
        if rows.height:
            first = rows.in_order()
            self.fall_behind(Key(int(first.due_ms[0]), int(first.offsets[0])))

    def _take(self, due_ms: Int64s, offsets: Int64s) -> Key | None:
        """Hold what has room; returns the first key that has none."""
        due_ms, offsets = self._fresh(due_ms, offsets)
        room = self.ready.room
        left = None
        if len(offsets) > room:
            left = Key(int(due_ms[room]), int(offsets[room]))
            due_ms, offsets = due_ms[:room], offsets[:room]
        if len(offsets):
            self.held.add(offsets)
            self.ready.push(Rows.fresh(due_ms, offsets))
        return left

    # -- scans ---------------------------------------------------------------------

    @property
    def wants_scan(self) -> bool:
        """Behind, nothing being read, and room for a worthwhile piece."""
        return (
            self.mark is not None
            and self._scan_until is None
            and self.ready.room * 2 >= self.ready.limit
            and bool(self.consumers)
        )

    def begin_scan(self, stop: Key, catches_up: bool) -> None:
        """A scan of ``[mark, stop)`` begins; ``end_scan`` or ``break_scan`` must follow.

        Args:
          catches_up: whether ``stop`` is the frontier of this moment.
        """
        assert self.mark is not None
        assert self._scan_until is None, "two scans at once"
        self._scan_until = stop
        self._scan_catches_up = catches_up
        self._scan_low = None
        self._scan_over = None

    def end_scan(self, due_ms: Int64s, offsets: Int64s) -> None:
        """Take what the scan found, sorted by key and without repeats."""
        stop = self._scan_until
        assert stop is not None
        self._scan_until = None
        marks = [self._scan_low]
        if len(offsets):
            marks.append(self._take(due_ms, offsets))
        marks.append(self._scan_over if self._scan_catches_up else stop)
        self.mark = min((mark for mark in marks if mark is not None), default=None)

    def break_scan(self) -> None:
        """The scan failed or its subscription is stopping; the mark stays where it was."""
        self._scan_until = None
        low = self._scan_low
        if low is not None and self.mark is not None:
            self.mark = min(self.mark, low)

    # -- handing out ---------------------------------------------------------------

    def assign(self, now_ms: int, frame_messages: int) -> list[HandOver]:
        """Take runs for the consumers that have credit, and put them in flight."""
        # In flight and in retry: what is held and not ready.
        unacked = len(self.held) - len(self.ready)
        ready = min(len(self.ready), self.limits.unacked_messages - unacked)
        if ready <= 0 or not self.consumers:
            return []
        ready = self.throttle.grant(ready, now_ms)
        capacities = [consumer.capacity for consumer in self.consumers]
        runs, self._turn = share_out(
            ready, capacities, self._turn % len(capacities), frame_messages
        )
        taken: list[HandOver] = []
        for position, count in runs:
            rows = self.ready.take(count)
            due = int(np.searchsorted(rows.due_ms, now_ms, "right"))
            if due < rows.height:
                # The clock went back: far, and we shall be rewound, or else these wait.
                self._early_ms = int(rows.due_ms[due])
                self.ready.put_back(rows.pick(slice(due, None)))
                rows = rows.pick(slice(0, due))
            if rows.height:
                taken.append(self._hand_over(self.consumers[position], rows, now_ms))
            if due < count:
                break
        return taken

    def was_sent_before(self, rows: Rows) -> npt.NDArray[np.bool_] | None:
        before = (rows.attempts > 1) | (rows.due_ms <= self._doubtful_until_ms)
        return before if before.any() else None

    def _again(self, rows: Rows, *, waited: bool) -> None:
        push = self.ready.push_tried if waited else self.ready.push
        push(rows.in_order())

    def _forget_ready(self, offsets: Int64s) -> None:
        self.ready.withdraw(offsets)

    def _never_sent(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        return self.ready.never_sent(offsets)

    def _ready_again(self) -> Rows:
        return self.ready.rows()

    # -- time ----------------------------------------------------------------------

    def advance(self, now_ms: int) -> bool:
        if self._early_ms is not None and self._early_ms <= now_ms:
            self._early_ms = None
        return super().advance(now_ms)

    def next_wake_ms(self) -> int | None:
        wakes = [wake for wake in (super().next_wake_ms(), self._early_ms) if wake is not None]
        return min(wakes, default=None)

    def rewind(self, now_ms: int) -> None:
        """Forget what is ready and not yet due again; what is handed over stays so."""
        super().rewind(now_ms)
        rows = self.ready.drain()
        early = rows.due_ms > now_ms
        again = early & (rows.attempts > 0)
        self.ready.push(rows.pick(~early))
        self.held.discard(rows.offsets[early & ~again])
        if again.any():
            rows = rows.pick(again)
            self._retry(rows, rows.due_ms, now_ms)


def _below(due_ms: Int64s, offsets: Int64s, key: Key) -> int:
    """How many of these sorted keys are below ``key``."""
    low = int(np.searchsorted(due_ms, key.due_ms, "left"))
    high = int(np.searchsorted(due_ms, key.due_ms, "right"))
    return low + int(np.searchsorted(offsets[low:high], key.offset, "left"))
