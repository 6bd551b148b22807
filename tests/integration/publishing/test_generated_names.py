"""Tests of producers whose name was generated: they are stored with their first batch."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from escapement import testing
from escapement.broker.topic.producer import Producer
from escapement.errors import OutcomeUnknown, StorageUnavailable
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World
from support.messages.received_messages import in_log
from support.storage.commit_pipelines import FaultyEngine, Once


def stored(world: World) -> list[tuple[int, str, int]]:
    """Return the id, the name and the epoch of each producer in the database."""
    connection = world._engine.connect()
    try:
        return connection.execute("SELECT id, name, epoch FROM producers ORDER BY id").rows
    finally:
        connection.close()


def producer_of(world: World, name: str) -> Producer:
    """Return the broker's producer of this name of the topic t."""
    (topic,) = world.server.registry.active.values()
    return topic.producers[name]


async def test_generated_name_is_stored_with_the_first_batch(mock_clock: MockClock) -> None:
    """Opening it takes no commit, and an unused one leaves nothing behind."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t")
        async with await broker.producer("t"):
            assert stored(world) == []
        (topic,) = world.server.registry.active.values()
        assert topic.producers == {}
        async with await broker.producer("t") as one, await broker.producer("t", name="p") as two:
            assert [name for _, name, _ in stored(world)] == ["p"]
            await one.send(b"a")
            await one.send(b"b")
            await two.send(b"c")
            by_name = {name: (id, epoch) for id, name, epoch in stored(world)}
            assert by_name[one.name] == (producer_of(world, one.name).id, 1)
            assert by_name.keys() == {one.name, "p"}
            assert by_name["p"][0] != by_name[one.name][0]


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_generated_name_keeps_its_sequence_in_a_crash(
    mock_clock: MockClock, checkpoint: bool
) -> None:
    """B3: a producer that reconnects after a crash stores nothing twice and loses nothing."""
    async with testing.start() as world, world.connect() as broker:
        async with await broker.producer("t") as one, await broker.producer("t") as two:
            await one.send(b"a")
            ((id, name, _),) = stored(world)
            assert name == one.name
            if checkpoint:
                await world.checkpoint()
            await world.crash()
            await world.restart()
            await world.clock.advance(seconds=30)
            await one.send(b"b")
            await two.send(b"c")
            ours = producer_of(world, one.name)
            assert (ours.id, ours.last_sequence, ours.stored) == (id, 1, True)
            assert sorted(name for _, name, _ in stored(world)) == sorted([one.name, two.name])
            assert len({id for id, _, _ in stored(world)}) == 2
        assert await in_log(broker, "t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("fault", ["not stored", "reply lost", "given up"])
async def test_generated_name_is_stored_once_despite_faults(
    mock_clock: MockClock, fault: str
) -> None:
    """B3: the COMMIT of the first batches gets no reply, or they are given up in an outage."""
    engine = FaultyEngine(SqliteEngine.in_memory())
    async with testing.start(engine=engine) as world, world.connect() as broker:
        producer = await broker.producer("t")
        lost = Once("commit", OutcomeUnknown("the reply was lost"))
        if fault == "reply lost":
            engine.after = lost
        elif fault == "not stored":
            engine.before = lost
        else:
            lost = engine.before = Once("", StorageUnavailable("the database is away"), times=4)
        lost.arm()
        async with trio.open_nursery() as nursery:
            for payload in (b"a", b"b", b"c"):
                nursery.start_soon(producer.send, payload)
            for _ in range(20):
                await world.clock.advance(seconds=1)
        assert not lost.left
        ((id, name, epoch),) = stored(world)
        assert (id, name, epoch) == (producer_of(world, producer.name).id, producer.name, 1)
        await world.crash()
        await world.restart()
        await world.clock.advance(seconds=30)
        await producer.send(b"d")
        assert producer_of(world, producer.name).id == id
        assert sorted(await in_log(broker, "t")) == [b"a", b"b", b"c", b"d"]


async def test_broker_forgets_unused_producers_that_it_has_not_stored(
    mock_clock: MockClock,
) -> None:
    """The only batch of such a producer was refused, after its connection had ended."""
    async with testing.start() as world, world.connect() as broker:
        async with await broker.producer("t") as producer:
            await producer.send(b"a")
        (topic,) = world.server.registry.active.values()
        left = topic.producers["anonymous-0"] = Producer.new(7, "anonymous-0")
        held = topic.producers["anonymous-1"] = Producer.new(8, "anonymous-1")
        held.take_over(object(), 1)
        assert left.is_unused
        registry = world.server.registry.producers
        assert registry.forget({}, world.server.registry.active.values()) == []
        assert topic.producers.keys() == {producer.name, "anonymous-1"}
