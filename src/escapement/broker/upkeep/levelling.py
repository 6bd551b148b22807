"""Shares out what may stay of a namespace among its topics, where their sum is over its quota.

One task, for namespaces whose quota drops the oldest due. It counts exactly what waits in
each topic, for the subscription that is furthest behind, and whoever has the most gives
first: all topics that give come to one level. What they let go is then let go by
:mod:`~escapement.broker.upkeep.shedding`, the oldest of each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

import trio

from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.amount import Amount, levels
from escapement.broker.topic.backlog import amount_of
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.shedding import Shedding
from escapement.clock import Clock
from escapement.storage.index import DelayedIndex


class Levelling:
    """See the module's docstring.

    Args:
      active: the topics that may have a backlog, by id.
      wake: called with a subscription of which something is to be dropped.
    """

    def __init__(
        self,
        index: DelayedIndex,
        active: Mapping[int, Topic],
        shedding: Shedding,
        clock: Clock,
        wake: Callable[[Topic, Subscription], None],
    ) -> None:
        self._index = index
        self._active = active
        self._shedding = shedding
        self._clock = clock
        self._wake = wake
        self._wanted: OrderedDict[int, None] = OrderedDict()  # ids of namespaces
        self._work = trio.Event()

    def want(self, namespace_id: int) -> None:
        """The topics of a namespace may be over its quota."""
        self._wanted[namespace_id] = None
        self._work.set()

    async def run(self) -> None:
        """Work for ever."""
        while True:
            if not self._wanted:
                self._work = trio.Event()
                await self._work.wait()
            namespace_id, _ = self._wanted.popitem(last=False)
            await self._level(namespace_id)

    async def _level(self, namespace_id: int) -> None:
        topics = [one for one in self._active.values() if one.namespace.id == namespace_id]
        if not topics:
            return
        amounts: list[Amount] = []
        counted: list[list[tuple[Subscription, int]]] = []
        for topic in topics:
            counts = []
            for subscription in list(topic.consumed()):
                counts.append((subscription, await self._shedding.count(topic, subscription)))
                await trio.lowlevel.checkpoint()
            due = max((count for _, count in counts), default=0)
            amounts.append(amount_of(self._index, topic, due, self._clock.now_ms()))
            counted.append(counts)
        quota = topics[0].total_quota
        keep_most = Amount.of_all(amounts, quota).keep_most(quota) if quota.drops else None
        if keep_most is None or not quota.there:
            return  # it was changed meanwhile
        stays = levels([amount.due for amount in amounts], keep_most)
        for topic, counts, stay in zip(topics, counted, stays, strict=True):
            for subscription, count in counts:
                if count > stay:
                    own = subscription.keep_most
                    subscription.keep_most = stay if own is None else min(stay, own)
                    self._wake(topic, subscription)
