"""Rows in the database of an application that name topics of several bundles.

The broker of bundle 0 moves the rows of outboxes. Each broker learns the acknowledgements in
transactions for its own topics.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import trio.testing

import escapement
from escapement import sql
from escapement.broker.broker import BrokerConfig
from escapement.storage.engine.base import Engine
from escapement.storage.outbox.ack_table import AckKey
from escapement.storage.outbox.acks import MAX_ROWS
from escapement.testing import World, arrived
from support.bundle_topics import topic_of_each_bundle
from support.outbox.outboxes import Application
from support.storage.bundle_brokers import BUNDLES, brokers

MockClock = trio.testing.MockClock
TOPICS = topic_of_each_bundle(BUNDLES)


def config(application: Application) -> BrokerConfig:
    return replace(BrokerConfig(seed=0), outboxes=(application.address,))


async def delivered(world: World, topic: str) -> list[escapement.Message]:
    """Return the messages that a new consumer gets. It leaves, so they are delivered again."""
    async with (
        world.connect() as broker,
        broker.consumer(topic, "s", position="earliest") as inbox,
    ):
        return await arrived(inbox)


async def processed(application: Application, world: World, topic: str) -> AckKey:
    """Send a message, acknowledge it in a transaction, and return the key of the row."""
    async with world.connect() as broker:
        await (await broker.producer(topic)).send(b"1")
    (message,) = await delivered(world, topic)
    with application.session() as cursor:
        sql.ack(cursor, message)
        cursor.connection.commit()
    source = message._columns._source
    return AckKey(source.log, source.subscription_id, message.offset, b"8 bytes.")


def insert(application: Application, keys: list[AckKey], topic: str) -> None:
    with application.session() as cursor:
        cursor.executemany(
            "INSERT INTO escapement_acks (message, log, topic, subscription, message_offset,"
            " acked_at) VALUES (%s, %s, %s, 's', %s, UTC_TIMESTAMP(3))",
            [(key.pack(), key.log, f"public/default/{topic}", key.offset) for key in keys],
        )
        cursor.connection.commit()


def unlearned(application: Application) -> int:
    sql = "SELECT COUNT(*) FROM escapement_acks WHERE learned_at IS NULL"
    return int(application.run(sql)[0][0])


async def test_message_of_any_bundle_is_acknowledged_in_a_transaction(
    application: Application, engine: Engine, tmp_path: Path, mock_clock: MockClock
) -> None:
    """V2, V7: by the broker of its bundle, so it is not delivered again after a crash either."""
    async with brokers(engine, tmp_path, config(application)) as worlds:
        for topic, world in zip(TOPICS, worlds, strict=True):
            await processed(application, world, topic)
        await worlds[0].clock.advance(seconds=5)
        assert unlearned(application) == 0
        for topic, world in zip(TOPICS, worlds, strict=True):
            await world.crash()
            await world.restart()
            assert await delivered(world, topic) == []


async def test_rows_wait_for_the_broker_of_their_bundle_and_keep_no_others_back(
    application: Application, engine: Engine, tmp_path: Path, mock_clock: MockClock
) -> None:
    """More rows than one look finds, of subscriptions before and behind those of others."""
    async with brokers(engine, tmp_path, config(application)) as worlds:
        keys = [await processed(application, worlds[n], TOPICS[n]) for n in (1, 0, 2)]
        waiting = keys[0]
        await worlds[1].crash()
        numbers = count(waiting.offset + 1)
        rows = [waiting._replace(offset=next(numbers)) for _ in range(2 * MAX_ROWS)]
        insert(application, rows, TOPICS[1])
        await worlds[0].clock.advance(seconds=5)
        assert unlearned(application) == 2 * MAX_ROWS + 1
        for n in (0, 2):
            assert await delivered(worlds[n], TOPICS[n]) == []
        await worlds[1].restart()
        await worlds[0].clock.advance(seconds=5)
        assert unlearned(application) == 0
        assert await delivered(worlds[1], TOPICS[1]) == []


async def test_rows_of_subscriptions_that_do_not_exist_are_marked(
    application: Application, engine: Engine, tmp_path: Path, mock_clock: MockClock
) -> None:
    """Otherwise they would stay forever."""
    async with brokers(engine, tmp_path, config(application)) as worlds:
        key = await processed(application, worlds[2], TOPICS[2])
        gone = [key._replace(subscription_id=key.subscription_id + 1000 + n) for n in range(3)]
        insert(application, gone, TOPICS[2])
        await worlds[0].clock.advance(seconds=5)
        assert unlearned(application) == 0


async def test_row_without_a_time_has_the_default_delay_of_its_topic_in_any_bundle(
    application: Application, engine: Engine, tmp_path: Path, mock_clock: MockClock
) -> None:
    """B10: and a row that is due past the maximum delay of its topic is refused."""
    async with brokers(engine, tmp_path, config(application)) as worlds:
        clock = worlds[0].clock
        for topic, world in zip(TOPICS, worlds, strict=True):
            policy = {"default_delay_ms": "30m", "max_delay_ms": "1h"}
            async with world.connect() as broker:
                await broker.admin("subscriptions.create", topic=topic, subscription="s")
                await broker.admin("topics.update", topic=topic, policy=policy)
            application.send(b"default", topic=topic)
            late = datetime.fromtimestamp(clock.now_ms() / 1000 + 7200, UTC)
            application.send(b"late", topic=topic, at=late)
        await clock.advance(seconds=60)
        for topic, world in zip(TOPICS, worlds, strict=True):
            assert await delivered(world, topic) == []
        await clock.advance(seconds=1800)
        for topic, world in zip(TOPICS, worlds, strict=True):
            assert [one.payload for one in await delivered(world, topic)] == [b"default"]
        assert [payload for payload, _ in application.refusals] == [b"late"] * BUNDLES
