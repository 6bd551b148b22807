"""Tests of producers that the broker forgets because they were idle, and that are used again."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from escapement import testing
from escapement.broker.upkeep.housekeeper import PRODUCER_IDLE_MS
from escapement.client.broker import Broker
from escapement.errors import StorageUnavailable
from escapement.storage.catalog import producers
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World
from support.faults.dying_brokers import finish
from support.faults.held_calls import COMMIT, Held
from support.messages.received_messages import in_log
from support.storage.commit_pipelines import FaultyEngine, Once


async def forget_idle(world: World) -> None:
    """Let more than a week pass, after which the housekeeper forgets idle producers."""
    await world.clock.advance(days=8)
    await finish(world, world.server.services.housekeeper.round)


def stored(world: World) -> list[tuple[int, str]]:
    """Return the id and the name of each producer in the database."""
    connection = world._engine.connect()
    try:
        return connection.execute("SELECT id, name FROM producers ORDER BY id").rows
    finally:
        connection.close()


async def forget_row(world: World, id: int) -> None:
    """Delete the row of an idle producer, as the housekeeper does."""
    before_ms = world.clock.now_ms() - PRODUCER_IDLE_MS
    await world.server.services.housekeeper._transact(
        lambda connection: producers.forget(connection, [id], before_ms)
    )


async def crash(world: World) -> None:
    await world.crash()
    await world.restart()
    await world.clock.advance(seconds=30)


async def send_as(broker: Broker, name: str, sequence: int, value: bytes) -> bool:
    """Send a message under a producer's name; return whether it was stored before."""
    async with await broker.producer("t", name=name) as producer:
        return (await producer.send(value, sequence=sequence)).duplicate


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_generated_name_used_while_it_is_being_forgotten_stores_nothing_twice(
    mock_clock: MockClock, deleted: bool, checkpoint: bool
) -> None:
    """B3: its row is still there when it is used again, and is deleted later."""
    engine = FaultyEngine(SqliteEngine.in_memory())
    async with testing.start(engine=engine) as world, world.connect() as broker:
        async with await broker.producer("t") as producer:
            name = producer.name
            await producer.send(b"old")
        ((id, _),) = stored(world)
        await world.checkpoint()
        deletion = engine.before = Once("DELETE FROM producers", StorageUnavailable("away"), 99)
        deletion.arm()
        await forget_idle(world)
        assert deletion.left < 99
        await world.clock.advance(seconds=5)  # the lane connects again
        values = [b"a", b"b", b"c"]
        for sequence, value in enumerate(values):
            assert not await send_as(broker, name, sequence, value)
        deletion.left = 0
        if deleted:
            await finish(world, partial(forget_row, world, id))
        if checkpoint:
            await world.checkpoint()
        await crash(world)
        for sequence, value in enumerate(values):
            assert await send_as(broker, name, sequence, value)
        assert await in_log(broker, "t") == [b"old", *values]
        await world.checkpoint()
        await forget_idle(world)
        assert stored(world) == []


@pytest.mark.parametrize("name", ["", "p"])
async def test_producer_that_published_since_the_last_checkpoint_is_not_forgotten(
    mock_clock: MockClock, name: str
) -> None:
    """B3: its row says that it was idle for a week, and does not know of its last message."""
    async with testing.start() as world, world.connect() as broker:
        async with await broker.producer("t", name=name or None) as producer:
            name = producer.name
            await producer.send(b"a")
            await world.checkpoint()
            await world.clock.advance(days=8)
            await producer.send(b"b")
        await finish(world, world.server.services.housekeeper.round)
        assert await send_as(broker, name, 1, b"b")
        await crash(world)
        assert await send_as(broker, name, 1, b"b")
        assert await in_log(broker, "t") == [b"a", b"b"]


async def test_producer_that_is_being_opened_is_not_forgotten(mock_clock: MockClock) -> None:
    """B3: the housekeeper has found it idle just before."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        assert not await send_as(broker, "p", 0, b"a")
        registry = world.server.registry
        (topic,) = registry.active.values()
        (producer,) = topic.producers.values()
        idle = {producer.id: producer.last_sequence}
        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(send_as, broker, "p", 1, b"b")
                await held.reached()
                assert registry.producers.forget(idle, [topic]) == []
        assert await send_as(broker, "p", 1, b"b")
        assert await in_log(broker, "t") == [b"a", b"b"]
