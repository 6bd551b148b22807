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

Who may publish is decided here. Where a quota drops the oldest due, whoever may be over it,
by the most that its blocks can hold, is counted once more and exactly by
:mod:`~escapement.broker.shedding`, which knows from here how much to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from escapement.broker.amount import Amount
from escapement.broker.shared import SharedSubscription
from escapement.broker.subscription import Subscription
from escapement.broker.topic import Topic
from escapement.storage.index import KEY_MAX, DelayedIndex, Key

_FRESH_MS: Final = 1_000


class Backlogs:
    """See the module's docstring.

    Args:
      active: the topics that may have a backlog, by id.
      wake: called with a subscription of which something is to be dropped.
    """

    def __init__(
        self,
        index: DelayedIndex,
        active: Mapping[int, Topic],
        wake: Callable[[Topic, Subscription], None],
    ) -> None:
        self._index = index
        self._active = active
        self._wake = wake

    def check(self, topic: Topic, now_ms: int) -> None:
        """Whether a topic may be published to.

        Raises:
          BacklogFull: its backlog has reached its quota.
        """
        quota = topic.quota
        if quota.there and (quota.counts_all or not quota.drops):
            self._lately(topic, now_ms).check(quota, topic.name.full)

    def look(self, topic: Topic, now_ms: int) -> None:
        """Something has come, or come due: see whether something is to be dropped.

        It is looked at once a second; the topic is woken for that when it has rested.
        """
        if not topic.grown or now_ms < topic.rests_until_ms:
            return
        topic.grown = False
        quota = topic.quota
        if not quota.there or not quota.drops:
            return
        topic.rests_until_ms = now_ms + _FRESH_MS
        self._shed(topic, self._count(topic, now_ms).keep_most(quota), now_ms)

    def _shed(self, topic: Topic, keep_most: int, now_ms: int) -> None:
        frontier, count = Key(now_ms + 1, 0), self._index.most_between
        for subscription in topic.subscriptions():
            if _due(topic, subscription, frontier, count) > keep_most:
                subscription.keep_most = keep_most
                self._wake(topic, subscription)

    # -- counting --------------------------------------------------------------

    def _lately(self, topic: Topic, now_ms: int) -> Amount:
        counted = topic.backlog
        # Counted anew where the clock was set back.
        if counted is not None and 0 <= now_ms - counted[0] < _FRESH_MS:
            return counted[1]
        return self._count(topic, now_ms)

    def _count(self, topic: Topic, now_ms: int) -> Amount:
        frontier = Key(now_ms + 1, 0)
        count = self._index.count_between
        due = max((_due(topic, one, frontier, count) for one in topic.subscriptions()), default=0)
        ahead = count(topic.id, frontier, KEY_MAX)
        mean_bytes = self._index.mean_bytes(topic.id)
        found = Amount(due, ahead, topic.sizes.mean_bytes if mean_bytes is None else mean_bytes)
        topic.backlog = (now_ms, found)
        return found


def _due(
    topic: Topic,
    subscription: Subscription,
    frontier: Key,
    count: Callable[[int, Key, Key], int],
) -> int:
    """What is due for a subscription; ``count`` counts what lies in a range of the index."""
    most = topic.unacknowledged(subscription) - subscription.dying
    if not isinstance(subscription, SharedSubscription):
        return max(most - subscription.record.start_offset, 0)
    waiting = len(subscription.held) - subscription.dying
    unread = subscription.waits_from
    if unread is not None:
        waiting += count(topic.id, unread, frontier)
    return min(waiting, most)
