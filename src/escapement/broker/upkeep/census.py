"""The census: how many messages of the whole broker are scheduled, due, in flight and in retry.

These numbers follow from the state of all topics. A census visits each topic, in steps that hold
the event loop for a few milliseconds at most:

- The messages of an active topic are counted key by key.
- The scheduled messages of a passive topic are counted key by key too. Its due messages are
  estimated from the index, because it has no runtime. Their number is an upper bound, unless a
  message was cancelled after its delivery.

The census has the numbers of each namespace, and how many of its scheduled messages fall due in
each span of time (``span_counts.py``). The numbers of a namespace say whether they are exact.

A census of ten million pending messages takes seconds. So it is made only on request,
and not again until ``_REST_SHARE`` times its duration have passed. Meanwhile the last one stands.

A message is *scheduled* if it is not yet due. It counts once, however many subscriptions get it. It
is *due* for each subscription that has not acknowledged it and has it neither in flight nor in
retry. Exclusive and failover subscriptions ignore due times. Dead letters that wait for an operator
are not due. Of message tables, only rows in memory count. Tables belong to no namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import trio

from escapement.broker.log.backfill import Backfill
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.dead_letters.dead_letter import DEAD_LETTERS_SUBSCRIPTION
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.topic.passive_topics import PassiveTopics
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.drop_oldest import DropOldest
from escapement.broker.upkeep.span_counts import NO_SPANS, Grid, SpanCounts, SpanTally
from escapement.clock import Clock
from escapement.event_log import EventLog
from escapement.sorting import lowest, sort
from escapement.storage.blocking import Run
from escapement.storage.catalog.catalog import TopicRecord
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, Key, Plan
from escapement.storage.index.keys import Keys

_log = EventLog(__name__)

# After a census, the next one waits for this many times its duration.
_REST_SHARE: Final = 30
# How long after this rest a census is still good, if no request asked for another one.
_GOOD_FOR_S: Final = 300.0
# Topics that are visited in one step of the event loop, and keys that are read in one step. A topic
# with more keys takes several steps.
_STEP_TOPICS: Final = 10
_STEP_KEYS: Final = 65_536
# Topics that are sorted by namespace in one step.
_SORTED_TOPICS: Final = 2_000
# The most spans of all namespaces together that a census keeps, 24 bytes for each. Each namespace
# may have an equal share.
_MOST_SPANS: Final = 1_000_000


@dataclass(slots=True)
class Pending:
    """The pending messages of a namespace, or of everything."""

    scheduled: int = 0
    due: int = 0
    in_flight: int = 0
    retrying: int = 0
    next_due_ms: int | None = None  # the lowest due time of a scheduled message
    oldest_due_ms: int | None = None  # of a due message of a shared subscription
    exact: bool = True  # whether no number is an estimate
    spans: SpanCounts = NO_SPANS  # of scheduled messages

    def add(self, other: Pending) -> None:
        """Add the numbers of another part of the broker, except its spans."""
        self.scheduled += other.scheduled
        self.due += other.due
        self.in_flight += other.in_flight
        self.retrying += other.retrying
        self.next_due_ms = lowest((self.next_due_ms, other.next_due_ms))
        self.oldest_due_ms = lowest((self.oldest_due_ms, other.oldest_due_ms))
        self.exact = self.exact and other.exact


@dataclass(slots=True)
class Census(Pending):
    """The result of a census: everything, and each namespace with topics by its id."""

    began_ms: int = 0
    at_ms: int = 0  # when it ended
    namespaces: dict[int, Pending] = field(default_factory=dict)


class CensusTaker:
    """Makes a census of all topics of a broker when it is asked for one.

    Args:
      tables: returns the topics of message tables.
      counter: counts the messages that a subscription has still to read.
      backfill: the backfill of the index, which may lack messages of the log.
    """

    def __init__(
        self,
        registry: Registry,
        passive: PassiveTopics,
        tables: Callable[[], Iterable[Topic]],
        index: DelayedIndex,
        counter: DropOldest,
        clock: Clock,
        run: Run,
        backfill: Backfill,
    ) -> None:
        self._registry = registry
        self._passive = passive
        self._tables = tables
        self._index = index
        self._counter = counter
        self._clock = clock
        self._run = run
        self._backfill = backfill
        self._rests_until_s = float("-inf")
        self._counting = False
        self._asked = trio.Event()
        self._done = trio.Event()
        self.last: Census | None = None

    @property
    def is_old(self) -> bool:
        """Whether the last census is old, because no request asked for one for a while."""
        return trio.current_time() > self._rests_until_s + _GOOD_FOR_S

    async def fresh(self, within_s: float) -> Census | None:
        """Return a census that was made now, or else the last one; None if there was none.

        Args:
          within_s: how long to wait for it.
        """
        if not self._counting and trio.current_time() >= self._rests_until_s:
            self._counting, self._done = True, trio.Event()
            self._asked.set()
        if self._counting:
            with trio.move_on_after(within_s):
                await self._done.wait()
        return self.last

    async def run(self) -> None:
        """Make a census whenever one is asked for, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            await self._take()

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
        is_whole = not self._backfill.is_running
        found = Census(began_ms=self._clock.now_ms(), exact=is_whole)
        grid = Grid(found.began_ms)
        everything = SpanTally(grid)
        for table in list(self._tables()):
            await self._add_table(table, found, everything)
        by_namespace = await self._by_namespace()
        most = max(_MOST_SPANS // max(len(by_namespace), 1), 1)
        for id, records in by_namespace.items():
            pending = found.namespaces[id] = Pending(exact=is_whole)
            tally = SpanTally(grid)
            await self._add_namespace(records, pending, tally)
            pending.spans = tally.result(most)
            found.add(pending)
            everything.add_all(tally)
        found.spans = everything.result(grid.count)
        found.at_ms = self._clock.now_ms()
        return found

    async def _by_namespace(self) -> dict[int, list[TopicRecord]]:
        found: dict[int, list[TopicRecord]] = {}
        for at, record in enumerate(list(self._registry.topics.values())):
            if at % _SORTED_TOPICS == 0:
                await trio.lowlevel.checkpoint()
            found.setdefault(record.namespace_id, []).append(record)
        return found

    async def _add_namespace(
        self, records: list[TopicRecord], found: Pending, tally: SpanTally
    ) -> None:
        for some in self._batches(records):
            await trio.lowlevel.checkpoint()
            await self._add_scheduled(some, found, tally)
            for record in some:
                topic = self._registry.active.get(record.id)
                if topic is not None:
                    await self._add_active(topic, found)
                elif self._registry.exists(record.id):
                    self._add_passive(record, found)

    def _batches(self, records: list[TopicRecord]) -> Iterator[list[TopicRecord]]:
        """Yield the topics in batches for one step; only a topic with many keys needs more."""
        batch: list[TopicRecord] = []
        keys = 0
        for record in records:
            batch.append(record)
            keys += self._index.count(record.id)
            if len(batch) == _STEP_TOPICS or keys >= _STEP_KEYS:
                yield batch
                batch, keys = [], 0
        if batch:
            yield batch

    async def _add_scheduled(
        self, records: list[TopicRecord], found: Pending, tally: SpanTally
    ) -> None:
        """Count the messages of some topics that are not yet due and not cancelled."""
        frontier = Key(self._clock.now_ms() + 1, 0)
        starts = {one.id: frontier for one in records if self._index.count(one.id)}
        while starts:
            plans = {
                id: self._index.plan(id, start, KEY_MAX, _STEP_KEYS)
                for id, start in starts.items()
                if self._registry.exists(id)
            }
            parts = await self._run(_read_plans, list(plans.values()))
            for id, (due_ms, offsets) in zip(plans, parts, strict=True):
                topic = self._registry.active.get(id)
                hidden = None if topic is None else topic.amendments.hidden(due_ms, offsets)
                due_ms = due_ms if hidden is None else due_ms[~hidden]
                found.scheduled += len(due_ms)
                if len(due_ms):
                    found.next_due_ms = lowest((found.next_due_ms, int(due_ms[0])))
                    tally.add(due_ms)
            starts = {id: plan.stop for id, plan in plans.items() if plan.stop < KEY_MAX}

    async def _add_active(self, topic: Topic, found: Pending) -> None:
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

    async def _add_table(self, topic: Topic, found: Pending, tally: SpanTally) -> None:
        """Count the rows of a message table that are in memory; it may have others."""
        await trio.lowlevel.checkpoint()
        found.exact = False
        due_ms = topic.wheel_due_ms()
        found.scheduled += len(due_ms)
        sort(due_ms)
        tally.add(due_ms)
        for subscription in topic.shared.values():
            found.in_flight += len(subscription.in_flight)
            found.retrying += subscription.retrying
            found.due += subscription.ready_count
            found.oldest_due_ms = lowest((found.oldest_due_ms, subscription.oldest_ready_ms()))

    def _add_passive(self, record: TopicRecord, found: Pending) -> None:
        """Estimate the due messages of a passive topic; all of its subscriptions are shared."""
        if not self._index.count(record.id):
            return
        found.exact = found.exact and not self._passive.has_changes(record.id)
        frontier = Key(self._clock.now_ms() + 1, 0)
        past = self._index.count_between(record.id, KEY_MIN, frontier)
        if past:
            for one in self._registry.subscriptions_of(record.id):
                if one.name != DEAD_LETTERS_SUBSCRIPTION:
                    done = self._passive.done(one.id) + self._passive.cancelled(record.id)
                    due = min(past, max(record.next_offset - done, 0))
                    found.due += due
                    found.exact = found.exact and not due


def _read_plans(plans: list[Plan]) -> list[Keys]:
    return [plan.read() for plan in plans]
