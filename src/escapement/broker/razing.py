"""Deletes topics, and namespaces with everything that is in them.

A topic goes in one transaction, and its rows are freed behind it. A namespace is *condemned*
first, durably: from then on nothing new comes into being in it. Then its schedules go, those
that publish into it from elsewhere among them, its topics, one transaction each, and in the
end itself. A broker that dies half-way goes on with its next start; so does one that cannot
reach the database for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from escapement.broker.delivery.consuming import Consuming
from escapement.broker.delivery.timekeeper import Timekeeper
from escapement.broker.letters.scheduler import Scheduler
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.handle import ProducerHandle
from escapement.errors import Conflict, EscapementError, NotFound
from escapement.names import NamespaceName, TopicName
from escapement.storage.catalog import TopicRecord
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.index import DelayedIndex

_log = logging.getLogger(__name__)

# Before another try, when the database is away or something came in between.
_RETRY_S: Final = 1.0


class Contents(NamedTuple):
    """What goes with a namespace."""

    topics: int
    subscriptions: int
    schedules: int
    consumers: int
    index_entries: int


class Razing:
    """See the module's docstring.

    Args:
      condemned: namespaces of which a broker before us had begun to delete.
    """

    def __init__(
        self,
        registry: Registry,
        scheduler: Scheduler,
        consuming: Consuming,
        pipeline: CommitPipeline,
        timekeeper: Timekeeper,
        index: DelayedIndex,
        condemned: Iterable[int],
    ) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._consuming = consuming
        self._pipeline = pipeline
        self._timekeeper = timekeeper
        self._index = index
        self._waiting = {id: trio.Event() for id in condemned}
        self._work = trio.Event()

    async def topic(self, name: TopicName) -> None:
        """Delete a topic and all that belongs to it. Raises ``NotFound``."""
        topic = self._registry.topic(name)
        await self._registry.delete_topic(topic)
        gone = NotFound(f"the topic {name.full} was deleted")
        self._pipeline.close_topic(topic.id)
        for producer in topic.producers.values():
            holder, producer.holder = producer.holder, None
            if isinstance(holder, ProducerHandle):
                holder.fenced(gone)
        for subscription in list(topic.subscriptions()):
            self._consuming.dismiss(topic, subscription, gone)
        self._timekeeper.schedule(topic.id, None)
        self._index.drop_topic(topic.id)

    def contents(self, name: NamespaceName) -> Contents:
        """What ``namespace`` would delete now. Raises ``NotFound``."""
        self._registry.namespaces.find(name)
        ids = [record.id for _, record in self._topics(name)]
        there = set(ids)
        found = [one for one in self._registry.all_subscriptions() if one.topic_id in there]
        active = [self._registry.active[id] for id in ids if id in self._registry.active]
        return Contents(
            topics=len(ids),
            subscriptions=len(found),
            schedules=len(self._scheduler.of_namespace(name)),
            consumers=sum(len(one.consumers) for topic in active for one in topic.subscriptions()),
            index_entries=sum(self._index.count(id) for id in ids),
        )

    async def namespace(self, name: NamespaceName) -> None:
        """Delete a namespace and everything in it.

        Once it is condemned, who is cancelled does not keep it.

        Raises:
          NotFound: if there is no such namespace.
          StorageUnavailable: nothing has happened.
        """
        id = await self._registry.namespaces.condemn(name)
        over = self._waiting.setdefault(id, trio.Event())
        self._work.set()
        await over.wait()

    async def run(self) -> None:
        """Delete what is condemned, for ever."""
        while True:
            if not self._waiting:
                self._work = trio.Event()
                await self._work.wait()
            for id in list(self._waiting):
                try:
                    await self._raze(id)
                except (Conflict, NotFound):
                    # Something has come into being meanwhile, or somebody else was faster.
                    await trio.sleep(_RETRY_S)
                except EscapementError as error:
                    if not error.retryable:
                        raise
                    _log.warning("deleting a namespace waits: %s", error)
                    await trio.sleep(_RETRY_S)
                else:
                    self._waiting.pop(id).set()

    async def _raze(self, id: int) -> None:
        if id not in self._registry.namespaces.condemned:
            return
        name = NamespaceName.parse(self._registry.namespaces.full_name(id))
        for schedule in self._scheduler.of_namespace(name):
            await self._scheduler.delete(TopicName.parse(schedule.name))
        for full, _ in self._topics(name):
            with suppress(NotFound):  # somebody else was faster
                await self.topic(TopicName.parse(full))
        await self._registry.namespaces.delete(name)

    def _topics(self, name: NamespaceName) -> list[tuple[str, TopicRecord]]:
        id = self._registry.namespaces.find(name).id
        records = self._registry.topics.items()
        return [(full, record) for full, record in records if record.namespace_id == id]
