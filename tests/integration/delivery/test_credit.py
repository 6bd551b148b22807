"""Messages chosen for delivery but not sent give the consumer its credit back.

Messages are in flight before their payloads are read. Here the read is held back, as by a slow
disk, while their state changes. If their credit were lost, the consumer would never receive a
message again.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

import pytest
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.config import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.faults.held_calls import FETCH, Held

LEASE_MS = 10_000
COUNT = 20
PERMITS = 5


async def on_disk(world: World, delay: timedelta | None = None) -> None:
    """Publish messages whose payloads are only in segments, not in memory."""
    async with world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        producer = await broker.producer("x")
        await producer.send_many([b"%d" % number for number in range(COUNT)], delay=delay)
    await world.checkpoint()
    await world.stop()
    await world.restart()


async def take_all(inbox: escapement.Inbox) -> list[int]:
    """Receive and acknowledge until no message is left. Return the offsets in order."""
    taken: list[int] = []
    while messages := await arrived(inbox):
        taken += [message.offset for message in messages]
        await inbox.ack([message.id for message in messages], durable=True)
    return taken


async def test_credit_returns_for_messages_acknowledged_during_the_payload_read(
    mock_clock: MockClock,
) -> None:
    """V2, invariant 4: another consumer acknowledges them and leaves."""
    held = Held()
    async with testing.start(run=held) as world:
        await on_disk(world)
        async with world.connect() as broker, AsyncExitStack() as stack:
            with held.hold(FETCH):
                consumer = broker.consumer("x", "s", permits=PERMITS)
                inbox = await stack.enter_async_context(consumer)
                await held.reached()
                async with broker.consumer("x", "s", permits=1) as other:
                    assert await other.ack_range(0, PERMITS - 1, durable=True) == PERMITS
            assert await take_all(inbox) == list(range(PERMITS, COUNT))


@pytest.mark.parametrize("frame", [PERMITS, 100], ids=["read apart", "read together"])
async def test_credit_returns_for_messages_acknowledged_behind_another_frame(
    mock_clock: MockClock, frame: int
) -> None:
    """V2, V6: the frame of the second consumer waits behind the frame of the first, or with it."""
    held = Held()
    config = BrokerConfig(limits=BrokerLimits(deliver_messages=frame), seed=0)
    async with testing.start(config=config, run=held) as world:
        await on_disk(world, timedelta(hours=1))
        async with (
            world.connect() as broker,
            broker.consumer("x", "s", permits=PERMITS) as one,
            broker.consumer("x", "s", permits=PERMITS) as two,
        ):
            with held.hold(FETCH):
                await world.clock.advance(hours=1)
                await held.reached()
                assert await one.ack_range(0, 2 * PERMITS - 1, durable=True) == 2 * PERMITS
            await world.clock.settle()
            first, second = await arrived(one), await arrived(two)
            assert len(first) == len(second) == PERMITS
            offsets = [message.offset for message in first + second]
            assert sorted(offsets) == list(range(2 * PERMITS, COUNT))


async def test_acknowledged_messages_are_left_out_of_each_frame_that_is_read_together(
    mock_clock: MockClock,
) -> None:
    """V2, V6: each of two consumers gets its own messages, and credit for the acknowledged ones."""
    held = Held()
    async with testing.start(run=held) as world:
        await on_disk(world, timedelta(hours=1))
        async with (
            world.connect() as broker,
            broker.consumer("x", "s", permits=PERMITS) as one,
            broker.consumer("x", "s", permits=PERMITS) as two,
        ):
            with held.hold(FETCH):
                await world.clock.advance(hours=1)
                await held.reached()
                assert await one.ack_range(PERMITS - 3, PERMITS, durable=True) == 4
            await world.clock.settle()
            messages = await arrived(one) + await arrived(two)
            assert all(message.payload == b"%d" % message.offset for message in messages)
            offsets = sorted(message.offset for message in messages)
            assert offsets == [0, 1, *range(PERMITS + 1, COUNT)]


async def test_credit_returns_for_messages_that_time_out_during_the_payload_read(
    mock_clock: MockClock,
) -> None:
    """V1, invariant 5: a message is not sent in the moment of its timeout."""
    held = Held()
    async with testing.start(run=held) as world:
        await on_disk(world)
        async with world.connect() as broker, AsyncExitStack() as stack:
            with held.hold(FETCH):
                consumer = broker.consumer("x", "s", permits=PERMITS, ack_wait=timedelta(seconds=9))
                inbox = await stack.enter_async_context(consumer)
                await held.reached()
                await world.clock.advance(seconds=10)
            assert await take_all(inbox) == list(range(COUNT))


async def test_credit_returns_for_messages_whose_payload_read_outlasts_the_lease(
    mock_clock: MockClock,
) -> None:
    """B8, invariant 4: a successor could deliver them meanwhile; without one, this broker does."""
    held, outage = Held(), Outage()
    async with testing.start(run=held, engine=outage.engine) as world:
        limits = replace(world.config.limits, lease_ms=LEASE_MS)
        world.config = replace(world.config, limits=limits)
        await on_disk(world)
        async with world.connect() as broker, AsyncExitStack() as stack:
            with held.hold(FETCH):
                consumer = broker.consumer("x", "s", permits=PERMITS, ack_wait=timedelta(minutes=1))
                inbox = await stack.enter_async_context(consumer)
                await held.reached()
                outage.unreachable()
                await world.clock.advance(ms=LEASE_MS)
            await world.clock.advance(seconds=1)
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=1)
            outage.over()
            for _ in range(5):
                await world.clock.advance(seconds=1)
            assert await take_all(inbox) == list(range(COUNT))
