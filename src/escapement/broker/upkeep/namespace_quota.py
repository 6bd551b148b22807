"""Enforces the drop-oldest quotas of namespaces, and those that count messages not yet due.

The *backlog* of a topic is the number of due messages that the subscription furthest behind has not
acknowledged. A quota bounds it. If the quota's action is *drop oldest*, the broker drops the oldest
messages beyond it. Most quotas are checked for each subscription alone (broker/topic/backlogs.py).
One task checks the others here:

- The quota of a namespace bounds the backlogs of all its topics together. The task counts exactly
  the backlog of each topic. The largest backlogs shrink first, down to a common level.
- A quota may count messages not yet due, too. The task counts them exactly, key by key. An estimate
  from the index may be much too high, and messages would be dropped for which there is room.

:mod:`~escapement.broker.upkeep.drop_oldest` then drops the oldest messages of each subscription.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

import trio

from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.backlog_size import BacklogSize, Quota, levels
from escapement.broker.topic.backlogs import beside, neighbours, rest_ms
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.drop_oldest import DropOldest
from escapement.clock import Clock
from escapement.storage.index import DelayedIndex, Key


class NamespaceQuotas:
    """The task that enforces namespace quotas, and quotas that count messages not yet due.

    Args:
      active: the active topics, by id; only these may have a backlog.
      wake: called with a subscription that must drop messages.
      reschedule: called after a topic's timers may have changed.
    """

    def __init__(
        self,
        index: DelayedIndex,
        active: Mapping[int, Topic],
        drop_oldest: DropOldest,
        clock: Clock,
        wake: Callable[[Topic, Subscription], None],
        reschedule: Callable[[Topic], None],
    ) -> None:
        self._index = index
        self._active = active
        self._drop_oldest = drop_oldest
        self._clock = clock
        self._wake = wake
        self._reschedule = reschedule
        self._wanted: OrderedDict[tuple[Topic, bool], None] = OrderedDict()
        self._idle = trio.lowlevel.ParkingLot()

    def want(self, topic: Topic, whole: bool) -> None:
        """Queue the check of a quota that may be exceeded.

        Args:
          whole: whether to check the quota of the topic's whole namespace, or of the topic alone.
        """
        self._wanted[topic, whole] = None
        self._idle.unpark()

    async def run(self) -> None:
        """Check the queued quotas forever."""
        while True:
            while not self._wanted:
                await self._idle.park()
            (topic, whole), _ = self._wanted.popitem(last=False)
            await self._level(topic, whole)

    async def _level(self, wanted: Topic, whole: bool) -> None:
        together = neighbours(self._active, wanted)
        topics = together if whole else [one for one in together if one is wanted]
        began_ms = self._clock.now_ms()
        settled = {one: one.settled for topic in topics for one in topic.consumed()}
        counted = [
            await self._drop_oldest.weigh(one, _quota(one, whole).counts_all) for one in topics
        ]
        quota = _quota(wanted, whole)
        if not (topics and quota.there and quota.drops):
            return  # the quota changed meanwhile
        amounts = [amount for amount, _ in counted]
        keep_most = BacklogSize.of_all(amounts, quota).keep_most(quota)
        stays = levels([amount.beside(quota) for amount in amounts], keep_most)
        for topic, (amount, counts), stay in zip(topics, counted, stays, strict=True):
            ahead = amount.ahead if quota.counts_all else 0
            for subscription, count in counts:
                more = beside(subscription, count, ahead) - stay
                if more > 0:
                    own = subscription.keep_most
                    most = count - more
                    subscription.keep_most = most if own is None else min(most, own)
                    if quota.counts_all and subscription in settled:
                        subscription.settled_most = settled[subscription] + more
                    self._wake(topic, subscription)
        if quota.counts_all:
            until_ms = began_ms + rest_ms(began_ms, self._clock.now_ms())
            for topic in topics:
                topic.quota_watch.rest(until_ms)
                if not keep_most:
                    self._await_due(topic)

    def _await_due(self, topic: Topic) -> None:
        """Have a topic without shared subscriptions checked again when its next message falls due.

        Called while the messages not yet due fill the quota alone. An exclusive or failover
        subscription then keeps as many messages as are not yet due: one less with each that falls
        due. A shared subscription needs no timer, because each message that falls due is offered to
        it.
        """
        if topic.ordered and not topic.shared:
            after = Key(self._clock.now_ms() + 1, 0)
            topic.quota_watch.comes_due_ms = self._index.next_due(topic.id, after)
            self._reschedule(topic)


def _quota(topic: Topic, whole: bool) -> Quota:
    return topic.total_quota if whole else topic.quota
