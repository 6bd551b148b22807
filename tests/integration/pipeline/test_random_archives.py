"""Random workloads: the log deletes only archived messages, and keeps no done messages forever."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import escapement
from escapement import testing
from escapement.broker.upkeep import forgetter
from escapement.names import TopicName
from escapement.pipeline.archiving.plan import unarchived
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.options import Options
from escapement.pipeline.source.planning import BatchPlan
from escapement.pipeline.source.reading import read_part
from escapement.storage import archive_record
from escapement.storage.archive_record import ArchiveRecord
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.log.generation import read_generations
from escapement.storage.offsets import OffsetSet
from escapement.testing import World, arrived
from support.faults.dying_brokers import finish
from support.storage.eventful_log import CONFIG, DAY_MS
from support.storage.topic_states import read_topic

TOPIC = "t/n/x"
SCHEMA = arrow_schema([("offset", False)])
STEPS = 60


class Workload:
    """One topic with a random workload."""

    def __init__(self, engine: Engine, data: Path, world: World, seed: int) -> None:
        self.engine = engine
        self.data = data
        self.world = world
        self.random = random.Random(seed)
        self.published = 0
        self.runs = 0

    def read(self) -> list[int]:
        """Return the offsets of a read without archived messages."""
        options = {"data": str(self.data), "topic": TOPIC, "archived": "false"}
        return self.offsets(BatchPlan(Options(options), ["offset"]).parts())

    def offsets(self, parts: Iterable[Any]) -> list[int]:
        """Return the offsets that the tasks of these parts read."""
        batches = (batch for part in parts for batch in read_part(self.engine, part, SCHEMA))
        return [offset for batch in batches for offset in batch["offset"].to_pylist()]

    def archived(self) -> list[int]:
        connection = self.engine.connect()
        try:
            found: list[int] = archive_record.archived(connection, 1).to_array(0, 1 << 40).tolist()
            return found
        finally:
            connection.close()

    def archive(self, share: float) -> None:
        """Archive a random share of the messages that the job would archive."""
        connection = self.engine.connect()
        now_ms = int(time.time() * 1000)
        name, since = TopicName.parse(TOPIC), self.random.randrange(self.published + 1)
        state = read_topic(self.engine, connection, name)
        done = self.offsets(unarchived(connection, state, now_ms))
        later = self.offsets(unarchived(connection, state, now_ms, since))
        connection.close()
        assert len(done) == len(set(done))
        assert later == [offset for offset in done if offset >= since]
        assert not set(done) & set(self.archived())
        done = [offset for offset in done if self.random.random() < share]
        if not done:
            return
        self.runs += 1
        offsets = OffsetSet()
        offsets.add(np.array(done))
        row = ArchiveRecord(1, f"r{self.runs}", 0, len(done), 1, min(done), max(done), b"{}")
        connection = self.engine.connect()
        archive_record.record(self.engine, connection, row, offsets)
        connection.close()

    def check(self) -> None:
        """Check that each message is in the log once, or archived."""
        live = self.read()
        assert len(live) == len(set(live))
        assert set(live) | set(self.archived()) == set(range(self.published))

    async def publish(self, broker: escapement.Broker) -> None:
        count = self.random.randrange(1, 40)
        hours = [self.random.choice([0, 0, 0, 1, 30, 24 * 5, 24 * 20]) for _ in range(count)]
        async with await broker.producer(TOPIC) as producer:
            await producer.send_many(
                [b"." * 300] * count, delay=[timedelta(hours=one) for one in hours]
            )
        self.published += count

    async def take(self, broker: escapement.Broker, share: float) -> int:
        async with broker.consumer(TOPIC, "s", permits=1000) as inbox:
            messages = await arrived(inbox)
            some = [one.id for one in messages if self.random.random() < share]
            if some:
                await inbox.ack(some, durable=True)
            return len(messages)

    async def change(self, broker: escapement.Broker) -> None:
        if self.published:
            some = self.random.sample(range(self.published), min(5, self.published))
            if self.random.random() < 0.5:
                await broker.cancel(some, topic=TOPIC)
            else:
                hours = self.random.choice([0, 5, 24 * 9])
                await broker.reschedule(some, topic=TOPIC, delay=timedelta(hours=hours))

    async def a_day_later(self) -> None:
        await self.world.checkpoint()
        self.world.clock.set_back(-DAY_MS)
        await finish(self.world, self.world.server.services.housekeeper.round)

    async def forget(self) -> None:
        await finish(self.world, self.world.server.services.forgetter.round)

    async def step(self) -> None:
        kind = self.random.choice(
            ["publish", "publish", "take", "take", "change", "day", "forget", "archive", "crash"]
        )
        if kind == "crash":
            await self.world.crash()
            await self.world.restart()
            return
        async with self.world.connect() as broker:
            if kind == "publish":
                await self.publish(broker)
            elif kind == "take":
                await self.take(broker, self.random.choice([0.0, 0.7, 1.0, 1.0]))
            elif kind == "change":
                await self.change(broker)
            elif kind == "day":
                await self.a_day_later()
            elif kind == "forget":
                await self.forget()
            else:
                self.archive(self.random.choice([0.5, 1.0, 1.0]))
        self.check()

    async def end(self) -> None:
        """Acknowledge and archive all messages, and check that only the last generation remains."""
        await self.world.clock.advance(days=25)
        async with self.world.connect() as broker:
            while await self.take(broker, 1.0):
                pass
            await self.a_day_later()
            self.archive(1.0)
            await self.forget()
            await self.forget()
        self.check()
        assert len(self.archived()) == self.published
        connection = self.engine.connect()
        assert len(read_generations(connection)) == 1
        connection.close()
        assert self.world.server.services.registry.active[1].amendments.moves.empty


@pytest.mark.parametrize("seed", [0, 7, 8, 11])
def test_random_workload_archives_every_message_before_its_deletion(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N8, P11: acknowledge, retry, cancel, reschedule and relocate messages, and crash."""
    # Relocate pending messages however many there are.
    monkeypatch.setattr(forgetter, "_SPARSE", 0)
    engine = SqliteEngine(tmp_path / FILE_NAME)

    async def run_workload() -> None:
        # Reads use the real clock. By that clock, all due times are past.
        start_ms = int(time.time() * 1000) - 365 * DAY_MS
        async with testing.start(config=CONFIG, engine=engine, start_ms=start_ms) as world:
            workload = Workload(engine, tmp_path, world, seed)
            async with world.connect() as broker:
                await broker.admin("namespaces.create", namespace="t/n")
                policy = {"retention_ms": "0s", "archive": "yes"}
                await broker.admin("namespaces.update", namespace="t/n", policy=policy)
                await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
            for _ in range(STEPS):
                await workload.step()
            await workload.end()

    testing.run(run_workload)
    engine.close()
