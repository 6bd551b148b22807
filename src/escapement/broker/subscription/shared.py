"""A shared subscription: delivers due messages to all consumers with permits.

The base class (:mod:`~escapement.broker.subscription.due_subscription`) makes due messages ready,
in one store for each priority band. This class delivers the ready messages of all bands in one
order, by rank. The *rank* of a message is its due time, moved by the policy's
``priority_ageing_ms`` for each step of its priority away from the default. The rank never changes,
so only messages that fall due within a bounded time pass a waiting message, and none starves. V5.

If the policy asks for an order by key or of the topic, one message of each key is in flight at a
time (:mod:`~escapement.broker.subscription.keys.key_order`). A key is *busy* while a message of it
is in flight or, unless the policy says otherwise, in retry. If consumers ask for ranges of keys,
each gets the messages of its range (:mod:`~escapement.broker.subscription.keys.key_ranges`). A
range consists of *slots*: each key has a slot, which is a hash.

In both cases, ready may fill up with messages that cannot be delivered. Some of them are then
removed, and their slots are *skipped*: scans of the index pass over them, and find deliverable
messages behind them. A skipped slot is *dry*, and is scanned again, when ready has no message of it
left and its next message could be delivered
(:mod:`~escapement.broker.subscription.priorities.skipping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.dead_letters.dead_letter import Reason
from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.delivery.delivery import DeliveryPart
from escapement.broker.subscription.delivery.dispatcher import level_out, share_out
from escapement.broker.subscription.delivery.hand_over import HandOver
from escapement.broker.subscription.due_subscription import DueSubscription
from escapement.broker.subscription.keys.key_order import GATHER_READ, KeyOrder
from escapement.broker.subscription.keys.key_ranges import KeyRanges, shorten
from escapement.broker.subscription.priorities.ready import Ready, Rows
from escapement.broker.subscription.priorities.skipping import Skipping
from escapement.broker.subscription.subscription import Environment
from escapement.message import Bools, Int64s
from escapement.sorting import lowest
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.catalog.policy import ANY_ORDER, HOLD, TOPIC_ORDER, SubscriptionPolicy
from escapement.storage.index import Key
from escapement.traits import SLOTS

# When messages of slow consumers block others, ready is emptied to this share (an eighth). Each
# round of delivery examines the remaining messages first, so they must be few.
_LEFT_SHARE: Final = 8
# With key ranges and no order, a round of delivery examines at least this many ready rows, or all
# if there are fewer.
_WINDOW_ROWS: Final = 8192


class SharedSubscription(DueSubscription):
    """A subscription in delivery order, with many consumers."""

    def __init__(
        self, record: SubscriptionRecord, environment: Environment, now_ms: int, mark: Key
    ) -> None:
        super().__init__(record, environment, now_ms, mark)
        # When to wake up for ready messages that are not due, because the clock was set back.
        self._early_ms: int | None = None
        self._turn = 0
        self._dealer = KeyRanges([])
        self._set_order(record.policy)

    # -- delivering ----------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        if self._order is not None or self._skipping is not None or self.keep_most is not None:
            return False
        return not self.expiry.wants_sweep and len(self.bands) == 1 and self.bands.normal.is_idle

    def assign(self, now_ms: int, frame_messages: int, *, tried: bool = True) -> list[HandOver]:
        """Choose ready messages for the consumers that have permits, and put them in flight.

        Returns runs of messages, each for one consumer. Arguments are as in the base class.
        """
        # Held messages that are not ready: in flight, in retry or dead.
        there = self.ready_count
        unacked = len(self.held) - there
        if not tried and self._order is None:
            there = sum(band.ready.untried for band in self.bands)
        ready = min(there, self.limits.unacked_messages - unacked)
        if ready <= 0 or not self.consumers:
            return []
        ready = self.throttle.grant(ready, len(self.in_flight), now_ms)
        if self._order is not None:
            return self._assign_in_order(self._order, ready, now_ms, frame_messages)
        if self._ranges is not None:
            return self._assign_by_range(ready, now_ms, frame_messages, tried)
        capacities = [consumer.capacity for consumer in self.consumers]
        turn = self._turn % len(capacities)
        busy = self._busy()
        if busy is not None:
            runs, self._turn = level_out(ready, capacities, busy, turn, frame_messages)
        else:
            runs, self._turn = share_out(ready, capacities, turn, frame_messages)
        # All runs together: a call for each run would cost as much as for all of them.
        parts = self._take_apart(sum(count for _, count in runs), with_tried=tried)
        taken: list[HandOver] = []
        for part, is_old in zip(parts, (False, True), strict=True):
            rows = self._due_of(part, now_ms) if part.height else part
            takers, runs = self._divide(rows.height, runs)
            if takers:
                hands = self._deliver(takers, rows, now_ms)
                taken += [hand._replace(tried=True) for hand in hands] if is_old else hands
        return taken

    def _divide(
        self, height: int, runs: list[tuple[int, int]]
    ) -> tuple[list[tuple[Consumer, int]], list[tuple[int, int]]]:
        """Divide ``height`` rows among the first of the runs.

        Args:
          runs: the position of each consumer, and how many rows it is to get.

        Returns:
          The consumers with the number of rows of each, and the runs that are left.
        """
        takers: list[tuple[Consumer, int]] = []
        for at, (position, count) in enumerate(runs):
            if not height:
                return takers, runs[at:]
            given = min(height, count)
            takers.append((self.consumers[position], given))
            height -= given
            if given < count:
                return takers, [(position, count - given), *runs[at + 1 :]]
        return takers, []

    def _busy(self) -> list[int] | None:
        """Return how many messages each consumer has in flight.

        Returns None unless the policy gives messages to the least busy consumer.
        """
        if self.record.policy.dispatch != "least_busy":
            return None
        held = self.in_flight.by_consumer()
        return [held.get(consumer.id, 0) for consumer in self.consumers]

    def _alive(self, rows: Rows, now_ms: int) -> Rows:
        """Return the rows that have not expired, and expire the others.

        The caller has removed all these rows from ready.
        """
        if not self.expiry.ttl_ms:
            return rows
        over = rows.due_ms <= self.expiry.until_ms(now_ms)
        if not over.any():
            return rows
        self.expire(rows.pick(over))
        return rows.pick(~over)

    def _due_of(self, rows: Rows, now_ms: int) -> Rows:
        """Return the rows that are due, expire expired ones, and put early ones back into ready.

        The caller has removed all these rows from ready.
        """
        rows = self._alive(rows, now_ms)
        due = self._are_due(rows, now_ms)
        if np.count_nonzero(due) == rows.height:
            return rows
        self._put_back(rows.pick(~due))
        return rows.pick(due)

    def _are_due(self, rows: Rows, now_ms: int) -> npt.NDArray[np.bool_]:
        """Return which rows are due; bool[n]. Schedule a wake-up for the others."""
        due = rows.due_ms <= now_ms
        if np.count_nonzero(due) < rows.height:
            # The clock was set back. If it was set back by more than a tick, ``rewind`` follows.
            # Otherwise the early messages wait in ready.
            early_ms = int(rows.due_ms[~due].min())
            self._early_ms = lowest((self._early_ms, early_ms))
        return due

    def _take_apart(self, most: int, *, with_tried: bool) -> tuple[Rows, Rows]:
        """Remove the first ``most`` rows by rank from the ready stores of all bands.

        Returns them in two parts. The rows of the second part have waited out a back-off.

        Args:
          with_tried: whether to take rows that have waited out a back-off.
        """
        stores = [band.ready for band in self.bands]
        return Ready.take_apart(stores, most, with_tried=with_tried)

    def _put_back(self, rows: Rows) -> None:
        """Put rows that were just taken out of ready back into the stores of their bands.

        Args:
          rows: sorted by rank.
        """
        for band, part in self.bands.split(rows):
            band.ready.put_back(part)

    def was_sent_before(self, rows: Rows) -> npt.NDArray[np.bool_] | None:
        before = rows.attempts > 1
        if self.doubtful_until_ms:
            before |= rows.due_ms <= self.doubtful_until_ms
        return before if np.count_nonzero(before) else None

    def may_have_had(self, rows: Rows, published_ms: Int64s) -> npt.NDArray[np.bool_]:
        return (rows.due_ms <= self.doubtful_until_ms) & self.covers(rows.due_ms, rows.offsets)

    def _again(self, rows: Rows, *, waited: bool) -> None:
        self.expiry.keeps(int(rows.due_ms.min()))
        if self._order is not None:
            self._order.again(self._until_read_limit(rows))
            return
        asked = np.ones(rows.height, bool) if self._ranges is None else self._ranges.wanted(rows)
        for band, part in self.bands.split(rows.pick(asked)):
            push = band.ready.push_tried if waited else band.ready.push
            push(part.in_order(band.ready.ageing_ms))
        self._lay_aside(rows.pick(~asked))

    def _lay_aside(self, rows: Rows) -> None:
        """Put rows into ready that were sent before and are in no consumer's range.

        They are kept with the rows that waited out a back-off, which take no room from others.
        """
        for band, part in self.bands.split(rows):
            band.ready.push_tried(part.in_order(band.ready.ageing_ms))

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        old = self.record.policy
        super().set_policy(policy)
        if (policy.order, policy.on_retry) != (old.order, old.on_retry):
            self._set_order(policy)
        if policy.priority_ageing_ms != old.priority_ageing_ms:
            for band in self.bands:
                band.ready.set_ageing(policy.priority_ageing_ms)
            if self._order is not None:
                self._order.queues.set_ageing(policy.priority_ageing_ms)

    # -- keys ----------------------------------------------------------------------

    def _set_order(self, policy: SubscriptionPolicy) -> None:
        old, ready = self._skipping, Rows.concat([store.drain() for store in self._stores])
        self._order = None
        if policy.order != ANY_ORDER:
            self._dealer = KeyRanges(self.consumers)
            whole = policy.order == TOPIC_ORDER
            self._order = KeyOrder(whole, self.record.policy.priority_ageing_ms)
            self._order.hold(self.in_flight.rows())
            if policy.on_retry == HOLD:
                self._order.hold(self.retries.waiting()[0])
        for band in self.bands:
            band.queues = self._order
        either = self._order is not None or self._ranges is not None
        self._skipping = Skipping() if either else None
        if ready.height:
            self._again(ready, waited=False)  # rows that waited out a back-off join the others
        if self._order is not None:
            self._unready()  # messages in the index may precede ready ones in the new order
            limit = self._read_limit
            if limit is not None:
                self.fall_behind(limit)  # so may messages that the index lacks
        if old is not None:
            self._read_from(old.skip_none())

    def _return(
        self, rows: Rows, next_ms: Int64s, now_ms: int, reason: Reason | None, detail: str = ""
    ) -> None:
        if self._order is not None and self.record.policy.on_retry != HOLD:
            self._order.release(rows)  # a message in retry does not keep its key busy
        super()._return(rows, next_ms, now_ms, reason, detail)

    def _give_up_on(self, rows: Rows, reason: Reason, detail: str) -> None:
        if self._order is not None:
            self._order.release(rows)
        super()._give_up_on(rows, reason, detail)

    def _retry(self, rows: Rows, next_ms: Int64s, now_ms: int, *, waited: bool = False) -> None:
        if self._order is not None and self.record.policy.on_retry == HOLD:
            self._order.hold(rows.pick(next_ms > now_ms))
        super()._retry(rows, next_ms, now_ms, waited=waited)

    def _consumers_changed(self) -> None:
        asked = any(consumer.key_range is not None for consumer in self.consumers)
        if not asked and self._ranges is None and self._order is None:
            return
        self._dealer = KeyRanges(self.consumers)
        before, self._ranges = self._ranges, self._dealer if asked else None
        self.look_again()
        if self._order is None:
            self._skipping = (self._skipping or Skipping()) if asked else None
        if self._ranges is None and before is None:
            return
        if self._order is not None and self._order.table.whole:
            self._unready()  # messages that were passed over may precede ready ones
            return
        if self._ranges is None:
            return
        for store in self._stores:
            rows = store.rows().in_order()
            fresh = rows.pick(rows.attempts == 0)
            kept = self._pass_over(fresh, self._ranges)
            gone = fresh.offsets[~np.isin(fresh.offsets, kept.offsets)]
            if len(gone):
                store.withdraw(gone)
                self.held.discard(gone)
            if self._order is None:
                sent = rows.pick(rows.attempts > 0)
                sent = sent.pick(~self._ranges.wanted(sent))
                if sent.height:
                    store.withdraw(sent.offsets)
                    self._lay_aside(sent)

    def _unready(self) -> None:
        """Remove the never-sent messages from ready, so that a scan finds them again.

        Also stops skipping.
        """
        for store in self._stores:
            rows = store.rows()
            fresh = rows.pick(rows.attempts == 0)
            if fresh.height:
                store.withdraw(fresh.offsets)
                self.held.discard(fresh.offsets)
                self.fall_behind(fresh.in_order().key(0))
        self._skip_none()  # a key may be skipped only while its first messages are ready

    def _rooms(self, frame_messages: int) -> list[int]:
        """Return how many messages each consumer can get in one run, by its permits."""
        return [min(consumer.capacity, frame_messages) for consumer in self.consumers]

    def _acknowledged(self, parts: Sequence[DeliveryPart]) -> None:
        if self._order is not None:
            for part in parts:
                self._order.done(part.rows)

    def _closed(self, order: KeyOrder, rooms: list[int]) -> Bools:
        """Return which keys cannot be delivered now; bool[keys], by index in the key table.

        A key is closed if it is busy, or if the consumer of its range has no room.

        Args:
          rooms: how many messages each consumer can get.
        """
        if self._ranges is None or order.table.whole:
            return order.table.busy
        return order.table.busy | order.table.among(self._ranges.without_room(rooms))

    def _skip_keys(self, now_ms: int) -> None:
        skipping = self._skipping
        if skipping is None:
            return
        wants_room = skipping.wants_room(now_ms, self.limits.ready_messages)
        if not (wants_room or skipping.skips):
            return
        if self._order is not None:
            dry = self._skip_in_order(self._order, skipping, wants_room)
        else:
            dry = self._skip_by_range(self._dealer, skipping, wants_room)
        self._read_from(skipping.take_in_again(dry, now_ms))

    def _skip_in_order(self, order: KeyOrder, skipping: Skipping, wants_room: bool) -> Bools:
        """Make room in ready if wanted, for a subscription with an order; return the dry slots.

        Removes the ends of the longest key queues, and skips their slots. Returns bool[SLOTS].
        """
        order.settle(self.held)
        closed = self._closed(order, self._rooms(1))
        if wants_room:
            rows = order.queues.shorten(closed, self.limits.ready_messages // 2)
            slots = np.zeros(SLOTS, bool)
            slots[self._slots_of(rows)] = True
            self._leave_out(skipping, rows, slots)
        dry = ~order.table.slots(order.table.there | closed)
        if self._ranges is None or order.table.whole:
            return dry
        return dry & ~self._ranges.without_room(self._rooms(1))

    def _skip_by_range(self, ranges: KeyRanges, skipping: Skipping, wants_room: bool) -> Bools:
        """Make room in ready if wanted, for a subscription with key ranges; return the dry slots.

        Removes the last ready messages, and skips the ranges to which they belong. Returns
        bool[SLOTS].
        """
        if wants_room:
            most = self.limits.ready_messages // _LEFT_SHARE
            rows = Rows.concat([shorten(band.ready, most) for band in self.bands])
            self._leave_out(skipping, rows, ranges.slots_beside(rows))
        dry = ~ranges.without_room(self._rooms(1))
        if skipping.skips_any(dry):
            dry &= ~ranges.slots_beside(self._ready_again())
        return dry

    def _leave_out(self, skipping: Skipping, rows: Rows, slots: Bools) -> None:
        self.held.discard(rows.offsets)
        skipping.leave_out(rows.in_order(), slots)

    def _assign_in_order(
        self, order: KeyOrder, ready: int, now_ms: int, frame_messages: int
    ) -> list[HandOver]:
        """Do what ``assign`` does for a subscription with an order.

        At most one message of each key, or of the whole topic, is in flight.

        Args:
          ready: the most messages to deliver.
        """
        room = self._rooms(frame_messages)
        wanted = min(ready, sum(room), 1 if order.table.whole else ready)
        out = len(self.in_flight)
        if wanted <= 0:
            return []
        starves = self.bands.is_reading and ready < GATHER_READ and not order.table.whole
        soon = sum(room) if starves else 0
        if self._ranges is None and not order.may_be_worthwhile(wanted, out, soon, now_ms):
            return []
        order.settle(self.held)
        closed, ranged = self._closed(order, room), self._ranges is not None
        count = order.queues.count_open(closed)
        assert self._skipping is not None
        is_stuck = count < wanted and self.is_stuck
        self._skipping.found_stuck(is_stuck, now_ms)
        if not order.is_worthwhile(count, wanted, out, soon, now_ms):
            return []
        while True:
            rows, indexes = order.queues.open(closed, wanted, all_heads=ranged)
            over = rows.due_ms <= self.expiry.until_ms(now_ms)
            if not over.any():
                break
            order.queues.take(rows.pick(over), indexes[over])
            self.expire(rows.pick(over))
        may_go = np.flatnonzero(self._are_due(rows, now_ms))
        dealt = self._dealer.deal(rows, may_go, self.consumers, room, wanted, self._busy())
        if not dealt:
            return []
        gone = np.sort(np.concatenate([at for _, at in dealt]))
        order.deliver(rows.pick(gone), indexes[gone])
        self._skipping.delivered(len(gone))
        takers = [(self.consumers[who], len(at)) for who, at in dealt]
        return self._deliver(takers, rows.pick(np.concatenate([at for _, at in dealt])), now_ms)

    def _assign_by_range(
        self, ready: int, now_ms: int, frame_messages: int, tried: bool
    ) -> list[HandOver]:
        """Do what ``assign`` does for a subscription with key ranges and without an order.

        Args:
          ready: the most messages to deliver.
        """
        assert self._skipping is not None
        room = self._rooms(frame_messages)
        wanted = min(ready, sum(room))
        runs: dict[tuple[int, bool], list[Rows]] = {}
        aside: tuple[list[Rows], list[Rows]] = [], []
        # Examine later rows only if none of the earlier ones can be delivered.
        while wanted > 0 and not runs:
            parts = self._take_apart(max(2 * wanted, _WINDOW_ROWS), with_tried=tried)
            if not any(part.height for part in parts):
                break
            for part, is_old in zip(parts, (False, True), strict=True):
                rows = self._alive(part, now_ms)
                open_rows = np.flatnonzero(self._are_due(rows, now_ms))
                left = np.ones(rows.height, bool)
                for position, at in self._dealer.deal(
                    rows, open_rows, self.consumers, room, wanted, self._busy()
                ):
                    runs.setdefault((position, is_old), []).append(rows.pick(at))
                    room[position] -= len(at)
                    wanted -= len(at)
                    left[at] = False
                aside[is_old].append(rows.pick(left))
        for band, part in self.bands.split(Rows.concat(aside[0])):
            band.ready.put_first(part)
        for band, part in self.bands.split(Rows.concat(aside[1])):
            band.ready.push_tried(part)
        is_stuck = self.is_stuck
        # Scans are stuck if a band has no room and no consumer with permits gets a ready message.
        # If some messages were delivered, this is not known, and the last finding stands.
        if not is_stuck or (wanted > 0 and not runs):
            self._skipping.found_stuck(is_stuck, now_ms)
        hands = []
        for (position, is_old), found in runs.items():
            rows = Rows.concat(found)
            (hand,) = self._deliver([(self.consumers[position], rows.height)], rows, now_ms)
            hands.append(hand._replace(tried=is_old))
            self._skipping.delivered(hand.rows.height)
        return hands

    # -- time ----------------------------------------------------------------------

    def advance(self, now_ms: int) -> bool:
        if self._early_ms is not None and self._early_ms <= now_ms:
            self._early_ms = None
        may_go = self.expiry.advance(now_ms)
        for waiting in (self._order, self._skipping):
            may_go |= waiting is not None and waiting.advance(now_ms)
        return super().advance(now_ms) or may_go

    def next_wake_ms(self) -> int | None:
        wakes = [super().next_wake_ms(), self._early_ms, self.expiry.next_wake_ms()]
        for one in (self._order, self._skipping):
            if one is not None:
                wakes.append(one.next_wake_ms())
        return lowest(wakes)

    def rewind(self, now_ms: int) -> None:
        """Remove messages from ready that are no longer due, after the clock was set back.

        Messages that were sent before wait in retry until they are due. In-flight messages stay in
        flight.
        """
        super().rewind(now_ms)
        for store in self._stores:
            rows = store.drain()
            early = rows.due_ms > now_ms
            again = early & (rows.attempts > 0)
            store.push(rows.pick(~early))
            self.held.discard(rows.offsets[early & ~again])
            if again.any():
                rows = rows.pick(again)
                self._retry(rows, rows.due_ms, now_ms)
