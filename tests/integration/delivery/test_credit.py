"""What was decided to be sent and is not sent after all gives the consumer its credit back.

A frame is decided on, and in flight, before its payloads are read. The read is held back
here, as by a slow disk, while something happens to the messages. A consumer whose credit
were lost with them would never be sent anything again.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.testing import World, arrived
from support.database_outages import Outage
from support.held_calls import FETCH, Held

LEASE_MS = 10_000
COUNT = 20
PERMITS = 5


async def on_disk(world: World, delay: timedelta | None = None) -> None:
    """Messages whose payloads are in segments, and nowhere in memory."""
    async with world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        producer = await broker.producer("x")
        await producer.send_many([b"%d" % number for number in range(COUNT)], delay=delay)
    await world.checkpoint()
    await world.stop()
    await world.restart()


async def take_all(inbox: escapement.Inbox) -> list[int]:
    """Take out and acknowledge until nothing more comes; the offsets, in order."""
    taken: list[int] = []
    while messages := await arrived(inbox):
        taken += [message.offset for message in messages]
        await inbox.ack([message.id for message in messages], durable=True)
    return taken


async def test_credit_returns_for_messages_acknowledged_during_the_payload_read(
    mock_clock: MockClock,
) -> None:
    """V2, invariant 4: by another consumer, which has left since."""
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


async def test_credit_returns_for_messages_acknowledged_behind_another_frame(
    mock_clock: MockClock,
) -> None:
    """V2, V6: two consumers get their frames together; the second waits behind the first."""
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
                assert await one.ack_range(0, 2 * PERMITS - 1, durable=True) == 2 * PERMITS
            await world.clock.settle()
            first, second = await arrived(one), await arrived(two)
            assert len(first) == len(second) == PERMITS
            offsets = [message.offset for message in first + second]
            assert sorted(offsets) == list(range(2 * PERMITS, COUNT))


async def test_credit_returns_for_messages_that_time_out_during_the_payload_read(
    mock_clock: MockClock,
) -> None:
    """V1, invariant 5: it is not sent and taken back in the same moment."""
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
    """B8, invariant 4: a successor may deliver it meanwhile; none came, so we do."""
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
