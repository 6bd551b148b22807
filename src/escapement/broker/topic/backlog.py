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

Bytes are messages times the mean size of those in the index, or of late if it has none. A
count is used for a second, so what was published meanwhile goes over the quota, and no more.
The sum over a namespace's topics is used for a millisecond longer for each of them.

Who may publish is decided here. Where a quota drops the oldest due, whoever may be over it,
by the most that its blocks can hold, is counted once more and exactly by
:mod:`~escapement.broker.upkeep.shedding`, which knows from here how much to keep, or, of a whole
namespace, by :mod:`~escapement.broker.upkeep.levelling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.amount import Amount, Quota
from escapement.broker.topic.topic import Topic
from escapement.storage.index import KEY_MAX, DelayedIndex, Key

_FRESH_MS: Final = 1_000


class Backlogs:
    """See the module's docstring.

    Args:
      active: the topics that may have a backlog, by id.
      wake: called with a subscription of which something is to be dropped.
      level: called with the id of a namespace of whose topics something may be to be dropped.
    """

    def __init__(
        self,
        index: DelayedIndex,
        active: Mapping[int, Topic],
        wake: Callable[[Topic, Subscription], None],
        level: Callable[[int], None],
    ) -> None:
        self._index = index
        self._active = active
        self._wake = wake
        self._level = level
        self._totals: dict[int, tuple[int, int, Amount]] = {}  # when, for how long, by namespace
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
            amount = self._total_lately(topic.namespace.id, total, now_ms)
            amount.check(total, f"all topics in {topic.name.namespace_full}")

    def look(self, topic: Topic, now_ms: int) -> None:
        """Something has come, come due or come back: see whether something is to be dropped.

        It is looked at once a second; the topic is woken for that when it has rested.
        """
        if now_ms < topic.rests_until_ms or not topic.has_grown:
            return
        topic.looked_at()
        topic.rests_until_ms = now_ms + _FRESH_MS
        quota, total = topic.quota, topic.total_quota
        if quota.there and quota.drops:
            self._shed(topic, self._count(topic, now_ms).keep_most(quota), now_ms)
        if total.there and total.drops:
            self._look_at_all(topic, total, now_ms)

    def _shed(self, topic: Topic, keep_most: int, now_ms: int) -> None:
        frontier, count = Key(now_ms + 1, 0), self._index.most_between
        for subscription in topic.consumed():
            if _due(topic, subscription, frontier, count) > keep_most:
                subscription.keep_most = keep_most
                self._wake(topic, subscription)

    def _look_at_all(self, topic: Topic, total: Quota, now_ms: int) -> None:
        namespace_id = topic.namespace.id
        rests_until_ms = self._rests_until_ms.get(namespace_id, 0)
        if now_ms < rests_until_ms:
            topic.grown = True
            topic.rests_until_ms = rests_until_ms
            return
        frontier, count = Key(now_ms + 1, 0), self._index.most_between
        topics = [one for one in self._active.values() if one.namespace.id == namespace_id]
        self._rests_until_ms[namespace_id] = now_ms + _FRESH_MS + len(topics)
        most = sum(_most_due(one, frontier, count) for one in topics)
        amounts = [self._lately(one, now_ms) for one in topics]
        if most > Amount.of_all(amounts, total).keep_most(total):
            self._level(namespace_id)

    # -- counting --------------------------------------------------------------

    def _total_lately(self, namespace_id: int, total: Quota, now_ms: int) -> Amount:
        counted = self._totals.get(namespace_id)
        if counted is not None and 0 <= now_ms - counted[0] < counted[1]:
            return counted[2]
        topics = [one for one in self._active.values() if one.namespace.id == namespace_id]
        amount = Amount.of_all([self._lately(one, now_ms) for one in topics], total)
        self._totals[namespace_id] = (now_ms, _FRESH_MS + len(topics), amount)
        return amount

    def _lately(self, topic: Topic, now_ms: int) -> Amount:
        counted = topic.backlog
        # Counted anew where the clock was set back.
        if counted is not None and 0 <= now_ms - counted[0] < _FRESH_MS:
            return counted[1]
        return self._count(topic, now_ms)

    def _count(self, topic: Topic, now_ms: int) -> Amount:
        frontier, count = Key(now_ms + 1, 0), self._index.count_between
        found = amount_of(self._index, topic, _most_due(topic, frontier, count), now_ms)
        topic.backlog = (now_ms, found)
        return found


def amount_of(index: DelayedIndex, topic: Topic, due: int, now_ms: int) -> Amount:
    """What waits in a topic, of which ``due`` messages are due."""
    mean_bytes = index.mean_bytes(topic.id)
    return Amount(
        due,
        index.count_between(topic.id, Key(now_ms + 1, 0), KEY_MAX),
        topic.sizes.mean_bytes if mean_bytes is None else mean_bytes,
    )


_Count = Callable[[int, Key, Key], int]


def _most_due(topic: Topic, frontier: Key, count: _Count) -> int:
    """What is due for the subscription that is furthest behind; as ``_due``."""
    return max((_due(topic, one, frontier, count) for one in topic.consumed()), default=0)


def _due(topic: Topic, subscription: Subscription, frontier: Key, count: _Count) -> int:
    """What is due for a subscription; ``count`` counts what lies in a range of the index."""
    if not isinstance(subscription, SharedSubscription):
        return topic.behind_in_log(subscription)
    most = topic.unacknowledged(subscription) - len(subscription.dead)
    waiting = len(subscription.held) - len(subscription.dead)
    unread = subscription.waits_from
    if unread is not None:
        waiting += count(topic.id, unread, frontier)
    return min(waiting, most)
