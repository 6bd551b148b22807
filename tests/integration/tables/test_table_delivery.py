"""Rows of message tables are delivered: a whole broker on a virtual clock, with a real server."""

from __future__ import annotations

import trio

from escapement.testing import arrived
from support.tables.shops import Shop, serving_tables

MockClock = trio.testing.MockClock


async def test_inserted_row_is_delivered_and_acknowledged(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8, V9: an INSERT enqueues a message, and an acknowledgement is written into its row."""
    topic = shop.create()
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            id = shop.insert(message='{"message": "hello world"}')
            await world.clock.advance(seconds=31)
            (message,) = await arrived(consumer)
            print(message.row)
            assert shop.row(id, "epoch, time_next > 0, time_acked") == (1, 1, None)
            assert await consumer.ack([message], durable=True) == 1
            acked_ns = world.clock.now_ms() * 1_000_000
            assert shop.row(id, "epoch, time_next, time_acked") == (1, None, acked_ns)
            await world.clock.advance(hours=2)
            assert await arrived(consumer) == []


async def test_future_row_is_sent_at_its_time_and_not_at_the_next_poll(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9."""
    topic = shop.create()
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            await world.clock.advance(minutes=5)  # polls are rare now
            due_ms = world.clock.now_ms() + 100_003
            shop.insert(time_next=due_ms * 1_000_000 - 1)
            shop.insert(time_next=(1 << 63) - 1)
            await world.clock.advance(ms=100_002)
            assert await arrived(consumer) == []
            await world.clock.advance(ms=11)
            (message,) = await arrived(consumer)
            assert message.due_ms == due_ms


async def test_offset_is_not_used_again_after_a_restart(shop: Shop, mock_clock: MockClock) -> None:
    """A client that connects again may acknowledge a row of the broker before."""
    topic = shop.create()
    offsets = []
    async with serving_tables(shop) as world:
        for _ in range(2):
            async with world.connect() as broker, broker.consumer(topic, "table") as consumer:
                shop.insert(message="1")
                await world.clock.advance(seconds=31)
                messages = await arrived(consumer)
                await consumer.ack([message.id for message in messages], durable=True)
                offsets += [message.offset for message in messages]
            await world.crash()
            await world.restart()
    assert len(set(offsets)) == 2
