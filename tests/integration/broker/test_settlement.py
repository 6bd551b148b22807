"""The effect of a durable group commit on a broker, applied to groups of all kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.metering.totals import Totals
from escapement.broker.publishing.rescheduling import Restatement
from escapement.broker.settlement import Settlement
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.publication import Publication, Stored
from escapement.broker.topic.topic import Topic
from escapement.message import NO_TIMES, Blobs, Int64s, MessageBatch, Times
from escapement.storage.commit.group import Group, Restated, TopicGroup
from escapement.storage.commit.items import Acks, Append, Restate, Statement
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.log.generation import Generation
from escapement.testing import World

HOUR_MS = 3_600_000
POSITION = JournalPosition(1_000, bytes(8))


def column(*values: int) -> Int64s:
    return np.array(values, np.int64)


@dataclass
class Settled:
    """A settlement on a running broker, and the calls that it made."""

    world: World
    topic: Topic
    appended: list[Topic] = field(default_factory=list)
    done: list[tuple[str, list[int]]] = field(default_factory=list)
    left: list[Topic] = field(default_factory=list)

    def __post_init__(self) -> None:
        services = self.world.server.services
        self.progress = services._progress
        self._settlement = Settlement(
            services.registry,
            services.activation.subscriptions,
            services.index,
            services.publishing,
            services.checkpointer,
            services._progress,
            self.world.clock,
            1,
            Totals(),
            self.appended.append,
            self._done,
            self.left.append,
        )

    def _done(self, topic: Topic, subscription: Subscription, offsets: Int64s) -> None:
        self.done.append((subscription.record.name, offsets.tolist()))

    def take(self, **parts: Any) -> None:
        now_ms = self.world.clock.now_ms()
        self._settlement.take(Group(0, POSITION, now_ms, Generation(1, 1, 0, 0), **parts))

    def restated(
        self, base: int, due_ms: Int64s | None, context: Any, topic_id: int | None = None
    ) -> Restated:
        """Return a move of message 0 to ``due_ms``, or its relocation if that is None."""
        old_ms = column(self.world.clock.now_ms() + HOUR_MS)
        times = None if due_ms is None else Times(at_ms=due_ms)
        item = Restate(
            self.topic.id if topic_id is None else topic_id,
            base, column(0), b"", times, old_ms, old_ms, column(0), context,
        )  # fmt: skip
        return Restated(item, old_ms if due_ms is None else due_ms)


@asynccontextmanager
async def settling() -> AsyncIterator[Settled]:
    """Run a broker with a topic, two subscriptions, and one message that is due in an hour."""
    async with testing.start(config=BrokerConfig(seed=0)) as world, world.connect() as broker:
        for name in ("s", "u"):
            await broker.admin("subscriptions.create", topic="t", subscription=name)
        async with await broker.producer("t") as producer:
            await producer.send(b"x", delay=(HOUR_MS, "ms"))
        (topic,) = world.server.registry.active.values()
        yield Settled(world, topic)


async def test_move_counts_in_a_group_that_also_relocates_the_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: the relocation was submitted first, and states the old due time again."""
    async with settling() as settled:
        called: list[Any] = []
        batch = MessageBatch(Blobs.of([b"x"]))
        due_ms = column(settled.world.clock.now_ms() + 5 * HOUR_MS)
        move = settled.restated(-7, due_ms, Restatement(batch, called.append))
        relocation = settled.restated(-6, None, lambda: called.append("relocated"))
        settled.topic.amendments.withhold(column(0))
        settled.take(restated=[relocation, move])
        moves = settled.topic.amendments.moves
        assert moves.current(column(0), column(0)).tolist() == due_ms.tolist()
        assert moves.bases(column(0)).tolist() == [-7]
        assert called == ["relocated", None]
        assert settled.appended == [settled.topic]


async def test_group_of_a_deleted_topic_is_answered_and_changes_nothing_else(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P8: its messages were committed before the topic was deleted."""
    async with settling() as settled:
        before = settled.topic.next_offset
        called: list[Any] = []
        producer = Producer.new(77, "p")
        batch = MessageBatch(Blobs.of([b"a", b"b"]))
        publication = Publication(
            0, -1, batch, NO_TIMES, batch.encode(), called.append, called.append, producer=producer
        )
        producer.queued(publication.last_sequence)
        append = Append(99, batch.encode(), 2, context=publication)
        settled.take(
            topics=[TopicGroup(99, 5, column(1, 1), [append], [5], 10, False, False)],
            restated=[
                settled.restated(-7, column(1), Restatement(batch, called.append), topic_id=99),
                settled.restated(-6, None, lambda: called.append("relocated"), topic_id=99),
            ],
            acks=[
                Acks(99, 98, column(0), lambda _: called.append("acknowledged")),
                Acks(99, -99, column(0), lambda _: called.append("cancelled")),
            ],
            statements=[Statement(99, _nothing, _nothing, _nothing, forgets="g")],
        )
        assert called == [Stored(5), "relocated", None, "acknowledged", "cancelled"]
        assert (producer.last_sequence, producer.last_offset, producer.pending) == (1, 6, 0)
        row = settled.progress.producers[77]
        assert (row.last_sequence, row.last_offset) == (1, 6)
        assert settled.progress.positions[0] == POSITION
        assert 99 in settled.progress.touched
        assert settled.appended == settled.done == settled.left == []
        assert settled.topic.next_offset == before


async def test_acknowledged_and_cancelled_messages_become_durable(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3, B1: of one subscription, and of the topic."""
    async with settling() as settled:
        first, second = settled.topic.subscriptions()
        cancelled = settled.topic.amendments.cancelled
        for cursor in (first.acked, second.acked, cancelled):
            cursor.take(column(0))
        settled.progress.touched.clear()
        settled.take(acks=[Acks(settled.topic.id, first.record.id, column(0))])
        assert settled.progress.touched == {settled.topic.id}, "the next checkpoint must write it"
        assert first.acked.contains_durably(column(0)).all()
        assert not second.acked.contains_durably(column(0)).any()
        assert not cancelled.contains_durably(column(0)).any()
        assert settled.appended == [], "an acknowledgement gives nothing new to deliver"
        settled.take(acks=[Acks(settled.topic.id, -settled.topic.id, column(0))])
        assert cancelled.contains_durably(column(0)).all()
        assert not second.acked.contains_durably(column(0)).any()
        assert settled.appended == [settled.topic]
        assert settled.done == [], "the topic watches no group"


def _nothing(*_: Any) -> None: ...
