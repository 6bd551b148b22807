"""Finished messages stay in the log until they are archived, on both databases."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import trio

import escapement
from escapement import testing
from escapement.errors import Conflict, NotFound
from escapement.names import TopicName
from escapement.storage import archive_record
from escapement.storage.archive_record import ArchiveRecord
from escapement.storage.catalog import catalog
from escapement.storage.cleanup import freeing
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.log.generation import read_generations
from escapement.storage.offsets import CHUNK_SIZE, OffsetSet
from escapement.testing import World, arrived
from support.faults.dying_brokers import finish
from support.storage.eventful_log import CONFIG, DAY_MS

NAMESPACE = "t/n"
TOPIC = "t/n/x"


def set_of(*offsets: int) -> OffsetSet:
    found = OffsetSet()
    found.add(np.array(offsets, np.int64))
    return found


def record(engine: Engine, connection: Connection, topic_id: int, run: str, *offsets: int) -> None:
    row = ArchiveRecord(topic_id, run, 0, len(offsets), 1, min(offsets), max(offsets), b"{}")
    archive_record.record(engine, connection, row, set_of(*offsets))


def archived(engine: Engine, world: World, *offsets: int, run: str = "r") -> None:
    """Record these offsets of ``TOPIC`` as archived."""
    connection = engine.connect()
    try:
        topic = world.server.services.registry.topics[TOPIC]
        record(engine, connection, topic.id, f"{run}{offsets[0]}", *offsets)
    finally:
        connection.close()


def generations(engine: Engine) -> list[int]:
    connection = engine.connect()
    try:
        return [one.id for one in read_generations(connection)]
    finally:
        connection.close()


async def begin(broker: escapement.Broker) -> escapement.Producer:
    await broker.admin("namespaces.create", namespace=NAMESPACE)
    policy = {"retention_ms": "0s", "archive": "yes"}
    await broker.admin("namespaces.update", namespace=NAMESPACE, policy=policy)
    await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
    return await broker.producer(TOPIC)


async def consume(broker: escapement.Broker) -> list[bytes]:
    """Acknowledge all available messages durably, and return their values."""
    async with broker.consumer(TOPIC, "s", permits=1000) as consumer:
        messages = await arrived(consumer)
        await consumer.ack([m.id for m in messages], durable=True)
        return [m.value for m in messages]


async def roll(world: World) -> None:
    """Begin a new generation of the log on the next day."""
    await world.checkpoint()
    world.clock.set_back(-DAY_MS)
    await finish(world, world.server.services.housekeeper.round)


async def forget(world: World) -> None:
    await finish(world, world.server.services.forgetter.round)


async def awaited_ms(broker: escapement.Broker) -> int:
    stats = await broker.admin("topics.stats", topic=TOPIC)
    found: int = stats["archive_awaited_ms"]
    return found


async def test_finished_messages_stay_until_they_are_archived(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """N8, Q7: a generation stays until all its messages are archived. The stats show the wait."""
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        producer = await begin(broker)
        await producer.send_many([b"." * 200] * 99)
        await producer.send(b"live", delay=timedelta(days=90))
        assert len(await consume(broker)) == 99
        await roll(world)
        await forget(world)
        assert generations(engine) == [1, 2]
        await world.clock.advance(hours=1)
        assert await awaited_ms(broker) >= 3_600_000
        archived(engine, world, *range(98))
        await forget(world)
        assert generations(engine) == [1, 2], "offset 98 is not archived"
        archived(engine, world, 98)
        await forget(world)
        assert generations(engine) == [2]
        assert await awaited_ms(broker) == 0
        await world.clock.advance(days=90)
        assert await consume(broker) == [b"live"]


async def test_finished_relocated_message_stays_where_it_was_last_stated(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """N8, P11: its entry among the moves, which locates it, stays, and so does its generation."""
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        producer = await begin(broker)
        await producer.send_many([b"done" * 999, b"moved"], delay=[timedelta(0), timedelta(days=9)])
        assert await consume(broker) == [b"done" * 999]
        await roll(world)
        archived(engine, world, 0)
        await forget(world)
        assert generations(engine) == [2], "relocated to the second generation"
        await broker.run_now([1], topic=TOPIC)
        assert await consume(broker) == [b"moved"]
        await world.clock.advance(days=10)
        await world.checkpoint()
        await roll(world)
        await forget(world)
        topic = world.server.services.registry.topic(TopicName.parse(TOPIC))
        there = generations(engine)
        assert len(topic.amendments.moves) == 1
        assert len(there) > 1
        archived(engine, world, 1)
        await forget(world)
        await forget(world)
        assert topic.amendments.moves.empty
        assert generations(engine) == there[-1:]


async def test_finished_messages_are_released_when_the_archive_policy_is_disabled(
    mock_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """N8: the policy changes on a running broker."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        producer = await begin(broker)
        await producer.send(b".")
        assert await consume(broker) == [b"."]
        await roll(world)
        await forget(world)
        assert generations(engine) == [1, 2]
        policy = {"archive": "no"}
        await broker.admin("namespaces.update", namespace=NAMESPACE, policy=policy)
        await forget(world)
        assert await awaited_ms(broker) == 0
        assert generations(engine) == [2]


def test_message_is_archived_once_and_only_if_its_topic_exists(
    engine: Engine, connection: Connection
) -> None:
    """N8: a record is written completely or not at all, and is deleted with its topic."""
    namespace = catalog.create_namespace(connection, "t", "n", 0)
    topic = catalog.create_topic(connection, namespace.id, "x", 0)
    whole = range(CHUNK_SIZE - 10, 2 * CHUNK_SIZE + 10)
    record(engine, connection, topic.id, "one", *whole)
    before = archive_record.version(connection)
    with pytest.raises(Conflict, match="1 messages of topic"):
        record(engine, connection, topic.id, "two", 3, 4, 2 * CHUNK_SIZE)
    assert archive_record.version(connection) == before
    assert not archive_record.is_recorded(connection, topic.id, "two")
    record(engine, connection, topic.id, "two", 3, 4, CHUNK_SIZE - 11)
    found = archive_record.archived(connection, topic.id)
    assert found.to_array(0, 1 << 40).tolist() == [3, 4, CHUNK_SIZE - 11, *whole]
    part = archive_record.archived(connection, topic.id, CHUNK_SIZE, CHUNK_SIZE + 1)
    assert part.contains(np.arange(CHUNK_SIZE, 2 * CHUNK_SIZE)).all()
    runs = [one.run for one in archive_record.records(connection, topic.id, 0, CHUNK_SIZE - 11)]
    assert runs == ["two"]
    connection.begin()
    catalog.delete_topic(connection, topic.id)
    connection.commit()
    with pytest.raises(NotFound, match="was deleted"):
        record(engine, connection, topic.id, "three", 7)
    while freeing.free_step(connection, []):
        pass
    assert not archive_record.records(connection, topic.id)
    assert not len(archive_record.archived(connection, topic.id))


def test_only_one_run_works_on_a_log(engine: Engine, connection: Connection) -> None:
    """N8: another run can start after it has ended or died."""
    other = engine.connect()
    with archive_record.alone(engine, connection):
        with pytest.raises(Conflict, match="another run"), archive_record.alone(engine, other):
            pass
    with archive_record.alone(engine, other):
        pass
    if engine.kind == "mysql":  # on SQLite the process holds the lock
        with archive_record.alone(engine, connection):
            connection.close()
            takes_over(engine, other)
    other.close()


def takes_over(engine: Engine, connection: Connection) -> None:
    """Wait until the server notices that the other connection is closed."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with archive_record.alone(engine, connection):
                return
        except Conflict:
            assert time.monotonic() < deadline
            time.sleep(0.01)
