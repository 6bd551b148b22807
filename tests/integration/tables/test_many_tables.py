"""A broker that serves many message tables costs their database little."""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio

from escapement.tables.poll import LAST_NS
from escapement.testing import arrived
from support.database.servers import private_server
from support.tables.shops import Shop, comment, serving_tables

MockClock = trio.testing.MockClock

TABLES = 30
SECONDS = 30


async def test_idle_tables_share_connections_and_polls(mock_clock: MockClock) -> None:
    """V9: fewer than five statements a second, and three connections, for any number of tables."""
    with private_server() as server:
        server.admin("CREATE DATABASE shop")
        shop = Shop(server.url("shop"))

        def status(name: str) -> int:
            return int(server.admin(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

        names = [f"mails{number}" for number in range(TABLES)]
        topics = [shop.create(name, comment(poller_interval=0.1)) for name in names]
        async with serving_tables(shop) as world, world.connect() as broker:
            async with AsyncExitStack() as stack:
                consumers = [
                    await stack.enter_async_context(broker.consumer(topic, "table"))
                    for topic in topics
                ]
                await world.clock.advance(seconds=2)
                for name in names:
                    shop.insert(name, tenant_id=1)
                    for priority in range(20):  # which are in use, but not due
                        shop.insert(name, priority=priority, time_next=LAST_NS)
                await world.clock.advance(seconds=2)
                for consumer in consumers:
                    await consumer.ack(await arrived(consumer), durable=True)
                for _ in range(20):  # until the polls are as rare as they become
                    await world.clock.advance(seconds=1)
                before = status("Questions")
                for _ in range(SECONDS * 10):
                    await world.clock.advance(ms=100)
                assert status("Questions") - before <= 5 * SECONDS
                # One more asks for the status, and others may be about to end.
                assert min(status("Threads_connected") for _ in range(50)) <= 3 + 1
