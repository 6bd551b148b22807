"""The upcoming part of a topic's delivery order: a timing wheel, and the index behind it.

The delayed index has all messages sorted by key ``(due_ms, offset)``. The wheel has the keys that
fall due next. The way of a message through this module::

    insert ─┬─ due now ─────────────────────────────► returned, to be offered
            ├─ below the horizon ─► wheel ─ advance ─►      "
            └─ beyond it ─ window ─► wheel ─ advance ─►     "

*Horizon*: a key of the delivery order. Below it the wheel has every message that is not yet due;
beyond it only the index has them.

*Window*: the keys from the horizon up to the next horizon, which is the end of a time partition, or
an earlier key if the wheels of all topics would exceed their budget. A window is planned in one
synchronous step, which moves the horizon and pins the index sources to read. The broker then reads
the window into the wheel, in a thread if that touches the disk. The clock may pass the horizon
before the window is planned. Then every subscription lowers its read mark to the horizon and reads
the index from there, so no message is lost or late.

*Frontier*: the time up to which all messages have been returned. It is never earlier than the due
time of a returned message, so a subscription that reads the index up to the frontier misses
nothing.

*Exact*: normally the wheel returns messages at each tick, but a message that is due on arrival is
returned at once. Such a message overtakes messages that fell due earlier in the same tick. If a
subscription of the topic keeps an order, the ``DeliveryWindow`` is *exact*: ``insert`` returns all
messages of the wheel that are due by now, together with the new ones, in one order. The wheel then
turns by the millisecond, but still wakes the topic only at ticks. A window that was not read in
time may have earlier messages too. ``pass_unread`` returns the key from which subscriptions must
read the index before they take a message that is due now.

No I/O, no clock, no task. All methods are synchronous; time arrives as an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from escapement.broker.topic.window_budget import WindowBudget
from escapement.message import Int64s
from escapement.sorting import lowest
from escapement.storage.index import KEY_MIN, Key
from escapement.storage.index.delivery_order import DeliveryOrder, KeyPlan
from escapement.storage.index.keys import position
from escapement.timewheel import Entries, TimingWheel

# The next window is read this long before its partition begins, or half a partition before if that
# is shorter. Reading a window of 2 million keys takes less than a second.
WINDOW_LEAD_MS: Final = 5_000


class DeliveryWindow:
    """The wheel of one topic, its horizon and its frontier."""

    __slots__ = (
        "_budget",
        "_counted",
        "_horizon",
        "_index",
        "_index_next_ms",
        "_loading",
        "_loading_from",
        "_tick_ms",
        "_topic_id",
        "_wheel",
        "exact",
        "frontier_ms",
        "granularity_ms",
    )

    def __init__(
        self,
        topic_id: int,
        index: DeliveryOrder,
        budget: WindowBudget,
        tick_ms: int,
        granularity_ms: int,
        now_ms: int,
    ) -> None:
        self.granularity_ms = granularity_ms  # the span of a partition
        self.frontier_ms = now_ms
        self._topic_id = topic_id
        self._index = index
        self._budget = budget
        self._counted = 0  # the number of this wheel's keys, as last reported to the budget
        self._tick_ms = tick_ms
        self.exact = False  # see the module's docstring
        self._wheel = TimingWheel(tick_ms, now_ms)
        self._horizon = KEY_MIN
        # No index entry past the horizon is due earlier than this; None: there are no such entries.
        self._index_next_ms: int | None = None
        self._loading: TimingWheel | None = None  # the wheel that a window is being read for
        self._loading_from = KEY_MIN  # its first key that ``pass_unread`` has not covered
        self.begin_at(now_ms)

    def __len__(self) -> int:
        return len(self._wheel)

    def due_ms(self) -> Int64s:
        """Return a copy of the due times of all messages in the wheel, in no order. O(size)."""
        return self._wheel.entries().when_ms

    def begin_at(self, now_ms: int) -> None:
        """Set the horizon just after ``now_ms``: subscriptions read earlier keys in the index."""
        self._reach(now_ms)
        self._set_horizon(Key(now_ms + 1, 0))

    def close(self) -> None:
        """Give this wheel's share of the budget back; the topic no longer uses the window."""
        self._budget.used -= self._counted
        self._counted = 0

    def _new_wheel(self, now_ms: int) -> TimingWheel:
        return TimingWheel(1 if self.exact else self._tick_ms, now_ms)

    # -- messages arrive, and fall due -----------------------------------------------

    def insert(self, arrived: Entries, now_ms: int) -> Iterator[Entries]:
        """Yield the new messages that are due; put the later ones below the horizon into the wheel.

        The due messages come in delivery order. If this is exact, the due messages of the wheel
        come with them. Messages past the horizon stay in the index only.
        """
        self._reach(now_ms)
        due = arrived.when_ms <= now_ms
        if due.any():
            first = _in_order(arrived.take(due) if not due.all() else arrived)
            if self.exact:
                before = self.advance(now_ms)
                first = Entries.concat([before, first]).sorted() if len(before) else first
            yield first
            if due.all():
                return
            arrived = arrived.take(~due)
        horizon, due_ms, offsets = self._horizon, arrived.when_ms, arrived.ids
        below = (due_ms < horizon.due_ms) | (
            (due_ms == horizon.due_ms) & (offsets < horizon.offset)
        )
        if not below.all():
            next_ms = int(due_ms[~below].min())
            if self._index_next_ms is None or next_ms < self._index_next_ms:
                self._index_next_ms = next_ms
        if below.any():
            yield from self._turn_in(arrived.take(below))
            if self._budget.asks_to_shrink(len(self)):
                yield from self._shrink_window()

    def _turn_in(self, waiting: Entries) -> Iterator[Entries]:
        elapsed = self._wheel.insert(waiting.when_ms, waiting.ids, waiting.tags)
        self._count()
        if elapsed is not None:
            yield elapsed  # due by the wheel's time: the wall clock was set back a little

    def pass_unread(self, now_ms: int) -> Key | None:
        """Return the key from which due messages may be missing in the wheel, else None.

        This is the horizon, if the clock passed it before the next window was planned. The horizon
        then moves to just after now. An exact ``DeliveryWindow`` may also return the first key of a
        window that is still being read. Further calls do not return the same key again.
        """
        passed = None
        if self._index_next_ms is not None and self._index_next_ms <= now_ms:
            passed = self._horizon
            self._set_horizon(max(passed, Key(now_ms + 1, 0)))
        if self.exact and self._loading is not None and self._loading_from.due_ms <= now_ms:
            passed = self._loading_from if passed is None else min(passed, self._loading_from)
            self._loading_from = Key(now_ms + 1, 0)
        return passed

    def advance(self, now_ms: int) -> Entries:
        """Turn the wheel to ``now_ms``; return the messages that have fallen due, in order."""
        self._reach(now_ms)
        due = self._wheel.advance(max(now_ms, self._wheel.now_ms))
        self._count()
        return due

    def rewind(self, now_ms: int) -> bool:
        """Start with a new wheel if the wall clock was set back by more than a tick.

        Returns whether it was. The caller must then read messages due by now from the index.
        """
        if self.frontier_ms - now_ms <= self._tick_ms:
            return False
        self.frontier_ms = now_ms
        self._wheel = self._new_wheel(now_ms)
        self._loading = None
        self._count()
        self.begin_at(now_ms)
        return True

    def set_tick(self, tick_ms: int, exact: bool, now_ms: int) -> Iterator[Entries]:
        """Change the tick and ``exact``, with a new wheel; yield messages that are due.

        No due time changes.
        """
        if (tick_ms, exact) == (self._tick_ms, self.exact):
            return
        self._tick_ms, self.exact = tick_ms, exact
        waiting = self._wheel.drain()
        loading = self._loading is self._wheel
        self._wheel = self._new_wheel(now_ms)
        self._loading = self._wheel if loading else None
        yield from self._turn_in(waiting)

    def next_wake_ms(self) -> int | None:
        """Return when to turn the wheel, plan a window or call ``pass_unread``; None for never.

        ``pass_unread`` must be called when a key that is in no window falls due.
        """
        wakes = [self._wheel_wake_ms(), self._index_next_ms]
        if self._index_next_ms is not None and self._loading is None and self._window_fits():
            wakes.append(self._window_at_ms())
        return lowest(wakes)

    def _wheel_wake_ms(self) -> int | None:
        """Return the next tick with messages, or an earlier time to prepare a large slot."""
        wake_ms = self._wheel.next_wake_ms()
        if wake_ms is None or wake_ms < self._wheel.earliest_ms:
            return wake_ms
        return -(-wake_ms // self._tick_ms) * self._tick_ms

    def _reach(self, now_ms: int) -> None:
        self.frontier_ms = max(self.frontier_ms, now_ms)

    # -- windows ---------------------------------------------------------------------

    def wants_window(self, now_ms: int) -> bool:
        """Return whether it is time to plan and read the next window."""
        at_ms = self._window_at_ms()
        return (
            at_ms is not None and at_ms <= now_ms and self._loading is None and self._window_fits()
        )

    def _window_at_ms(self) -> int | None:
        if self._index_next_ms is None:
            return None
        begins_ms = self._index_next_ms // self.granularity_ms * self.granularity_ms
        return begins_ms - min(WINDOW_LEAD_MS, self.granularity_ms // 2)

    def _window_fits(self) -> bool:
        return self._budget.allows_window(len(self))

    def begin_window(self) -> KeyPlan:
        """Plan the next window; ``end_window`` must follow.

        Moves the horizon to the window's end, and pins the index sources to read.
        """
        assert self._index_next_ms is not None
        assert self._loading is None, "two windows at once"
        until = Key((self._index_next_ms // self.granularity_ms + 1) * self.granularity_ms, 0)
        plan = self._index.plan(
            self._topic_id, self._horizon, max(until, self._horizon), self._budget.window()
        )
        assert plan.files <= self._index.limits.most_segments, "too many files in a partition"
        self._loading, self._loading_from = self._wheel, Key(self._index_next_ms, 0)
        self._set_horizon(plan.stop)
        return plan

    def end_window(self, found: Entries) -> Iterator[Entries]:
        """Put a window's keys into the wheel; yield those that are due.

        Drops the keys if a new wheel has replaced the wheel for which they were read.
        """
        wheel, self._loading = self._loading, None
        if wheel is self._wheel and len(found):
            yield from self._turn_in(found)

    def _count(self) -> None:
        """Tell the budget how many keys the wheel has now."""
        count = len(self._wheel)
        self._budget.used += count - self._counted
        self._counted = count

    def _set_horizon(self, horizon: Key) -> None:
        self._horizon = horizon
        self._index_next_ms = self._index.next_due(self._topic_id, horizon)

    def _shrink_window(self) -> Iterator[Entries]:
        """Move the horizon back to the wheel's median key, and drop the later keys from the wheel.

        The wheel is too large, because too many messages were published below the horizon.
        """
        if self._loading is not None:
            return
        waiting = self._wheel.drain().sorted()
        middle = len(waiting) // 2
        cut = Key(int(waiting.when_ms[middle]), int(waiting.ids[middle]))
        self._set_horizon(cut)
        below = position(waiting.when_ms, waiting.ids, cut)
        yield from self._turn_in(waiting.slice(0, below))


def _in_order(arrived: Entries) -> Entries:
    """Return messages sorted by due time, then by offset; their offsets must ascend."""
    due_ms = arrived.when_ms
    if (due_ms[1:] >= due_ms[:-1]).all():
        return arrived
    return arrived.take(np.argsort(due_ms, kind="stable"))
