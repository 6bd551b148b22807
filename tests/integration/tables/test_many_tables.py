"""A broker that serves many message tables costs their database little."""

from __future__ import annotations

from contextlib import AsyncExitStack
from random import Random

import pytest
import trio

from escapement.tables.poll import LAST_NS
from escapement.testing import arrived
from support.database.servers import private_server
from support.storage.commit_pipelines import FaultyEngine
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock

TABLES = 30
SECONDS = 30


@pytest.mark.parametrize("seed", range(2))
async def test_idle_tables_share_connections_and_polls(mock_clock: MockClock, seed: int) -> None:
    """V9: fewer than five statements a second, and three connections, for any number of tables.

    The tables have any intervals, and their consumers join at any times.
    """
    rng = Random(seed)
    with private_server() as server:
        server.admin("CREATE DATABASE shop")
        shop = Shop(server.url("shop"))

        def status(name: str) -> int:
            return int(server.admin(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

        names = [f"mails{number}" for number in range(TABLES)]
        topics = [
            shop.create(
                name, comment(poller_interval=rng.choice([0.1, 0.5, round(rng.uniform(0.5, 9), 3)]))
            )
            for name in names
        ]
        async with serving_tables(shop) as world, world.connect() as broker:
            async with AsyncExitStack() as stack:
                consumers = []
                for topic in topics:
                    consumer = broker.consumer(topic, "table")
                    consumers.append(await stack.enter_async_context(consumer))
                    await world.clock.advance(ms=rng.randrange(500))
                await world.clock.advance(seconds=2)
                for name in names:
                    shop.insert(name, tenant_id=1)
                    for priority in range(20):  # which are in use, but not due
                        shop.insert(name, priority=priority, time_next=LAST_NS)
                    await world.clock.advance(ms=rng.randrange(500))
                await world.clock.advance(seconds=9)
                for consumer in consumers:
                    await consumer.ack(await arrived(consumer), durable=True)
                for _ in range(20):  # until the polls are as rare as they become
                    await world.clock.advance(seconds=1)
                before = status("Questions")
                for _ in range(SECONDS * 10):
                    await world.clock.advance(ms=100)
                assert status("Questions") - before < 4.5 * SECONDS
                # One more asks for the status, and others may be about to end.
                assert min(status("Threads_connected") for _ in range(50)) <= 3 + 1


async def test_claims_of_many_tables_share_a_transaction(shop: Shop, mock_clock: MockClock) -> None:
    """V9: rows of many tables that are due at the same time are not sent one table at a time."""
    topics = [shop.create(f"mails{n}", comment(poller_interval=1)) for n in range(TABLES)]
    async with serving_tables(shop) as world, world.connect() as broker, AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(broker.consumer(topic, "table")) for topic in topics
        ]
        await world.clock.advance(seconds=2)
        due_ns = (world.clock.now_ms() + 10_000) * 1_000_000
        for number in range(TABLES):
            shop.insert(f"mails{number}", time_next=due_ns)
        await world.clock.advance(seconds=9)
        commits: list[str] = []
        (database,) = world.server.services.tables.databases.values()
        database._connections.claims.close()
        database._connections.claims._engine = FaultyEngine(
            shop.engine, lambda step: commits.append(step) if step == "commit" else None
        )
        await world.clock.advance(seconds=2)
        for consumer in consumers:
            assert len(await arrived(consumer)) == 1
        assert len(commits) <= 3


async def test_locked_table_delays_no_rows_of_others(shop: Shop, mock_clock: MockClock) -> None:
    """V9: claims and acknowledgements of other tables go on while a table is being altered."""
    locked, other = [shop.create(name, comment(poller_interval=1)) for name in ("mails", "letters")]
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(locked, "table", permits=9) as first,
        broker.consumer(other, "table", permits=9) as second,
    ):
        await world.clock.advance(seconds=2)
        sent = shop.insert()
        messages = await taken(world, first, seconds=2)
        due_ns = (world.clock.now_ms() + 3_000) * 1_000_000
        waiting = shop.insert(time_next=due_ns)
        await world.clock.advance(seconds=2)
        with shop.session() as session:
            session.execute("LOCK TABLES mails WRITE")
            await first.ack(messages)
            await world.clock.advance(seconds=2)
            shop.insert("letters")
            (message,) = await taken(world, second, seconds=2)
            assert await second.ack([message], durable=True) == 1
            session.execute("UNLOCK TABLES")
        assert shop.row(sent, "time_acked") == (None,)
        (message,) = await taken(world, first, seconds=10)
        assert message.row["id"] == waiting
        assert shop.row(sent, "time_acked") != (None,)
