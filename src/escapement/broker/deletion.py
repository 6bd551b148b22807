"""The deletion of topics, and of namespaces with everything in them.

A topic is deleted in one transaction, and its rows are freed in the background. A namespace is
first marked durably as being deleted, and from then on no broker creates topics in it. Then the
broker deletes its schedules, the schedules of other namespaces that publish into it, its topics
(one transaction each), and finally the namespace itself. After a crash the next start continues the
deletion. While the database is unavailable, the broker retries.

If the database has several bundles of topics, the owner of bundle 0 marks the namespace. Every
owner finds the mark when it starts, or when it reads the namespaces again (``refresh``), and
deletes the topics and schedules of its own bundle. It looks once more every second until the
namespace is gone, because a request may have created a schedule meanwhile. The owner of bundle 0
deletes the namespace in a transaction that finds neither topics nor schedules of any bundle.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from escapement.broker.delivery.consuming import Consuming
from escapement.broker.delivery.timekeeper import Timekeeper
from escapement.broker.inbox.scheduler import Scheduler
from escapement.broker.outage import Outage
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.handles import ProducerHandle
from escapement.errors import Conflict, NotFound
from escapement.names import NamespaceName, TopicName
from escapement.storage.catalog.catalog import TopicRecord
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.index import DelayedIndex

# The pause before a retry, when the database is unavailable or another request interfered.
_RETRY_S: Final = 1.0


class Contents(NamedTuple):
    """The numbers of objects of a bundle that the deletion of a namespace deletes, by kind."""

    topics: int
    subscriptions: int
    schedules: int
    consumers: int
    index_entries: int


class Deletion:
    """The deletion of topics and namespaces.

    Args:
      deleting_namespaces: the ids of namespaces whose deletion an earlier broker began.
    """

    def __init__(
        self,
        registry: Registry,
        scheduler: Scheduler,
        consuming: Consuming,
        pipeline: CommitPipeline,
        timekeeper: Timekeeper,
        index: DelayedIndex,
        deleting_namespaces: Iterable[int],
    ) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._consuming = consuming
        self._pipeline = pipeline
        self._timekeeper = timekeeper
        self._index = index
        self._waiting = {id: trio.Event() for id in deleting_namespaces}
        self._idle = trio.lowlevel.ParkingLot()

    async def topic(self, name: TopicName) -> None:
        """Delete a topic and everything that belongs to it. Raises ``NotFound``."""
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
        """Count what the deletion of this namespace would delete now. Raises ``NotFound``."""
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
        """Delete a namespace and everything in it; return when it is gone.

        Cancelling this call does not stop the deletion once the namespace is marked.

        Raises:
          NotFound: if the namespace does not exist.
          StorageUnavailable: if the database cannot be reached; nothing has changed.
        """
        id = await self._registry.namespaces.mark_for_deletion(name)
        over = self._waiting.setdefault(id, trio.Event())
        self._idle.unpark()
        await over.wait()

    def refresh(self) -> None:
        """Begin to delete the namespaces that the owner of bundle 0 has marked meanwhile."""
        for id in self._registry.namespaces.deleting:
            self._waiting.setdefault(id, trio.Event())
        self._idle.unpark()

    async def run(self) -> None:
        """Delete the namespaces that are marked for deletion, forever."""
        outage = Outage("namespace.deletion_waiting", "cannot delete a namespace now, trying again")
        while True:
            while not self._waiting:
                await self._idle.park()
            for id in list(self._waiting):
                # Conflict: the namespace is not empty, because another request created something
                # before it was marked, or other bundles have topics in it. NotFound: another
                # request deleted something first.
                with outage, suppress(Conflict, NotFound):
                    if await self._delete_namespace(id):
                        self._waiting.pop(id).set()
            if self._waiting:
                with trio.move_on_after(_RETRY_S):
                    await self._idle.park()

    async def _delete_namespace(self, id: int) -> bool:
        """Delete what a marked namespace has in this bundle: first schedules, then topics.

        The owner of bundle 0 then deletes the namespace itself. Return whether it is gone.
        """
        if id not in self._registry.namespaces.deleting:
            return True
        name = NamespaceName.parse(self._registry.namespaces.full_name(id))
        for schedule in self._scheduler.of_namespace(name):
            await self._scheduler.delete(TopicName.parse(schedule.name))
        for full, _ in self._topics(name):
            with suppress(NotFound):  # another request deleted it first
                await self.topic(TopicName.parse(full))
        if self._registry.bundle.id:
            return False
        await self._registry.namespaces.delete(name)
        return True

    def _topics(self, name: NamespaceName) -> list[tuple[str, TopicRecord]]:
        id = self._registry.namespaces.find(name).id
        records = self._registry.topics.items()
        return [(full, record) for full, record in records if record.namespace_id == id]
