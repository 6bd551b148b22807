"""The order in which a shared subscription hands out: by priority."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.testing import arrived

CALM = BrokerConfig(ack_wait_ms=100 * 24 * 3_600_000, seed=0)
SMALL = BrokerConfig(
    ack_wait_ms=100 * 24 * 3_600_000,
    limits=BrokerLimits(ready_messages=100, deliver_messages=16, window_messages=500),
    seed=0,
)


async def subscribed(broker: escapement.Broker) -> escapement.Producer:
    """A producer of a topic that has a subscription without a consumer."""
    async with broker.consumer("x", "s"):
        return await broker.producer("x")


async def taken(broker: escapement.Broker) -> list[escapement.Message]:
    """What one consumer gets now, in order and acknowledged, with a credit of one."""
    async with broker.consumer("x", "s", permits=1) as inbox:
        messages = await arrived(inbox)
        await inbox.ack([message.id for message in messages], durable=True)
        return messages


def priorities_of(messages: Sequence[escapement.Message]) -> list[int]:
    return [message.priority for message in messages]


async def test_what_is_due_together_goes_by_priority(mock_clock: trio.testing.MockClock) -> None:
    """V5: single sends, batches, delayed and not; lower first, 50 without one."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await subscribed(broker)
        in_a_minute = timedelta(minutes=1)
        await producer.send_many([b""] * 4, priorities=[60, 10, 255, 49], delay=in_a_minute)
        await producer.send(b"", delay=in_a_minute)
        await producer.send(b"", delay=in_a_minute, priority=0)
        await producer.message(b"").priority(51).delay_at(1, "minutes").send()
        await world.clock.advance(minutes=1)
        assert priorities_of(await taken(broker)) == [0, 10, 49, 50, 51, 60, 255]


async def test_nobody_starves_and_how_long_one_waits_is_known(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V5: a second a step, unless the subscription says otherwise."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await subscribed(broker)
        await producer.send(b"low", priority=60)
        for number in range(20):
            await world.clock.advance(seconds=1)
            await producer.send(b"%d" % number)
        values = [message.value for message in await taken(broker)]
        assert values.index(b"low") in (9, 10)
        named = {"topic": "x", "subscription": "s"}
        await broker.admin("subscriptions.update", **named, policy={"priority_ageing_ms": "1m"})
        for priority in (50, 51, 52, 0):
            await world.clock.advance(seconds=1)
            await producer.send(b"", priority=priority)
        assert priorities_of(await taken(broker)) == [0, 50, 51, 52]


@pytest.mark.parametrize("end", ["live", "crash", "checkpoint and crash", "stop"])
async def test_a_long_backlog_of_one_priority_is_not_in_the_way_of_another(
    end: str, mock_clock: trio.testing.MockClock
) -> None:
    """V5: far more messages than ready takes, in memory and on disk, before a restart and after."""
    async with testing.start(config=SMALL) as world:
        async with world.connect() as broker:
            producer = await subscribed(broker)
            for priority, count in [(200, 700), (50, 300), (10, 300), (50, 5), (20, 5)]:
                await producer.send_many([b""] * count, priorities=[priority] * count)
        if "checkpoint" in end:
            await world.checkpoint()
        if "crash" in end:
            await world.crash()
        elif end == "stop":
            await world.stop()
        if end != "live":
            await world.restart()
        async with world.connect() as broker:
            found = priorities_of(await taken(broker))
            assert len(found) == 1310
            # What the first look at the backlog did not come to is found within a few more.
            settled = found[100:]
            assert {10, 20, 50, 200} == set(settled)
            assert settled == sorted(settled)


@pytest.mark.parametrize("end", ["crash", "checkpoint", "stop"])
async def test_what_is_tried_again_keeps_its_priority(
    end: str, mock_clock: trio.testing.MockClock
) -> None:
    """V5, V16: from the wheel of retries, from the journal, and from a checkpoint's attempts."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            producer = await broker.producer("x")
            await producer.send_many([b""] * 3, priorities=[60, 50, 40])
            for _ in range(2):
                messages = await arrived(inbox)
                assert priorities_of(messages) == [40, 50, 60]
                for message in messages:
                    await message.nack(timedelta(seconds=5))
                await world.clock.advance(seconds=6)
            for message in await arrived(inbox):
                await message.nack(timedelta(seconds=5))
            await world.clock.settle()
            if end == "checkpoint":
                await world.checkpoint()
        await (world.stop() if end == "stop" else world.crash())
        await world.restart()
        await world.clock.advance(seconds=6)
        async with world.connect() as broker:
            messages = await taken(broker)
            assert priorities_of(messages) == [40, 50, 60]
            assert {message.attempt for message in messages} == {4}


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_who_reads_the_log_gets_its_order_whatever_the_priorities(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """V5: only shared subscriptions look at priorities."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", kind=kind) as inbox:
            await producer.send_many([b""] * 4, priorities=[60, 10, 255, 49])
            assert priorities_of(await arrived(inbox)) == [60, 10, 255, 49]
