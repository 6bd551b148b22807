"""The producers of all topics, by name.

An active topic, which has a runtime (:class:`~escapement.broker.topic.topic.Topic`), has its
producers in ``Topic.producers``. The registry has the producers of passive topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain

from escapement.broker.registry.changes import Changes
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.names import is_anonymous
from escapement.storage.catalog import producers
from escapement.storage.catalog.producers import ProducerRecord


class ProducerRegistry:
    """The producers of all topics.

    Args:
      check_there: raises ``NotFound`` if a topic was deleted.
      new_ids: the ids for new producers.
    """

    def __init__(
        self,
        clock: Clock,
        changes: Changes,
        check_there: Callable[[Topic], None],
        new_ids: Iterator[int],
    ) -> None:
        self._clock = clock
        self._changes = changes
        self._check_there = check_there
        self._new_ids = new_ids
        # The producers of passive topics, by topic id and producer name.
        self._waiting: dict[int, dict[str, Producer]] = {}
        self._opening: set[Producer] = set()  # those that ``open`` is about to return

    def load(self, records: Iterable[ProducerRecord]) -> None:
        """Add the producers that the database has, when the broker starts."""
        for record in records:
            self._waiting.setdefault(record.topic_id, {})[record.name] = Producer.of(record)

    def enter(self, topic: Topic) -> None:
        """Move the producers of a topic that becomes active into its runtime."""
        topic.producers.update(self._waiting.pop(topic.id, {}))

    def leave(self, topic_id: int, producers: dict[str, Producer]) -> None:
        """Keep the producers of a topic that became passive."""
        if producers:
            self._waiting[topic_id] = producers

    async def open(
        self, topic: Topic, name: str, epoch: int, settled: Callable[[Producer], Awaitable[None]]
    ) -> tuple[Producer, int]:
        """Return the producer of a name, and the epoch under which the caller holds the name.

        A producer that does not exist is created. Its *epoch* grows each time a connection takes
        its name over. A connection that reconnects gives the epoch that it had, and keeps it.

        Both are durable on return, with one exception: a new producer whose name was generated is
        stored with its first batch. No other connection opens this name and must be told apart.

        Args:
          epoch: the epoch that a reconnecting holder of the name had; -1 to take the name over.
          settled: waits until no batch of the producer is in the commit pipeline.

        Raises:
          ProducerFenced: if another connection has taken the name over since ``epoch``.
          NotFound: if the topic was deleted.
        """
        async with self._changes.alone(f"{topic.name.full}\nproducer\n{name}"):
            producer = topic.producers.get(name)
            if producer is None:
                return await self._create(topic, name, epoch)
            self._opening.add(producer)
            try:
                return await self._open(topic, producer, epoch, settled)
            finally:
                self._opening.discard(producer)

    async def _create(self, topic: Topic, name: str, epoch: int) -> tuple[Producer, int]:
        """Open a producer that is not in memory; see ``open``."""
        self._check_there(topic)
        if epoch < 0 and is_anonymous(name):
            producer = topic.producers[name] = Producer.new(next(self._new_ids), name)
            return producer, producer.epoch
        record = await self._store(topic, name)
        producer = topic.producers[name] = Producer.of(record)
        return producer, record.epoch

    async def _open(
        self,
        topic: Topic,
        producer: Producer,
        epoch: int,
        settled: Callable[[Producer], Awaitable[None]],
    ) -> tuple[Producer, int]:
        """Open a producer that is in memory; see ``open``."""
        if epoch >= 0:
            if epoch != producer.epoch:
                raise producer.fenced_error()
            await settled(producer)
            return producer, epoch
        self._check_there(topic)
        if not producer.stored:
            await settled(producer)  # its first batch may store it
            if not producer.stored:
                return producer, producer.epoch + 1
        record = await self._store(topic, producer.name)
        await settled(producer)
        return producer, record.epoch

    async def _store(self, topic: Topic, name: str) -> ProducerRecord:
        """Store a producer of this name with the next epoch, or with the first one."""
        now_ms, new_id = self._clock.now_ms(), next(self._new_ids)
        record = await self._changes.durably(
            lambda connection: producers.open_producer(connection, new_id, topic.id, name, now_ms),
            topic_id=topic.id,
        )
        self._check_there(topic)  # it may have been deleted meanwhile
        return record

    def release(self, topic: Topic, producer: Producer) -> None:
        """Note that a producer has no holder. It is forgotten if it has stored nothing."""
        if producer.is_unused and topic.producers.get(producer.name) is producer:
            del topic.producers[producer.name]

    def forget(self, idle: dict[int, int], active: Iterable[Topic]) -> list[int]:
        """Remove idle producers that are not in use; return the ids of those removed.

        A producer is in use while a connection holds or opens its name, or a batch of it waits for
        commit. It also stays if it has published since its row was written, because the row has the
        time of its last use before that. Unused producers that are not stored are removed too.

        Args:
          idle: by the ids of producers, the last sequences in their rows.
        """
        forgotten = []
        for by_name in chain((topic.producers for topic in active), self._waiting.values()):
            for producer in list(by_name.values()):
                if producer in self._opening:
                    continue
                if producer.is_unused:
                    del by_name[producer.name]
                elif (
                    idle.get(producer.id) == producer.last_sequence
                    and producer.holder is None
                    and not producer.pending
                ):
                    del by_name[producer.name]
                    forgotten.append(producer.id)
        return forgotten
