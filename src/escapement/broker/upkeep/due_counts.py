"""Counts of the due and the scheduled messages of each subscription of one topic.

The counts are exact if the topic has at most ``_EXACT_KEYS`` keys to look at, which takes some ten
milliseconds. Beyond that they are estimates from the index, which include finished and cancelled
messages that are still in it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

from escapement.broker.log.backfill import Backfill
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.drop_oldest import DropOldest
from escapement.clock import Clock
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MAX, DelayedIndex, Key

# The most keys that a request counts one by one, once for each subscription.
_EXACT_KEYS: Final = 1 << 18
# Keys that are read in one step, and subscriptions that are visited in one.
_STEP_KEYS: Final = 1 << 16
_STEP_SUBSCRIPTIONS: Final = 50


class DueCounts(NamedTuple):
    """Messages of a subscription that it has neither finished nor in flight nor in retry."""

    due: int
    scheduled: int  # not yet due; 0 if the subscription ignores due times
    exact: bool


class DueCounter:
    """Counts the messages of single topics.

    Args:
      unread: counts the due messages that a subscription has still to read.
      run: runs the steps that read keys, in a thread.
    """

    def __init__(
        self, index: DelayedIndex, unread: DropOldest, clock: Clock, run: Run, backfill: Backfill
    ) -> None:
        self._index = index
        self._unread = unread
        self._clock = clock
        self._run = run
        self._backfill = backfill

    async def count(self, topic: Topic) -> dict[str, DueCounts]:
        """Return the counts of each subscription that the topic has now, by its name."""
        now_ms = self._clock.now_ms()
        frontier = Key(topic.frontier_ms(now_ms) + 1, 0)
        shared = list(topic.shared.values())
        found = {one.record.name: _of_ordered(topic, one) for one in topic.ordered.values()}
        if self._keys(topic, shared, frontier) > _EXACT_KEYS:
            return found | await self._estimates(topic, shared, frontier)
        is_whole = not self._backfill.is_running
        scheduled = await self._scheduled(topic, shared, frontier)
        for at, one in enumerate(shared):
            if at % _STEP_SUBSCRIPTIONS == 0:
                await trio.lowlevel.checkpoint()
            unread = await self._unread.unread(topic, one)
            due = one.ready_count + unread.number
            found[one.record.name] = DueCounts(due, scheduled[one.record.id], is_whole)
        return found

    def _keys(self, topic: Topic, shared: list[SharedSubscription], frontier: Key) -> int:
        """Return an upper bound of the keys to look at. O(subscriptions)."""
        found = len(shared) * self._index.most_between(topic.id, frontier, KEY_MAX)
        for one in shared:
            if one.waits_from is not None:
                found += self._index.most_between(topic.id, one.waits_from, frontier)
        return found

    async def _scheduled(
        self, topic: Topic, shared: list[SharedSubscription], frontier: Key
    ) -> dict[int, int]:
        """Count the messages not yet due that each subscription will get, by its id."""
        found = {one.record.id: 0 for one in shared}
        at = frontier if shared else KEY_MAX
        while at < KEY_MAX:
            plan = self._index.plan(topic.id, at, KEY_MAX, _STEP_KEYS)
            due_ms, offsets = await self._run(plan.read)
            for number, one in enumerate(shared):
                if number % _STEP_SUBSCRIPTIONS == 0:
                    await trio.lowlevel.checkpoint()
                found[one.record.id] += one.open_of(due_ms, offsets).height
            at = plan.stop
        return found

    async def _estimates(
        self, topic: Topic, shared: list[SharedSubscription], frontier: Key
    ) -> dict[str, DueCounts]:
        found = {}
        scheduled = self._index.count_between(topic.id, frontier, KEY_MAX)
        for at, one in enumerate(shared):
            if at % _STEP_SUBSCRIPTIONS == 0:
                await trio.lowlevel.checkpoint()
            most = max(topic.waiting(one), 0)
            unread = 0
            if one.waits_from is not None:
                unread = self._index.count_between(topic.id, one.waits_from, frontier)
            due = one.ready_count + min(unread, most)
            found[one.record.name] = DueCounts(due, min(scheduled, most), False)
        return found


def _of_ordered(topic: Topic, one: Subscription) -> DueCounts:
    due = topic.waiting(one) - len(one.in_flight) - one.retrying
    return DueCounts(due, 0, True)
