"""Drops the oldest messages of a subscription for a backlog quota, and expires old ones.

It works on one subscription at a time, while no other task reads messages for that subscription.
The subscription's due messages are counted exactly, and the oldest ones beyond the number to keep
are dropped. A shared subscription reads keys from the index, and drops the messages due first. An
exclusive or failover subscription reads rows of the log, and drops their first messages. All reads
are made in bounded steps. In-flight messages are never dropped.

Messages that are acknowledged during the count make room as well, so no more are dropped than
necessary. Dropped messages are acknowledged, or become dead letters, with the group commits of all
other acknowledgements.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

from escapement.broker.log.log_reader import LogReader
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.backlogs import Weighed, amount_of
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import StorageUnavailable
from escapement.storage.blocking import Run, read_from
from escapement.storage.index import KEY_MAX, DelayedIndex, Key

# Keys of the index that are read in one step.
_STEP_KEYS: Final = 65_536
# Reads of the log in one sweep for expired messages. The next sweep comes a second later, so that
# other subscriptions can read meanwhile.
_READS: Final = 16


class Sighted(NamedTuple):
    """Messages that were counted key by key."""

    number: int
    first_ms: int | None  # the lowest due time among them; None if there are none


class DropOldest:
    """Drops and expires messages."""

    def __init__(self, index: DelayedIndex, clock: Clock, run: Run, log: LogReader) -> None:
        self._index = index
        self._clock = clock
        self._run = run
        self._log = log

    async def drop(self, topic: Topic, subscription: Subscription) -> None:
        """Drop the oldest messages until ``subscription.keep_most`` due ones are left.

        Stop earlier if ``subscription.settled`` reaches ``settled_most``. If not all can be dropped
        now, the topic's quota is checked again. Nothing is dropped while the filler adds past
        messages for the subscription, because the oldest messages are not known. The filler has the
        quota checked afterwards.

        Raises:
          StorageUnavailable: if the log cannot be read now; some messages may be left.
        """
        keep_most, subscription.keep_most = subscription.keep_most, None
        assert keep_most is not None
        if isinstance(subscription, SharedSubscription) and subscription.is_filling:
            return
        try:
            if isinstance(subscription, SharedSubscription):
                await self._drop_shared(topic, subscription, keep_most)
            else:
                assert isinstance(subscription, OrderedSubscription)
                await self._drop_ordered(topic, subscription, keep_most)
        except StorageUnavailable:
            topic.quota_watch.grown = True
            raise
        if not subscription.has_room_for_dead:
            topic.quota_watch.grown = True

    async def count(self, topic: Topic, subscription: Subscription) -> int:
        """Return exactly how many due messages a subscription has not acknowledged.

        All messages are due for an exclusive or failover subscription. Messages that fall due or
        are acknowledged during the count may or may not be included.
        """
        if not isinstance(subscription, SharedSubscription):
            return topic.waiting(subscription)
        unread = await self.unread(topic, subscription)
        return len(subscription.held) - len(subscription.dead) + unread.number

    async def unread(self, topic: Topic, subscription: SharedSubscription) -> Sighted:
        """Count the open messages that are due and that a subscription has still to read."""
        frontier = Key(topic.frontier_ms(self._clock.now_ms()) + 1, 0)
        counted, first_ms = 0, None
        at = subscription.waits_from
        while at is not None and at < frontier:
            plan = self._index.plan(topic.id, at, frontier, _STEP_KEYS)
            due_ms, offsets, _ = await read_from(plan, self._run, plan.read_traits)
            rows = subscription.open_of(due_ms, offsets)
            if first_ms is None and rows.height:
                first_ms = int(rows.due_ms.min())
            counted += rows.height
            at = plan.stop
        return Sighted(counted, first_ms)

    async def weigh(self, topic: Topic, counts_all: bool) -> Weighed:
        """Count the backlog of a topic key by key.

        Args:
          counts_all: whether to count also messages not yet due; otherwise they are estimated.

        Returns:
          The backlog, and the number of due messages of each subscription.
        """
        dues = []
        for subscription in list(topic.consumed()):
            dues.append((subscription, await self.count(topic, subscription)))
            await trio.lowlevel.checkpoint()
        ahead = (await self.ahead(topic)).number if counts_all else None
        return amount_of(self._index, topic, dues, self._clock.now_ms(), ahead), dues

    async def ahead(self, topic: Topic) -> Sighted:
        """Count the messages of a topic that are not yet due and not cancelled."""
        counted, first_ms, now_ms = 0, None, self._clock.now_ms()
        at = Key(now_ms + 1, 0)
        while at < KEY_MAX:
            plan = self._index.plan(topic.id, at, KEY_MAX, _STEP_KEYS)
            due_ms, offsets = await read_from(plan, self._run, plan.read)
            hidden = topic.amendments.hidden(due_ms, offsets)
            due_ms = due_ms if hidden is None else due_ms[~hidden]
            if first_ms is None and len(due_ms):
                first_ms = int(due_ms[0])
            counted += len(due_ms)
            at = plan.stop
            await trio.lowlevel.checkpoint()
        return Sighted(counted, first_ms)

    async def expire(self, topic: Topic, subscription: OrderedSubscription) -> None:
        """Expire messages of an exclusive or failover subscription, oldest first.

        These are messages past their time to live. One call makes a bounded number of log reads.

        Raises:
          StorageUnavailable: if the log cannot be read now; a later sweep tries again.
        """
        ages = subscription.ages
        now_ms = self._clock.now_ms()
        until_ms = subscription.expiry.until_ms(now_ms)
        try:
            for _ in range(_READS):
                oldest = ages.oldest(topic.next_offset)
                if oldest is None or oldest[2] > until_ms or not subscription.has_room_for_dead:
                    break
                first, high, _ = oldest
                low = min(subscription.first_unsettled(first), high)
                if low > first:
                    ages.looked(first, low, None)
                if low < high:
                    parts = await self._log.read(topic.id, low, high)
                    subscription.expire_read(low, high, parts, until_ms)
        finally:
            oldest = ages.oldest(topic.next_offset)
            if oldest is not None:
                subscription.expiry.keeps(oldest[2])
            subscription.expiry.end_sweep(now_ms)

    async def _to_settle(self, topic: Topic, subscription: Subscription, keep_most: int) -> int:
        """Return the value of ``subscription.settled`` at which enough messages are dropped.

        ``settled`` grows by one with each message that is acknowledged or dropped.
        """
        settled = subscription.settled
        settled += await self.count(topic, subscription) - keep_most
        most, subscription.settled_most = subscription.settled_most, None
        if most is None or settled <= most:
            return settled
        topic.quota_watch.grown = True  # check again: more messages have fallen due since the count
        return most

    async def _drop_shared(
        self, topic: Topic, subscription: SharedSubscription, keep_most: int
    ) -> None:
        subscription.look_again()
        frontier = Key(topic.frontier_ms(self._clock.now_ms()) + 1, 0)
        settled = await self._to_settle(topic, subscription, keep_most)
        while (more := settled - subscription.settled) > 0 and subscription.has_room_for_dead:
            at = subscription.bands.unread_from
            subscription.drop_held(more, at)
            if (more := settled - subscription.settled) <= 0 or at is None or at >= frontier:
                return
            bands = [band for band in subscription.bands if band.mark == at]
            marks = [band.mark for band in subscription.bands if band.mark is not None]
            until = min((mark for mark in marks if mark > at), default=frontier)
            plan = self._index.plan(topic.id, at, min(until, frontier), _STEP_KEYS)
            for band in bands:
                band.begin_scan(plan.stop, catches_up=plan.stop >= frontier)
            try:
                keys = await read_from(plan, self._run, plan.read_traits)
            except BaseException:
                for band in bands:
                    band.break_scan()
                raise
            more = max(settled - subscription.settled, 0)
            subscription.drop_read(bands, *keys, more, plan.stop)

    async def _drop_ordered(
        self, topic: Topic, subscription: OrderedSubscription, keep_most: int
    ) -> None:
        end = topic.next_offset
        settled = await self._to_settle(topic, subscription, keep_most)
        at = subscription.first_unsettled(0)
        while (
            (more := settled - subscription.settled) > 0
            and subscription.has_room_for_dead
            and at < end
        ):
            parts = await self._log.read(topic.id, at, end)
            if not parts:
                return
            more = settled - subscription.settled
            subscription.drop_first(parts, more)
            for part in parts:
                topic.sizes.saw(part.batch)
            at = subscription.first_unsettled(parts[-1].end_offset)
