"""The failpoints of a whole broker: all are reached, and two that only a long life reaches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import trio.testing

import escapement
from escapement import failpoints, testing
from escapement.failpoints import POINTS, parse, passes, set_actions
from escapement.storage.engine.base import Engine
from support.storage.forgetting_brokers import (
    PATIENT,
    TOPIC,
    YEAR,
    begin,
    forget,
    generations,
    restart_without_index,
    roll,
    take,
)


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    yield
    failpoints.clear()


async def fill(broker: escapement.Broker) -> None:
    """Publish messages of which almost all are finished, and one is due next year."""
    producer = await begin(broker)
    delays = [YEAR if number == 500 else timedelta(0) for number in range(1_000)]
    await producer.send_many([b"%d" % number + b"." * 100 for number in range(1_000)], delay=delays)
    assert len(await take(broker)) == 999


async def test_each_failpoint_is_reached(mock_clock: trio.testing.MockClock) -> None:
    """P6: so a test that kills a broker at a point does kill it."""
    set_actions({})
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await fill(broker)
        work = {"topic": "t/n/dead", "subscription": "s"}
        await broker.admin("subscriptions.create", **work, policy={"max_deliveries": 1})
        producer = await broker.producer(work["topic"])
        ids = [r.id for r in await producer.send_many([b"x", b"y"], delay=timedelta(days=2))]
        await world.checkpoint()
        await broker.cancel(ids[:1])
        await world.clock.advance(days=3)
        async with broker.consumer(work["topic"], "s") as inbox:
            await (await inbox.receive()).nack()
        await world.clock.advance(seconds=1)
        await roll(world)
        await forget(world)
        await restart_without_index(world)
        await world.clock.advance(seconds=1)
        await world.stop()
    assert passes().keys() == POINTS.keys()


@pytest.mark.parametrize("point", ["relocation", "generation_drop"])
@pytest.mark.parametrize("crashes", [False, True])
async def test_generation_is_dropped_once_after_a_fault_and_loses_nothing(
    mock_clock: trio.testing.MockClock, engine: Engine, point: str, crashes: bool
) -> None:
    """P11, P6: live messages are stated again, and the old tables are dropped, by the next try."""
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            await fill(broker)
            await world.checkpoint()
        await roll(world)
        set_actions(*parse(f"{point}=error@1"))
        await forget(world)
        assert passes()[point] == 1
        if crashes:
            await world.crash()
            await world.restart()
        await forget(world)
        assert generations(engine) == [2]
        await restart_without_index(world)
        async with world.connect() as broker:
            await world.clock.advance(days=365)
            assert [value[:3] for value in await take(broker)] == [b"500"]
            assert [m.offset async for page in broker.read(TOPIC) for m in page] == [500]
