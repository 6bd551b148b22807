"""The lateness of delayed messages with the default configuration."""

from __future__ import annotations

import pytest
import trio.testing

from escapement import testing
from escapement.storage import schema
from escapement.storage.catalog import catalog
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World, arrived

DEFAULT_TICK_MS = 10
COARSE_TICK_MS = 1_000


def database_with_coarse_ticks() -> Engine:
    """Create a database with public/default and shop/eu, both with a tick of a second."""
    engine = SqliteEngine.in_memory()
    schema.migrate(engine)
    connection = engine.connect()
    for tenant, name in (("public", "default"), ("shop", "eu")):
        catalog.create_namespace(connection, tenant, name, 0, tick_ms=COARSE_TICK_MS)
    connection.close()
    return engine


async def lateness_ms(world: World, topic: str) -> int:
    """Return the lateness of a message that is due 7 ms after a full second."""
    async with world.connect() as broker:
        producer = await broker.producer(topic)
        async with broker.consumer(topic, "s") as inbox:
            due_ms = world.clock.now_ms() // 1000 * 1000 + 5_007
            await producer.send(b"x", delay=(due_ms - world.clock.now_ms(), "ms"))
            await world.clock.advance(ms=due_ms - world.clock.now_ms())
            while not (found := await arrived(inbox)):
                await world.clock.advance(ms=1)
            await inbox.ack(found, durable=True)
    return world.clock.now_ms() - due_ms


@pytest.mark.parametrize("topic", ["orders", "public/default/orders", "shop/eu/orders"])
async def test_message_in_a_new_namespace_is_at_most_ten_milliseconds_late(
    mock_clock: trio.testing.MockClock, topic: str
) -> None:
    """P2, P3: also in a namespace that is created by the first use of a topic."""
    async with testing.start() as world:
        if topic.startswith("shop"):
            async with world.connect() as broker:
                made = await broker.admin("namespaces.create", namespace="shop/eu")
                assert made["tick_ms"] == DEFAULT_TICK_MS
        assert await lateness_ms(world, topic) == 3


async def test_namespaces_keep_their_tick_when_a_broker_starts(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P2, P4: public/default too. A namespace that is created later has the default tick."""
    engine = database_with_coarse_ticks()
    async with testing.start(engine=engine) as world:
        assert await lateness_ms(world, "orders") == COARSE_TICK_MS - 7
        async with world.connect() as broker:
            # A change without a tick keeps the tick.
            await broker.admin(
                "namespaces.enable_delayed_message", namespace="shop/eu", granularity_ms=60_000
            )
            await broker.admin("namespaces.create", namespace="shop/us")
            listed = await broker.admin("namespaces.list")
        assert {one["namespace"]: one["tick_ms"] for one in listed} == {
            "public/default": COARSE_TICK_MS,
            "shop/eu": COARSE_TICK_MS,
            "shop/us": DEFAULT_TICK_MS,
        }
