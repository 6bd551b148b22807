"""Moments at which two things happen to a broker at once, one after the other."""

from __future__ import annotations

import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits


async def values(inbox: escapement.Inbox) -> list[bytes]:
    """What is there already."""
    return [message.payload for message in await testing.arrived(inbox)]


async def test_what_is_published_while_a_subscription_becomes_durable_is_delivered(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 4: its offset belongs to the subscription, its time lies before the creation."""
    async with testing.start() as world:
        async with world.connect() as broker, world.connect() as other:
            before: dict[str, list[bytes]] = {}
            for topic in [f"t{number}" for number in range(10)]:
                producer = await broker.producer(topic)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(producer.send, topic.encode())
                    async with other.consumer(topic, "s") as inbox:
                        before[topic] = await values(inbox)
        # A restart reads everything again: what it brings should have come before.
        await world.stop()
        await world.restart()
        async with world.connect() as broker:
            for topic, got in before.items():
                async with broker.consumer(topic, "s") as inbox:
                    assert await values(inbox) == got


async def test_acks_that_hold_up_dispatch_let_it_go_on_once_they_are_durable(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 4: nothing but the commit happens."""
    limits = BrokerLimits(unwritten_acks=10, unacked_messages=20)
    config = BrokerConfig(limits=limits, seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        producer = await broker.producer("t")
        async with broker.consumer("t", "s", permits=1_000) as inbox:
            await producer.send_many([b"%d" % number for number in range(40)])
            first = await testing.arrived(inbox)
            assert len(first) == 20
            await inbox.ack([message.id for message in first], durable=True)
            assert len(await testing.arrived(inbox)) == 20
