"""How much waits, and what is done about it where that is too much: backlog quotas.

The backlog of a topic is that of its subscription that is furthest behind: what is due for
it and not acknowledged. What is not yet due counts only where the quota says so (P10). It is
counted from what is known without reading anything, in O(subscriptions + segments):

- of a shared subscription what it holds (ready, in flight, in retry), and beyond its read
  mark what the index has up to now, where what is done already may count too; but never
  more than it has not acknowledged. In the outermost blocks of a segment messages are
  taken to be spread evenly in time;
- of an exclusive or failover one, what it has not acknowledged;
- what is not yet due: what the index has from now on, in the same way.

What is done, was cancelled or given another time may lie in the index for long, so where that
would have somebody refused, it is counted once more, key by key (``weigh``).

Bytes are messages times the mean size of those in the index, or of late if it has none. A
count is used for a second, so what was published meanwhile goes over the quota, and no more.
The sum over a namespace's topics is used for a millisecond longer for each of them.

Who may publish is decided here. Where a quota drops the oldest due, whoever may be over it,
by the most that its blocks can hold, is counted once more and exactly by
:mod:`~escapement.broker.upkeep.shedding`, which knows from here how much to keep, or, of a whole
namespace and where what is not yet due counts, by :mod:`~escapement.broker.upkeep.levelling`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import trio

from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.amount import Amount, Counted, Quota
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import BacklogFull
from escapement.storage.index import KEY_MAX, DelayedIndex, Key

# What is due for each subscription, and what of the topic is not yet; None: it was not counted.
Weighed = tuple[list[tuple[Subscription, int]], int | None]

_FRESH_MS: Final = 1_000
# What takes long to count is not counted for more than a tenth of the time.
_WEIGHED_SHARE: Final = 10


class Backlogs:
    """See the module's docstring.

    Args:
      active: the topics that may have a backlog, by id.
      wake: called with a subscription of which something is to be dropped.
      level: called with a topic of which something may be to be dropped by keys that are not yet
        due; or of all topics of its namespace together.
      count: counts a topic key by key; with True also what is not yet due.
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
        self._totals: dict[int, Counted] = {}  # by namespace
        self._rests_until_ms: dict[int, int] = {}  # by namespace

    def check(self, topic: Topic, now_ms: int) -> None:
        """Whether a topic may be published to.

        Raises:
          BacklogFull: its backlog has reached its quota, or that of its namespace.
        """
        quota, total = topic.quota, topic.total_quota
        if quota.there and (quota.counts_all or not quota.drops):
            self._lately(topic, now_ms).check(quota, topic.name.full)
        if total.there and (total.counts_all or not total.drops):
            amount = self._total_lately(topic, now_ms)
            amount.check(total, f"all topics in {topic.name.namespace_full}")

    async def weigh(self, topic: Topic) -> None:
        """Before ``check``: see that nobody is refused for what the index has and nobody gets."""
        if not self._seems_full(topic):
            return
        async with self._weighing:
            if not self._seems_full(topic):
                return  # somebody else has counted meanwhile
            total = topic.total_quota
            for one in self._beside(topic) if total.there else [topic]:
                if not (one.backlog and one.backlog.by_keys and self._holds(one.backlog)):
                    await self._weigh(one)
            self._totals.pop(topic.namespace.id, None)

    def _seems_full(self, topic: Topic) -> bool:
        """Whether it would be refused, by an estimate."""
        if not (topic.quota.there or topic.total_quota.there):
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
        dues, ahead = await self._count_keys(topic, counts_all)
        now_ms = self._clock.now_ms()
        amount = amount_of(self._index, topic, dues, now_ms, ahead)
        for_ms = _FRESH_MS + _WEIGHED_SHARE * max(now_ms - began_ms, 0)
        topic.backlog = Counted(now_ms, for_ms, amount, by_keys=True)

    def look(self, topic: Topic, now_ms: int) -> None:
        """Something has come, come due or come back: see whether something is to be dropped.

        It is looked at once a second; the topic is woken for that when it has rested.
        """
        watch = topic.quota_watch
        if now_ms < watch.rests_until_ms or not topic.has_grown:
            return
        topic.looked_at()
        watch.rest(now_ms + _FRESH_MS)
        quota, total = topic.quota, topic.total_quota
        if quota.there and quota.drops:
            if quota.counts_all:
                self._look_ahead(topic, now_ms)
            else:
                self._shed(topic, self._count(topic, now_ms).keep_most(quota), now_ms)
        if total.there and total.drops:
            self._look_at_all(topic, total, now_ms)

    def rewind(self) -> None:
        """The wall clock went back: when a namespace was looked at says nothing any more."""
        self._rests_until_ms.clear()

    def _shed(self, topic: Topic, keep_most: int, now_ms: int) -> None:
        frontier, count = Key(now_ms + 1, 0), self._index.most_between
        for subscription in topic.consumed():
            if _due(topic, subscription, frontier, count) > keep_most:
                subscription.keep_most = keep_most
                self._wake(topic, subscription)

    def _look_ahead(self, topic: Topic, now_ms: int) -> None:
        """What it has room for follows from what is not yet due, which is only estimated here."""
        amount = self._most(topic, now_ms)
        if amount.beyond and amount.beyond > amount.keep_most(topic.quota):
            self._level(topic, False)

    def _look_at_all(self, topic: Topic, total: Quota, now_ms: int) -> None:
        namespace_id = topic.namespace.id
        rests_until_ms = self._rests_until_ms.get(namespace_id, 0)
        if now_ms < rests_until_ms:
            topic.quota_watch.grown = True
            topic.quota_watch.rest(rests_until_ms)
            return
        topics = self._beside(topic)
        self._rests_until_ms[namespace_id] = now_ms + _FRESH_MS + len(topics)
        if total.counts_all:
            found = Amount.of_all([self._most(one, now_ms) for one in topics], total)
            over = found.beyond and found.beyond > found.keep_most(total)
        else:
            frontier, count = Key(now_ms + 1, 0), self._index.most_between
            most = sum(_most_due(one, frontier, count) for one in topics)
            amounts = [self._lately(one, now_ms) for one in topics]
            over = most > Amount.of_all(amounts, total).keep_most(total)
        if over:
            self._level(topic, True)

    def _beside(self, topic: Topic) -> list[Topic]:
        """All topics of its namespace."""
        return [one for one in self._active.values() if one.namespace.id == topic.namespace.id]

    # -- counting --------------------------------------------------------------

    def _holds(self, counted: Counted) -> bool:
        return counted.holds(self._clock.now_ms())

    def _total_lately(self, topic: Topic, now_ms: int) -> Amount:
        counted = self._totals.get(topic.namespace.id)
        if counted is not None and counted.holds(now_ms):
            return counted.amount
        topics = self._beside(topic)
        amount = Amount.of_all([self._lately(one, now_ms) for one in topics], topic.total_quota)
        by_keys = all(one.backlog is not None and one.backlog.by_keys for one in topics)
        for_ms = _FRESH_MS + len(topics)
        self._totals[topic.namespace.id] = Counted(now_ms, for_ms, amount, by_keys)
        return amount

    def _lately(self, topic: Topic, now_ms: int) -> Amount:
        if topic.backlog is not None and topic.backlog.holds(now_ms):
            return topic.backlog.amount
        return self._count(topic, now_ms)

    def _count(self, topic: Topic, now_ms: int) -> Amount:
        frontier, count = Key(now_ms + 1, 0), self._index.count_between
        amount = amount_of(self._index, topic, _dues(topic, frontier, count), now_ms)
        topic.backlog = Counted(now_ms, _FRESH_MS, amount)
        return amount

    def _most(self, topic: Topic, now_ms: int) -> Amount:
        """No less than what waits, by all keys in its blocks."""
        frontier, count = Key(now_ms + 1, 0), self._index.most_between
        ahead = count(topic.id, frontier, KEY_MAX)
        amount = amount_of(self._index, topic, _dues(topic, frontier, count), now_ms, ahead)
        # To who reads the log none of what lies ahead in the index need be left.
        return amount._replace(beyond=amount.due)


def amount_of(
    index: DelayedIndex,
    topic: Topic,
    dues: Iterable[tuple[Subscription, int]],
    now_ms: int,
    ahead: int | None = None,
) -> Amount:
    """What waits in a topic, of which ``dues`` are due, for each subscription.

    Args:
      ahead: what is not yet due; None: as the index has it, by estimate.
    """
    if ahead is None:
        ahead = index.count_between(topic.id, Key(now_ms + 1, 0), KEY_MAX)
    due = beyond = 0
    for subscription, count in dues:
        due, beyond = max(due, count), max(beyond, beside(subscription, count, ahead))
    mean_bytes = index.mean_bytes(topic.id)
    return Amount(due, beyond, ahead, topic.sizes.mean_bytes if mean_bytes is None else mean_bytes)


def beside(subscription: Subscription, due: int, ahead: int) -> int:
    """What of ``due`` is not among what is not yet due: who reads the log looks at no times."""
    return due if isinstance(subscription, SharedSubscription) else max(due - ahead, 0)


_Count = Callable[[int, Key, Key], int]


def _most_due(topic: Topic, frontier: Key, count: _Count) -> int:
    """What is due for the subscription that is furthest behind; as ``_due``."""
    return max((_due(topic, one, frontier, count) for one in topic.consumed()), default=0)


def _dues(topic: Topic, frontier: Key, count: _Count) -> list[tuple[Subscription, int]]:
    return [(one, _due(topic, one, frontier, count)) for one in topic.consumed()]


def _due(topic: Topic, subscription: Subscription, frontier: Key, count: _Count) -> int:
    """What is due for a subscription; ``count`` counts what lies in a range of the index."""
    most = topic.waiting(subscription)
    if not isinstance(subscription, SharedSubscription):
        return most
    waiting = len(subscription.held) - len(subscription.dead)
    unread = subscription.waits_from
    if unread is not None:
        waiting += count(topic.id, unread, frontier)
    return min(waiting, most)
