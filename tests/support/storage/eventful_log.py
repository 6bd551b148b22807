"""A log with messages of every outcome, and a plain list of the expected rows."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.faults.dying_brokers import finish

TOPIC = "shop/eu/orders"
DAY_MS = 86_400_000
HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000
CONFIG = BrokerConfig(
    ack_wait_ms=10**12, limits=BrokerLimits(max_delay_ms=10**12), table_parallelism=2, seed=0
)


@dataclass(frozen=True)
class Expected:
    """The row that a read must return for one message."""

    offset: int
    deliver_ms: int
    published_ms: int
    key: bytes | None
    properties: dict[str, str | None]
    priority: int
    payload: bytes
    state: str
    attempt: int | None


def fill(engine: Engine, index: Path | None = None) -> list[Expected]:
    """Fill a database, and return the expected rows of TOPIC by offset.

    The virtual clock ends half an hour before the real time, which reads use. ``index`` receives
    a copy of the broker's index.
    """
    return testing.run(_live, engine, int(time.time() * 1000) - DAY_MS - HOUR_MS // 2, index)


def begin_anew(engine: Engine, *generations: list[int]) -> None:
    """Publish batches of these sizes; each list has its own day and generation of the log."""
    testing.run(_days, engine, generations)


async def _days(engine: Engine, generations: tuple[list[int], ...]) -> None:
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="shop/eu")
        async with await broker.producer(TOPIC) as producer:
            for number, batches in enumerate(generations):
                if number:
                    await world.checkpoint()
                    world.clock.set_back(-DAY_MS)
                    await finish(world, world.server.services.housekeeper.round)
                for count in batches:
                    await producer.send_many([b"."] * count)


def begin_relocated(engine: Engine, count: int) -> list[int]:
    """Publish messages an hour apart that are relocated, and return their publish times.

    Nine other messages precede each. They are done, and the log deletes them.
    """
    return testing.run(_relocated, engine, count)


async def _relocated(engine: Engine, count: int) -> list[int]:
    published_ms = []
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="shop/eu")
        policy = {"retention_ms": "0s"}
        await broker.admin("namespaces.update", namespace="shop/eu", policy=policy)
        async with await broker.producer(TOPIC) as producer:
            for _ in range(count):
                await world.clock.advance(ms=HOUR_MS)
                published_ms.append(world.clock.now_ms())
                delay = timedelta(days=300)
                await producer.send_many(
                    [b"done" * 100] * 9 + [b"live"], delay=[None] * 9 + [delay]
                )
        await world.checkpoint()
        world.clock.set_back(-DAY_MS)
        await finish(world, world.server.services.housekeeper.round)
        await finish(world, world.server.services.forgetter.round)
    return published_ms


def delete(engine: Engine) -> None:
    """Delete the topic by another broker on the database."""
    testing.run(_delete, engine)


async def _delete(engine: Engine) -> None:
    begun = testing.start(config=CONFIG, engine=engine, start_ms=int(time.time() * 1000))
    async with begun as world, world.connect() as broker:
        await broker.admin("topics.delete", topic=TOPIC, force=True)
        await finish(world, world.server.services.housekeeper.round)


def more(engine: Engine, count: int) -> None:
    """Publish more messages to another broker on the database."""
    testing.run(_more, engine, count)


async def _more(engine: Engine, count: int) -> None:
    begun = testing.start(config=CONFIG, engine=engine, start_ms=int(time.time() * 1000))
    async with begun as world, world.connect() as broker:
        async with await broker.producer(TOPIC) as producer:
            await producer.send_many([b"more %d" % n for n in range(count)])


async def _live(engine: Engine, start_ms: int, index: Path | None) -> list[Expected]:
    begun = testing.start(config=CONFIG, engine=engine, start_ms=start_ms)
    async with begun as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="shop/eu")
        policy = {"retention_ms": "0s"}
        await broker.admin("namespaces.update", namespace="shop/eu", policy=policy)
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
        expected = await _forgotten(world, broker) + await _kept(world, broker)
        if index is not None:
            shutil.copytree(world.index_directory, index)
        return expected


async def _forgotten(world: World, broker: escapement.Broker) -> list[Expected]:
    """Publish 200 messages. The log deletes all but two, which it relocates."""
    published_ms = world.clock.now_ms()
    async with await broker.producer(TOPIC) as producer:
        await producer.send_many(
            [b"old %d" % n for n in range(200)],
            delay=[timedelta(days=300) if n in (50, 150) else None for n in range(200)],
            properties=[{"n": str(n)} for n in range(200)],
        )
    async with broker.consumer(TOPIC, "s", permits=1000) as inbox:
        await inbox.ack([message.offset for message in await arrived(inbox)], durable=True)
    await world.checkpoint()
    world.clock.set_back(-DAY_MS)
    await finish(world, world.server.services.housekeeper.round)
    await finish(world, world.server.services.forgetter.round)
    due_ms = published_ms + 300 * DAY_MS
    return [
        Expected(n, due_ms, published_ms, None, {"n": str(n)}, 50, b"old %d" % n, "to_be_fired", 0)
        for n in (50, 150)
    ]


async def _kept(world: World, broker: escapement.Broker) -> list[Expected]:
    """Publish 300 messages, and write a checkpoint between the operations on them."""
    now_ms = world.clock.now_ms()
    plain = [
        Expected(200 + n, now_ms, now_ms, None, {}, 50, b"new %d" % n, "fired", 0)
        for n in range(100)
    ]
    keyed = [
        Expected(
            300 + n,
            now_ms + HOUR_MS,
            now_ms,
            b"k%d" % n if n % 2 else None,
            {"a": "x" * n, "größe": "3" if n % 2 else None} if n % 3 else {},
            n,
            b"y" * n,
            "to_be_fired",
            0,
        )
        for n in range(200)
    ]
    expected = plain + keyed
    async with await broker.producer(TOPIC) as producer:
        await producer.send_many([one.payload for one in plain])
        await producer.send_many(
            [one.payload for one in keyed],
            delay=HOUR,
            keys=[f"k{n}" if n % 2 else None for n in range(200)],
            properties=[one.properties for one in keyed],
            priorities=[one.priority for one in keyed],
        )

    def change(rows: range, **fields: Any) -> None:
        for row in rows:
            expected[row] = replace(expected[row], **fields)

    async with broker.consumer(TOPIC, "s", permits=1000) as inbox:
        messages = await arrived(inbox)
        await inbox.ack([message.offset for message in messages[:10]], durable=True)
        change(range(10), state="acked", attempt=None)
        await world.checkpoint()
        await inbox.ack([message.offset for message in messages[10:20]], durable=True)
        change(range(10, 20), state="acked", attempt=None)
        await inbox.nack([message.offset for message in messages[20:25]], delay=HOUR)
        # The consumer returns the rest when it leaves.
        change(range(20, 100), attempt=1)
        await broker.cancel(list(range(300, 310)), topic=TOPIC)
        change(range(100, 110), state="cancelled")
        await broker.reschedule(list(range(310, 320)), topic=TOPIC, delay=2 * HOUR)
        await broker.reschedule(list(range(315, 325)), topic=TOPIC, delay=3 * HOUR)
        change(range(110, 115), deliver_ms=now_ms + 2 * HOUR_MS)
        change(range(115, 125), deliver_ms=now_ms + 3 * HOUR_MS)
    return expected
