"""The census: how many messages of the whole broker are scheduled, due, in flight and in retry.

These numbers follow from the state of all topics. A census visits each topic, in steps that hold
the event loop for a few milliseconds at most:

- The messages of an active topic are counted key by key.
- The messages of a passive topic are estimated from the index, because it has no runtime. The
  number of its due messages is an upper bound.

A census of ten million pending messages takes seconds. So it is made only on request,
and not again until ``_REST_SHARE`` times its duration have passed. Meanwhile the last one stands.

A message is *scheduled* if it is not yet due. It counts once, however many subscriptions get it. It
is *due* for each subscription that has not acknowledged it and has it neither in flight nor in
retry. Exclusive and failover subscriptions ignore due times. Dead letters that wait for an operator
are not due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import trio

from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.dead_letters.dead_letter import DEAD_LETTERS_SUBSCRIPTION
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.topic.passive_topics import PassiveTopics
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.drop_oldest import DropOldest
from escapement.clock import Clock
from escapement.event_log import EventLog
from escapement.sorting import lowest
from escapement.storage.catalog.catalog import TopicRecord
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, Key

_log = EventLog(__name__)

# After a census, the next one waits for this many times its duration.
_REST_SHARE: Final = 30
# Topics that are visited in one step of the event loop.
_STEP_TOPICS: Final = 50


@dataclass(slots=True)
class Census:
    """The result of a census."""

    at_ms: int  # when it ended
    scheduled: int = 0
    due: int = 0
    in_flight: int = 0
    retrying: int = 0
    next_due_ms: int | None = None  # the lowest due time of a scheduled message
    oldest_due_ms: int | None = None  # of a due message of a shared subscription


class CensusTaker:
    """Makes a census of all topics of a broker when it is asked for one.

    Args:
      tables: returns the topics of message tables.
    """

    def __init__(
        self,
        registry: Registry,
        passive: PassiveTopics,
        tables: Callable[[], Iterable[Topic]],
        index: DelayedIndex,
        counter: DropOldest,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._passive = passive
        self._tables = tables
        self._index = index
        self._counter = counter
        self._clock = clock
        self._rests_until_s = float("-inf")
        self._counting = False
        self._done = trio.Event()
        self.last: Census | None = None

    async def fresh(
        self, start: Callable[[Callable[[], Awaitable[None]]], None], within_s: float
    ) -> Census | None:
        """Return a census that was made now, or else the last one; None if there was none.

        Args:
          start: starts a function that makes the census, in another task.
          within_s: how long to wait for it.
        """
        if not self._counting and trio.current_time() >= self._rests_until_s:
            self._counting, self._done = True, trio.Event()
            start(self._take)
        if self._counting:
            with trio.move_on_after(within_s):
                await self._done.wait()
        return self.last

    async def _take(self) -> None:
        """Make one census. A failure is logged, and the last census stands."""
        began_s = trio.current_time()
        try:
            self.last = await self._count()
        except Exception:
            _log.exception(
                "metrics.census_failed", "cannot count the pending messages for the metrics"
            )
        finally:
            ended_s = trio.current_time()
            self._rests_until_s = ended_s + _REST_SHARE * (ended_s - began_s)
            self._counting = False
            self._done.set()

    async def _count(self) -> Census:
        found = Census(0)
        for table in list(self._tables()):
            await self._add_table(table, found)
        now_ms = self._clock.now_ms()
        for at, record in enumerate(list(self._registry.topics.values())):
            if at % _STEP_TOPICS == 0:
                await trio.lowlevel.checkpoint()
            topic = self._registry.active.get(record.id)
            if topic is not None:
                await self._add_active(topic, found)
            elif self._registry.exists(record.id):
                self._add_passive(record, found, now_ms)
        found.at_ms = self._clock.now_ms()
        return found

    async def _add_active(self, topic: Topic, found: Census) -> None:
        if self._index.count(topic.id):
            ahead = await self._counter.ahead(topic)
            found.scheduled += ahead.number
            found.next_due_ms = lowest((found.next_due_ms, ahead.first_ms))
        consumed = list(topic.consumed())
        for subscription in list(topic.subscriptions()):
            found.in_flight += len(subscription.in_flight)
            found.retrying += subscription.retrying
            if subscription not in consumed:
                continue
            if isinstance(subscription, SharedSubscription):
                unread = await self._counter.unread(topic, subscription)
                found.due += subscription.ready_count + unread.number
                oldest_ms = lowest((subscription.oldest_ready_ms(), unread.first_ms))
                found.oldest_due_ms = lowest((found.oldest_due_ms, oldest_ms))
            else:
                waiting = topic.waiting(subscription)
                found.due += waiting - len(subscription.in_flight) - subscription.retrying

    async def _add_table(self, topic: Topic, found: Census) -> None:
        """Count the rows of a message table that are in memory."""
        await trio.lowlevel.checkpoint()
        found.scheduled += topic.wheel_count
        for subscription in topic.shared.values():
            found.in_flight += len(subscription.in_flight)
            found.retrying += subscription.retrying
            found.due += subscription.ready_count
            found.oldest_due_ms = lowest((found.oldest_due_ms, subscription.oldest_ready_ms()))

    def _add_passive(self, record: TopicRecord, found: Census, now_ms: int) -> None:
        """Estimate the messages of a passive topic; all of its subscriptions are shared."""
        if not self._index.count(record.id):
            return
        frontier = Key(now_ms + 1, 0)
        next_ms = self._index.next_due(record.id, frontier)
        if next_ms is not None:
            found.scheduled += self._index.count_between(record.id, frontier, KEY_MAX)
            found.next_due_ms = lowest((found.next_due_ms, next_ms))
        past = self._index.count_between(record.id, KEY_MIN, frontier)
        if past:
            for one in self._registry.subscriptions_of(record.id):
                if one.name != DEAD_LETTERS_SUBSCRIPTION:
                    done = self._passive.done(one.id) + self._passive.cancelled(record.id)
                    found.due += min(past, max(record.next_offset - done, 0))
