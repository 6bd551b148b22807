"""A broker that serves many message tables costs their database little."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("seed", range(1))
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


async def test_locked_table_is_polled_alone_and_seldom(mock_clock: MockClock) -> None:
    """V9: polls of the others go on together, and no poll waits for the lock again and again."""
    with private_server("--general-log", "--log-output=TABLE") as server:
        server.admin("CREATE DATABASE shop")
        shop = Shop(server.url("shop"))
        names = [f"mails{number}" for number in range(40)]
        topics = [shop.create(name, comment(poller_interval=0.5)) for name in names]
        async with serving_tables(shop) as world, world.connect() as broker:
            async with AsyncExitStack() as stack:
                first, second, *_ = [
                    await stack.enter_async_context(broker.consumer(topic, "table"))
                    for topic in topics
                ]
                await world.clock.advance(seconds=5)
                with shop.session() as session:
                    session.execute("LOCK TABLES mails0 WRITE")
                    session.execute("INSERT INTO mails0 (tenant_id) VALUES (7)")
                    session.connection.commit()
                    server.admin("TRUNCATE mysql.general_log")
                    for _ in range(SECONDS * 10):
                        world.server.services.tables.hint("shop", "mails0")
                        await world.clock.advance(ms=100)
                    statements = [
                        statement.decode() if isinstance(statement, bytes) else statement
                        for (statement,) in server.admin(
                            "SELECT argument FROM mysql.general_log"
                            " WHERE command_type IN ('Query', 'Execute')"
                        )
                    ]
                    shop.insert("mails1")
                    assert len(await taken(world, second, seconds=2)) == 1
                polls = [one for one in statements if "FROM `mails" in one and "epoch" in one]
                of_locked = [one for one in polls if "FROM `mails0`" in one]
                assert len([one for one in of_locked if "FROM `mails1`" in one]) <= 2
                assert len(of_locked) <= 4 + SECONDS // 2
                alone = [one for one in polls if len(set(re.findall("FROM `(.*?)`", one))) == 1]
                assert len(alone) <= len(of_locked) + len(names)
                assert len(polls) <= 2 * SECONDS + len(of_locked) + len(names) + 4
                assert len(await taken(world, first, seconds=6)) == 1


async def test_table_that_cannot_be_polled_is_tried_again_soon_after_it_can(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: many tables are locked for long, and unlocked together."""
    names = [f"mails{number}" for number in range(50)]
    topics = [shop.create(name, comment(poller_interval=1)) for name in names]
    async with serving_tables(shop) as world, world.connect() as broker, AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(broker.consumer(topic, "table")) for topic in topics
        ]
        await world.clock.advance(seconds=2)
        with shop.session() as session:
            session.execute("LOCK TABLES " + ", ".join(f"{name} WRITE" for name in names))
            for name in names:
                session.execute(f"INSERT INTO {name} (tenant_id) VALUES (7)")
            session.connection.commit()
            for _ in range(600):
                await world.clock.advance(ms=100)
        for _ in range(80):
            await world.clock.advance(ms=100)
        for consumer in consumers:
            assert len(await arrived(consumer)) == 1


async def test_locked_tables_cost_their_database_little(mock_clock: MockClock) -> None:
    """V9: a refused poll keeps its connection, and nobody looks for altered tables after it."""
    with private_server() as server:
        server.admin("CREATE DATABASE shop")
        shop = Shop(server.url("shop"))

        def status(name: str) -> int:
            return int(server.admin(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

        names = [f"mails{number}" for number in range(9)]
        topics = [shop.create(name, comment(poller_interval=1)) for name in names]
        async with serving_tables(shop) as world, world.connect() as broker:
            async with AsyncExitStack() as stack:
                for topic in topics:
                    await stack.enter_async_context(broker.consumer(topic, "table"))
                await world.clock.advance(seconds=5)
                with shop.session() as session:
                    session.execute(
                        "LOCK TABLES " + ", ".join(f"{name} WRITE" for name in names[:6])
                    )
                    for _ in range(100):
                        await world.clock.advance(ms=100)
                    statements, connections = status("Questions"), status("Connections")
                    for _ in range(SECONDS * 10):
                        await world.clock.advance(ms=100)
                    # Each status is asked on a connection of its own.
                    assert status("Connections") - connections <= 2
                    assert status("Questions") - statements < 12 * SECONDS
