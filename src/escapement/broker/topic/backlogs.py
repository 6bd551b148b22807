"""Backlog quotas: how large a backlog is, and what happens if it is too large.

The backlog of a topic is the backlog of its subscription that is furthest behind: the messages that
are due for this subscription and not acknowledged. Messages not yet due count only if the quota
says so (P10). The broker estimates the count from memory, without reading messages, in
O(subscriptions + segments of the index):

- A shared subscription: the messages it holds (ready, in flight, in retry), plus the index entries
  that are due and that it has not read yet. Some of those entries may be acknowledged already, so
  the count is limited to its unacknowledged messages. If only a part of a segment's first or last
  block is in the counted range, its messages are assumed to be spread evenly in time.
- An exclusive or failover subscription: its unacknowledged messages.
- Messages not yet due: the index entries that are due later than now, estimated in the same way.

The index may keep acknowledged, cancelled and moved messages for long, and the estimate includes
them. So before the broker refuses a publish, it counts the messages exactly, key by key
(``weigh``).

The size in bytes is the number of messages times their mean size in the index, or the mean size of
recent messages if the index has none. A count is valid for one second, so publishes within that
second may exceed the quota. The sum over a namespace's topics is valid for one millisecond longer
per topic.

This module decides whether a topic may be published to. For a drop-oldest quota it finds the
subscriptions that may exceed the quota, from an upper bound on their due messages, and how many
messages each may keep. :mod:`~escapement.broker.upkeep.drop_oldest` then counts exactly and drops
the oldest messages. :mod:`~escapement.broker.upkeep.namespace_quota` takes over for the quotas of
namespaces, and for quotas that count messages not yet due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import trio

from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.backlog_size import BacklogSize, Counted, Quota
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import BacklogFull
from escapement.storage.index import KEY_MAX, DelayedIndex, Key

# The result of a count key by key: the topic's backlog, and the number of due messages of each
# subscription.
Weighed = tuple[BacklogSize, list[tuple[Subscription, int]]]

_FRESH_MS: Final = 1_000
# A count key by key stays valid for this many times as long as the counting took.
_COUNT_SHARE: Final = 10
# It stays valid for this time at most. A count of a hundred million messages takes about ten
# seconds. It takes longer if the machine was suspended meanwhile, or its clock was set ahead.
_MOST_REST_MS: Final = 120_000


class Backlogs:
    """The backlogs of all active topics, checked against their quotas.

    Args:
      active: the active topics, by id. A topic with a quota is always active.
      wake: called with a topic and a subscription of it that must drop messages.
      level: called with a topic and False if the topic may exceed its own drop-oldest quota, which
        counts messages not yet due; with True if the topic's namespace may exceed its quota.
      count: counts a topic's backlog key by key; with True, it counts messages not yet due too.
    """

    def __init__(
        self,
        index: DelayedIndex,
        active: Mapping[int, Topic],
        wake: Callable[[Topic, Subscription], None],
        level: Callable[[Topic, bool], None],
        count: Callable[[Topic, bool], Awaitable[Weighed]],
        clock: Clock,
    ) -> None:
        self._index = index
        self._active = active
        self._wake = wake
        self._level = level
        self._count_keys = count
        self._clock = clock
        self._weighing = trio.Lock()
        self._totals: dict[int, Counted] = {}  # sums of backlogs, by namespace id
        self._rests_until_ms: dict[int, int] = {}  # when to check next, by namespace id

    def check(self, topic: Topic, now_ms: int) -> None:
        """Check that a topic may be published to.

        Raises:
          BacklogFull: if the topic's backlog, or that of its namespace, has reached its quota.
        """
        if not topic.has_quota:
            return
        quota, total = topic.quota, topic.total_quota
        if quota.there and (quota.counts_all or not quota.drops):
            self._lately(topic, now_ms).check(quota, topic.name.full)
        if total.there and (total.counts_all or not total.drops):
            amount = self._total_lately(topic, now_ms)
            amount.check(total, f"all topics in {topic.name.namespace_full}")

    async def weigh(self, topic: Topic) -> None:
        """Count the backlog key by key if ``check`` would refuse a publish because of an estimate.

        Call this before ``check``. Otherwise index entries that no subscription will get could
        cause the refusal.
        """
        if not self._seems_full(topic):
            return
        async with self._weighing:
            if not self._seems_full(topic):
                return  # another task has counted in the meantime
            total = topic.total_quota
            for one in neighbours(self._active, topic) if total.there else [topic]:
                known = one.backlog
                if not (known and known.by_keys and known.holds(self._clock.now_ms())):
                    await self._weigh(one)
            self._totals.pop(topic.namespace.id, None)

    def _seems_full(self, topic: Topic) -> bool:
        """Return whether ``check`` would refuse a publish because of an estimate."""
        if not topic.has_quota:
            return False
        try:
            self.check(topic, self._clock.now_ms())
        except BacklogFull:
            total = self._totals.get(topic.namespace.id)
            known = [topic.backlog] if total is None else [topic.backlog, total]
            return not all(one and one.by_keys for one in known)
        return False

    async def _weigh(self, topic: Topic) -> None:
        began_ms = self._clock.now_ms()
        counts_all = topic.quota.counts_all or topic.total_quota.counts_all
        amount, _ = await self._count_keys(topic, counts_all)
        now_ms = self._clock.now_ms()
        for_ms = _FRESH_MS + rest_ms(began_ms, now_ms)
        topic.backlog = Counted(now_ms, for_ms, amount, by_keys=True)

    def look(self, topic: Topic, now_ms: int) -> None:
        """Start dropping messages if the topic's backlog has grown beyond a drop-oldest quota.

        A topic is checked at most once a second. Its timer wakes it for the next check.
        """
        watch = topic.quota_watch
        if now_ms < watch.rests_until_ms or not topic.has_grown:
            return
        topic.looked_at()
        watch.rest(now_ms + _FRESH_MS)
        quota, total = topic.quota, topic.total_quota
        if quota.there and quota.drops:
            if quota.counts_all:
                # Messages not yet due count too, and their number is only an estimate here. So
                # ``level`` counts exactly before it drops messages.
                if self._may_exceed([topic], quota, now_ms):
                    self._level(topic, False)
            else:
                self._drop(topic, self._count(topic, now_ms).keep_most(quota), now_ms)
        if total.there and total.drops:
            self._look_at_all(topic, total, now_ms)

    def rewind(self) -> None:
        """Allow new checks of all namespaces at once, because the wall clock was set back."""
        self._rests_until_ms.clear()

    def _drop(self, topic: Topic, keep_most: int, now_ms: int) -> None:
        frontier, count = Key(now_ms + 1, 0), self._index.most_between
        for subscription in topic.consumed():
            if _due(topic, subscription, frontier, count) > keep_most:
                subscription.keep_most = keep_most
                self._wake(topic, subscription)

    def _look_at_all(self, topic: Topic, total: Quota, now_ms: int) -> None:
        namespace_id = topic.namespace.id
        rests_until_ms = self._rests_until_ms.get(namespace_id, 0)
        if now_ms < rests_until_ms:
            topic.quota_watch.grown = True
            topic.quota_watch.rest(rests_until_ms)
            return
        topics = neighbours(self._active, topic)
        self._rests_until_ms[namespace_id] = now_ms + _FRESH_MS + len(topics)
        if self._may_exceed(topics, total, now_ms):
            self._level(topic, True)

    def _may_exceed(self, topics: Sequence[Topic], quota: Quota, now_ms: int) -> bool:
        """Return whether upper bounds on the topics' backlogs together exceed a quota."""
        most = BacklogSize.of_all([self._most(one, now_ms) for one in topics], quota)
        return most.beside(quota) > most.keep_most(quota)

    # -- counting --------------------------------------------------------------

    def _total_lately(self, topic: Topic, now_ms: int) -> BacklogSize:
        counted = self._totals.get(topic.namespace.id)
        if counted is not None and counted.holds(now_ms):
            return counted.amount
        topics = neighbours(self._active, topic)
        amount = BacklogSize.of_all(
            [self._lately(one, now_ms) for one in topics], topic.total_quota
        )
        by_keys = all(one.backlog is not None and one.backlog.by_keys for one in topics)
        for_ms = _FRESH_MS + len(topics)
        self._totals[topic.namespace.id] = Counted(now_ms, for_ms, amount, by_keys)
        return amount

    def _lately(self, topic: Topic, now_ms: int) -> BacklogSize:
        if topic.backlog is not None and topic.backlog.holds(now_ms):
            return topic.backlog.amount
        return self._count(topic, now_ms)

    def _count(self, topic: Topic, now_ms: int) -> BacklogSize:
        frontier, count = Key(now_ms + 1, 0), self._index.count_between
        amount = amount_of(self._index, topic, _dues(topic, frontier, count), now_ms)
        topic.backlog = Counted(now_ms, _FRESH_MS, amount)
        return amount

    def _most(self, topic: Topic, now_ms: int) -> BacklogSize:
        """Return an upper bound on a topic's backlog; partly covered blocks count in full."""
        frontier, count = Key(now_ms + 1, 0), self._index.most_between
        ahead = count(topic.id, frontier, KEY_MAX)
        amount = amount_of(self._index, topic, _dues(topic, frontier, count), now_ms, ahead)
        # An exclusive or failover subscription may have acknowledged all messages not yet due.
        return amount._replace(beyond=amount.due)


def rest_ms(began_ms: int, now_ms: int) -> int:
    """Return how long to wait after a count key by key before the next one."""
    return min(_COUNT_SHARE * max(now_ms - began_ms, 0), _MOST_REST_MS)


def neighbours(active: Mapping[int, Topic], topic: Topic) -> list[Topic]:
    """Return the active topics of the topic's namespace, which include the topic itself."""
    return [one for one in active.values() if one.namespace.id == topic.namespace.id]


def amount_of(
    index: DelayedIndex,
    topic: Topic,
    dues: Iterable[tuple[Subscription, int]],
    now_ms: int,
    ahead: int | None = None,
) -> BacklogSize:
    """Return the backlog of a topic.

    Args:
      dues: each subscription with the number of its due messages.
      ahead: the number of messages not yet due; None estimates it from the index.
    """
    if ahead is None:
        ahead = index.count_between(topic.id, Key(now_ms + 1, 0), KEY_MAX)
    due = beyond = 0
    for subscription, count in dues:
        due, beyond = max(due, count), max(beyond, beside(subscription, count, ahead))
    mean_bytes = index.mean_bytes(topic.id)
    return BacklogSize(
        due, beyond, ahead, topic.sizes.mean_bytes if mean_bytes is None else mean_bytes
    )


def beside(subscription: Subscription, due: int, ahead: int) -> int:
    """Return how many of a subscription's due messages ``ahead`` does not count.

    An exclusive or failover subscription ignores due times, so its due messages include those not
    yet due.

    Args:
      due: the number of the subscription's due messages.
      ahead: the number of the topic's messages not yet due.
    """
    return due if isinstance(subscription, SharedSubscription) else max(due - ahead, 0)


_Count = Callable[[int, Key, Key], int]


def _dues(topic: Topic, frontier: Key, count: _Count) -> list[tuple[Subscription, int]]:
    return [(one, _due(topic, one, frontier, count)) for one in topic.consumed()]


def _due(topic: Topic, subscription: Subscription, frontier: Key, count: _Count) -> int:
    """Return how many messages are due for a subscription and not acknowledged by it.

    Args:
      frontier: the first key of the delivery order that is not due yet.
      count: returns the number of a topic's index entries between two keys.
    """
    most = topic.waiting(subscription)
    if not isinstance(subscription, SharedSubscription):
        return most
    waiting = len(subscription.held) - len(subscription.dead)
    unread = subscription.waits_from
    if unread is not None:
        waiting += count(topic.id, unread, frontier)
    return min(waiting, most)
