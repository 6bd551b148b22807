"""Lag statistics: each durable acknowledgement is counted once, as in a naive count."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import NotFound, OutcomeUnknown
from escapement.names import TopicName
from escapement.storage.encoding.buckets import BUCKETS, bucket_of
from escapement.storage.encoding.lag import HELD, HOUR_MS, LATE, LATE_AGAIN, TRIED, UNSEEN, Tally
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.state.lag_table import REMEMBERED_MS, read_lags
from escapement.testing import World, arrived
from support.faults.dying_brokers import DiesAt, finish
from support.seeds import seeds
from support.storage.commit_pipelines import FaultyEngine, Once, no_fault
from support.storage.topic_states import read_topic

T = TypeVar("T")
TOPIC = TopicName("public", "default", "t")
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
CONFIG = BrokerConfig(ack_wait_ms=10**9, seed=0)


def looked_at(engine: Engine, look: Callable[[Connection], T]) -> T:
    connection = engine.connect()
    try:
        return look(connection)
    finally:
        connection.close()


def lags(engine: Engine, *topics: TopicName) -> dict[tuple[str, int], Counter[int]]:
    """Return the counts by subscription and hour, of the named topics or of all."""
    named = topics or None
    found = looked_at(engine, lambda connection: read_lags(connection, 0, 1 << 60, named))
    assert len({hour[:3] for hour in found}) == len(found)
    return {(hour.subscription, hour.hour_ms): counter(hour.tally) for hour in found}


def counter(tally: Tally) -> Counter[int]:
    return Counter(dict(zip(tally.cells.tolist(), tally.counts.tolist(), strict=True)))


def messages_in(found: dict[tuple[str, int], Counter[int]]) -> int:
    """Return the number of acknowledgements counted."""
    total = sum(found.values(), Counter())
    return sum(count for cell, count in total.items() if cell // BUCKETS in (TRIED, UNSEEN))


def rows(engine: Engine) -> int:
    count = "SELECT COUNT(*) FROM lags"
    return int(looked_at(engine, lambda connection: connection.execute(count)).rows[0][0])


class Expected:
    """The expected counts, added message by message."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], Counter[int]] = {}

    def add(self, name: str, at_ms: int, values: dict[int, int]) -> None:
        hour = self.found.setdefault((name, at_ms - at_ms % HOUR_MS), Counter())
        for kind, value in values.items():
            hour[kind * BUCKETS + int(bucket_of(np.array([value]))[0])] += 1

    def acked(self, name: str, delivered_ms: int, due_ms: int, tries: int, now_ms: int) -> None:
        late = LATE if tries == 1 else LATE_AGAIN
        values = {late: delivered_ms - due_ms, HELD: now_ms - delivered_ms, TRIED: tries}
        self.add(name, delivered_ms, values)


async def publish(broker: escapement.Broker, **times: object) -> None:
    async with await broker.producer("t") as producer:
        await producer.send_many([b"%d" % n for n in range(10)], **times)


async def subscribe(broker: escapement.Broker, name: str, kind: str = "shared") -> None:
    await broker.admin("subscriptions.create", topic="t", subscription=name, kind=kind)


async def seek(broker: escapement.Broker) -> None:
    where = {"topic": "t", "subscription": "s", "position": "earliest"}
    await broker.admin("subscriptions.seek", **where)


async def test_lateness_attempts_and_hold_times_are_counted_by_hour_of_delivery(
    mock_clock: MockClock, engine: Engine
) -> None:
    """B6, B7: the lag matches the deliveries, before and after a checkpoint."""
    expected = Expected()
    async with testing.start(config=CONFIG, engine=engine) as world:
        clock = world.clock
        async with world.connect() as broker:
            await subscribe(broker, "s")
            await publish(broker)
            await publish(broker, delay=HOUR)
            published_ms = clock.now_ms()
            await clock.advance(hours=1, seconds=7)
            async with broker.consumer("t", "s") as consumer:
                delivered_ms = clock.now_ms()
                first = await arrived(consumer)
                assert len(first) == 20
                await consumer.nack([one.offset for one in first[:3]], delay=SECOND)
                await clock.advance(minutes=59)
                again = await arrived(consumer)
                assert [one.attempt for one in again] == [2, 2, 2]
                redelivered_ms = delivered_ms + 1000
                await consumer.ack([one.offset for one in first[3:]], durable=True)
                await consumer.ack([one.offset for one in again], durable=True)
            for one in first:
                due_ms = published_ms + (3_600_000 if one.offset >= 10 else 0)
                tries = 2 if one.offset in [other.offset for other in again] else 1
                at_ms = redelivered_ms if tries == 2 else delivered_ms
                expected.acked("s", at_ms, due_ms, tries, clock.now_ms())
            assert lags(engine) == expected.found
            await world.checkpoint()
            assert rows(engine) == len(expected.found)
            assert lags(engine) == expected.found
            # Acknowledge twice in the next hour, after the checkpoint.
            await clock.advance(hours=1)
            await publish(broker)
            async with broker.consumer("t", "s") as consumer:
                more = await arrived(consumer)
                assert await consumer.ack([one.offset for one in more], durable=True) == 10
                assert await consumer.ack([one.offset for one in more], durable=True) == 0
            for _ in more:
                expected.acked("s", clock.now_ms(), clock.now_ms(), 1, clock.now_ms())
            assert lags(engine, TOPIC) == expected.found
            await world.checkpoint()
            assert lags(engine, TOPIC) == expected.found
        with pytest.raises(NotFound, match="nothing does not exist"):
            lags(engine, TopicName("public", "default", "nothing"))


async def test_failover_subscription_counts_lateness_from_publishing(
    mock_clock: MockClock, engine: Engine
) -> None:
    """B7, P7: its deliveries are not early if the message is due later."""
    expected = Expected()
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        await subscribe(broker, "log", "failover")
        await publish(broker, delay=10 * HOUR)
        published_ms = world.clock.now_ms()
        await world.clock.advance(seconds=20)
        async with broker.consumer("t", "log", kind="failover") as consumer:
            found = await arrived(consumer)
            delivered_ms = world.clock.now_ms()
            await consumer.nack([found[9].offset], delay=SECOND)
            await world.clock.advance(seconds=5)
            again = await arrived(consumer)
            await consumer.ack_range(0, 9, durable=True)
        for one in found[:9]:
            expected.acked("log", delivered_ms, published_ms, one.attempt, world.clock.now_ms())
        assert [one.attempt for one in again] == [2]
        expected.acked("log", delivered_ms + 1000, published_ms, 2, world.clock.now_ms())
        assert lags(engine) == expected.found


async def test_lateness_counts_from_creation_or_seek_of_the_subscription(
    mock_clock: MockClock, engine: Engine
) -> None:
    """B7: older messages count as due since then."""
    expected = Expected()
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        await publish(broker)
        for kind in ("shared", "failover"):
            await world.clock.advance(days=1)
            started_ms = world.clock.now_ms()
            names = {"topic": "t", "subscription": kind}
            await broker.admin("subscriptions.create", **names, kind=kind, position="earliest")
            for _ in range(2):
                await world.clock.advance(seconds=5)
                async with broker.consumer("t", kind, kind=kind) as consumer:
                    offsets = [one.offset for one in await arrived(consumer)]
                    assert await consumer.ack(offsets, durable=True) == 10
                for _ in offsets:
                    now_ms = world.clock.now_ms()
                    expected.acked(kind, now_ms, started_ms, 1, now_ms)
                started_ms = world.clock.now_ms()
                await broker.admin("subscriptions.seek", **names, position="earliest")
        assert lags(engine) == expected.found


async def test_acks_of_deliveries_before_a_crash_count_as_unseen(
    mock_clock: MockClock, engine: Engine
) -> None:
    """B7, P6: so do acks of messages the consumer does not hold. Expired messages do not count."""
    expected = Expected()
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker:
            await subscribe(broker, "s")
            await publish(broker)
            async with broker.consumer("t", "s") as consumer:
                delivered = await arrived(consumer)
                await consumer.ack([delivered[0].offset], durable=True)
                expected.acked("s", *[world.clock.now_ms()] * 2, 1, world.clock.now_ms())
        await world.crash()
        await world.restart()
        await world.clock.advance(hours=2)
        async with world.connect() as broker:
            now_ms = world.clock.now_ms()
            async with broker.consumer("t", "s", permits=1) as consumer:
                await wait_all_tasks_blocked()  # the first message is redelivered
                await consumer.ack([one.offset for one in delivered[1:4]], durable=True)
            expected.acked("s", now_ms, now_ms - 2 * HOUR_MS, 2, now_ms)
            for _ in delivered[2:4]:
                expected.add("s", now_ms, {UNSEEN: 0})
            assert lags(engine) == expected.found
            await broker.admin(
                "namespaces.update", namespace="public/default", policy={"ttl_ms": 1}
            )
            await world.clock.advance(hours=1)
            (stats,) = await broker.admin("subscriptions.list", topic="t")
            assert (stats["unacknowledged"], stats["expired"]) == (0, 6)
        assert lags(engine) == expected.found


async def test_seek_keeps_the_lag_and_delete_removes_it(
    mock_clock: MockClock, engine: Engine
) -> None:
    """B7, Q7: lag belongs to the name, over two seeks, before a checkpoint and after a crash."""
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker:
            await subscribe(broker, "s")
            await subscribe(broker, "other")
            await publish(broker)
            for round in range(3):
                async with broker.consumer("t", "s") as consumer:
                    offsets = [one.offset for one in await arrived(consumer)]
                    assert await consumer.ack(offsets, durable=True) == 10
                assert messages_in(lags(engine)) == 10 * (round + 1)
                await seek(broker)
                if round == 1:
                    await world.checkpoint()
        await world.crash()
        assert messages_in(lags(engine)) == 30
        await world.restart()
        await world.checkpoint()
        assert messages_in(lags(engine)) == 30
        async with world.connect() as broker:
            async with broker.consumer("t", "other") as consumer:
                await consumer.ack_range(0, 9, durable=True)
            await broker.admin("subscriptions.delete", topic="t", subscription="s")
            assert messages_in(lags(engine)) == 10
            # A new subscription of the same name begins without lag.
            await subscribe(broker, "s")
            assert {name for name, _ in lags(engine)} == {"other"}
            await finish(world, world.server.services.housekeeper.round)
            await world.checkpoint()
            assert rows(engine) == 1
            await broker.admin("topics.delete", topic="t")
            assert not lags(engine)
            await finish(world, world.server.services.housekeeper.round)
            await world.checkpoint()
            assert not rows(engine)


async def test_old_lag_is_deleted_by_whole_hours(mock_clock: MockClock, engine: Engine) -> None:
    """B7: an hour is deleted as a whole, and newer hours stay."""
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        await subscribe(broker, "s")
        for _ in range(2):
            await publish(broker)
            async with broker.consumer("t", "s") as consumer:
                await consumer.ack([one.offset for one in await arrived(consumer)], durable=True)
            await world.checkpoint()
            await world.clock.advance(days=1)
        assert messages_in(lags(engine)) == 20
        await world.clock.advance(ms=REMEMBERED_MS - 86_400_000)
        await finish(world, world.server.services.housekeeper.round)
        assert rows(engine) == 1
        assert messages_in(lags(engine)) == 10


async def publish_and_acknowledge(broker: escapement.Broker) -> int:
    """Publish for two subscriptions, acknowledge, and return the number of acknowledgements."""
    count = 0
    for name in ("a", "b"):
        await publish(broker)
        async with broker.consumer("t", name) as consumer:
            count += await consumer.ack(
                [one.offset for one in await arrived(consumer)], durable=True
            )
    return count


async def test_crash_at_any_checkpoint_step_counts_each_ack_once(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """B7, P6: an acknowledgement in both the table and the journal counts once."""
    real = SqliteEngine(tmp_path / FILE_NAME)
    engine = FaultyEngine(real)
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker:
            await subscribe(broker, "a")
            await subscribe(broker, "b")
        expected, number, finished = 0, 0, False
        while not finished:
            number += 1
            async with world.connect() as broker:
                expected += await publish_and_acknowledge(broker)
            engine.before = engine.after = dies = DiesAt(number)
            await finish(world, world.checkpoint)
            finished = not dies.dead
            engine.before = engine.after = no_fault
            assert messages_in(lags(real)) == expected
            if number % 3:
                async with world.connect() as broker:
                    expected += await publish_and_acknowledge(broker)
                assert messages_in(lags(real)) == expected
            await world.crash()
            assert messages_in(lags(real)) == expected
            await world.restart()
            assert messages_in(lags(real)) == expected
        assert number > 15
        await world.checkpoint()
        assert messages_in(lags(real)) == expected
        (left,) = looked_at(real, lambda found: found.execute("SELECT COUNT(*) FROM journal")).rows
        assert left == (0,)
    real.close()


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
async def test_ack_with_unknown_commit_outcome_counts_once(
    mock_clock: MockClock, tmp_path: Path, committed: bool
) -> None:
    """B7, P6: the reply is lost before or after the commit is done."""
    real = SqliteEngine(tmp_path / FILE_NAME)
    engine = FaultyEngine(real)
    lost = Once("commit", OutcomeUnknown("the reply is lost"), times=2)
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        await subscribe(broker, "a")
        await publish(broker)
        async with broker.consumer("t", "a") as consumer:
            offsets = [one.offset for one in await arrived(consumer)]
            if committed:
                engine.after = lost
            else:
                engine.before = lost
            lost.arm()
            await consumer.ack(offsets)
            await world.clock.advance(seconds=30)
            assert await consumer.ack(offsets, durable=True) == 0
            assert not lost.left
        assert messages_in(lags(real)) == 10
        await world.checkpoint()
        assert messages_in(lags(real)) == 10
    real.close()


class Workload:
    """A random workload on one subscription that counts its acknowledgements."""

    def __init__(
        self, world: World, engine: FaultyEngine, real: Engine, rng: random.Random
    ) -> None:
        self.world = world
        self.faulty = engine  # the engine of the broker
        self.engine = real
        self.rng = rng
        self.before = 0  # acknowledgements before the last seek

    async def step(self) -> None:
        await getattr(self, self.rng.choice(STEPS))()

    async def publishes(self) -> None:
        async with self.world.connect() as broker:
            await publish(broker, delay=(self.rng.choice([0, 1, 3_700]), "s"))

    async def acknowledges(self) -> None:
        async with self.world.connect() as broker, broker.consumer("t", "s") as consumer:
            there = [one.offset for one in await arrived(consumer)]
            self.rng.shuffle(there)
            await self.world.clock.advance(ms=self.rng.choice([0, 5, 4_000_000]))
            await consumer.ack(there[: self.rng.randrange(len(there) + 1)], durable=True)

    async def acknowledges_while_replies_are_lost(self) -> None:
        lost = Once("commit", OutcomeUnknown("the reply is lost"), self.rng.choice([1, 2]))
        if self.rng.random() < 0.5:
            self.faulty.after = lost
        else:
            self.faulty.before = lost
        async with self.world.connect() as broker, broker.consumer("t", "s") as consumer:
            there = [one.offset for one in await arrived(consumer)]
            lost.arm()
            await consumer.ack(there[::2])
            if self.rng.random() < 0.5:
                await self.world.checkpoint()
            self.faulty.before = self.faulty.after = no_fault
            await self.world.clock.advance(seconds=30)
            await consumer.ack(there[::2], durable=True)

    async def crashes_while_it_acknowledges(self) -> None:
        settings = escapement.Settings(heartbeat_s=None, close_timeout_s=0)
        async with self.world.connect(settings=settings) as broker:
            async with broker.consumer("t", "s") as consumer:
                there = [one.offset for one in await arrived(consumer)]
                await consumer.ack(there[::2])
                if self.rng.random() < 0.5:
                    await self.world.checkpoint()
                await self.world.crash()
        await self.world.restart()

    async def passes(self) -> None:
        await self.world.clock.advance(minutes=self.rng.choice([1, 70]))

    async def is_set_back(self) -> None:
        self.world.clock.set_back(self.rng.choice([1_000, 5_000_000]))

    async def is_checkpointed(self) -> None:
        await self.world.checkpoint()

    async def stops(self) -> None:
        await self.world.stop()
        await self.world.restart()

    async def is_sought(self) -> None:
        self.before += self.acked
        async with self.world.connect() as broker:
            await seek(broker)

    @property
    def acked(self) -> int:
        """The number of durable acknowledgements since the last seek."""
        state = looked_at(self.engine, lambda found: read_topic(self.engine, found, TOPIC))
        return len(state.subscription("s").acked)

    def check(self) -> None:
        assert messages_in(lags(self.engine)) == self.before + self.acked


STEPS = sorted(name for name in vars(Workload) if name[0] != "_")
STEPS = [name for name in STEPS if name not in ("step", "acked", "check")]
STEPS += ["publishes", "acknowledges"]  # more often


@pytest.mark.parametrize("seed", seeds(range(2)))
async def test_random_workload_counts_each_acknowledgement_once(
    mock_clock: MockClock, engine: Engine, seed: int
) -> None:
    """B7, P6: with crashes, lost replies, seeks, clocks set back and checkpoints."""
    faulty = FaultyEngine(engine)
    async with testing.start(config=CONFIG, engine=faulty) as world:
        async with world.connect() as broker:
            await subscribe(broker, "s")
        workload = Workload(world, faulty, engine, random.Random(seed))
        for _ in range(40):
            await workload.step()
            workload.check()
        assert workload.before + workload.acked > 10
