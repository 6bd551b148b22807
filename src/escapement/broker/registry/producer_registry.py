"""The producers of all topics, by name.

The producers of a passive topic are records. When the topic becomes active, they become its
``producers``, whose sequence advances.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from escapement.broker.registry.changes import Changes
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.storage.catalog import producers
from escapement.storage.catalog.producers import ProducerRecord


class ProducerRegistry:
    """The producers of all topics.

    Args:
      check_there: raises ``NotFound`` if a topic was deleted.
    """

    def __init__(
        self, clock: Clock, changes: Changes, check_there: Callable[[Topic], None]
    ) -> None:
        self._clock = clock
        self._changes = changes
        self._check_there = check_there
        self._waiting: dict[int, dict[str, ProducerRecord]] = {}  # by topic id and name

    def load(self, records: Iterable[ProducerRecord]) -> None:
        """Enter the stored producers, at the start."""
        for record in records:
            self._waiting.setdefault(record.topic_id, {})[record.name] = record

    def enter(self, topic: Topic) -> None:
        """Give a topic that becomes active its producers."""
        for known in self._waiting.pop(topic.id, {}).values():
            topic.producers[known.name] = Producer(
                known.id, known.name, known.epoch, known.last_sequence, known.last_offset
            )

    def leave(self, topic_id: int, producers: Iterable[Producer]) -> None:
        """Keep the producers of a topic that became passive, as records."""
        now_ms = self._clock.now_ms()
        records = [
            ProducerRecord(
                one.id, topic_id, one.name, one.epoch, one.last_sequence, one.last_offset, now_ms
            )
            for one in producers
        ]
        if records:
            self._waiting[topic_id] = {record.name: record for record in records}

    def drop_topic(self, topic_id: int) -> None:
        """Forget the producers of a deleted topic."""
        self._waiting.pop(topic_id, None)

    async def open(
        self, topic: Topic, name: str, epoch: int, settled: Callable[[Producer], Awaitable[None]]
    ) -> tuple[Producer, int]:
        """Return the producer of a name, and the epoch under which it is held from now on.

        Args:
          epoch: -1 to take the name over, or the epoch under which it was held.
          settled: waits until no batch of the producer is in progress.

        Raises:
          ProducerFenced: if the name has a newer epoch than the one given.
          NotFound: if the topic was deleted.
        """
        async with self._changes.alone(f"{topic.name.full}\nproducer\n{name}"):
            producer = topic.producers.get(name)
            if producer is not None and epoch >= 0:
                if epoch != producer.epoch:
                    raise producer.fenced_error()
                await settled(producer)
                return producer, epoch
            self._check_there(topic)
            now_ms = self._clock.now_ms()
            record = await self._changes.durably(
                lambda connection: producers.open_producer(connection, topic.id, name, now_ms),
                topic_id=topic.id,
            )
            self._check_there(topic)  # it may have been deleted meanwhile
            if producer is None:
                producer = Producer(
                    record.id, name, record.epoch, record.last_sequence, record.last_offset
                )
                topic.producers[name] = producer
            await settled(producer)
            return producer, record.epoch

    def forget(self, ids: set[int], active: Iterable[Topic]) -> list[int]:
        """Forget those of these producers that no connection holds. Return their ids."""
        forgotten = []
        for topic in active:
            for producer in list(topic.producers.values()):
                if producer.id in ids and producer.holder is None and not producer.pending:
                    del topic.producers[producer.name]
                    forgotten.append(producer.id)
        for by_name in self._waiting.values():
            for record in list(by_name.values()):
                if record.id in ids:
                    del by_name[record.name]
                    forgotten.append(record.id)
        return forgotten
