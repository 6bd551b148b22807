"""Rates, bounds of in-flight messages, and the choice of the next consumer."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import Busy
from escapement.message import NO_TIMES, Blobs, MessageBatch
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived

CALM = BrokerConfig(seed=0)
NAMES = {"topic": "x", "subscription": "s"}
KINDS = ["shared", "exclusive"]


async def counts(world: World, inbox: escapement.Inbox, seconds: int) -> list[int]:
    """Acknowledge the messages that arrive in each second. Return their numbers."""
    found = []
    for _ in range(seconds):
        await world.clock.advance(seconds=1)
        messages = await arrived(inbox)
        await inbox.ack([message.id for message in messages])
        found.append(len(messages))
    return found


async def filled(broker: escapement.Broker, count: int, kind: str = "shared") -> None:
    """Create a subscription with ``count`` due messages."""
    await broker.admin("subscriptions.create", **NAMES, kind=kind)
    producer = await broker.producer("x")
    await producer.send_many([b"%d" % number for number in range(count)])


@pytest.mark.parametrize("kind", KINDS)
async def test_delivery_uses_the_full_rate_and_no_more(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """Q3, V18: without other events in the topic (invariant 4). The rate can change at any time."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await filled(broker, 200, kind)
        await broker.admin("subscriptions.update", **NAMES, policy={"max_rate": 20})
        async with broker.consumer("x", "s", kind=kind) as inbox:
            # The burst of 100 ms is delivered at once.
            assert await counts(world, inbox, 3) == [22, 20, 20]
            await broker.admin("subscriptions.update", **NAMES, policy={"max_rate": 0.5})
            assert sum(await counts(world, inbox, 10)) in (5, 6)
            await broker.admin("subscriptions.update", **NAMES, policy={"max_rate": None})
            rest = await counts(world, inbox, 1)
            assert rest[0] in (132, 133)


async def test_rate_survives_a_crash(mock_clock: trio.testing.MockClock, engine: Engine) -> None:
    """Q3."""
    async with testing.start(config=CALM, engine=engine) as world:
        async with world.connect() as broker:
            await filled(broker, 100)
            await broker.admin("subscriptions.update", **NAMES, policy={"max_rate": 10})
            await world.crash()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            assert sum(await counts(world, inbox, 5)) == 51


@pytest.mark.parametrize("kind", KINDS)
async def test_max_in_flight_bounds_all_consumers_together(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """Q3."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await filled(broker, 50, kind)
        await broker.admin("subscriptions.update", **NAMES, policy={"max_in_flight": 8})
        async with broker.consumer("x", "s", kind=kind) as inbox:
            first = await arrived(inbox)
            assert len(first) == 8
            await inbox.ack([message.id for message in first[:3]])
            assert len(await arrived(inbox)) == 3
            await first[3].nack(delay="1h")
            assert len(await arrived(inbox)) == 1
            if kind == "shared":
                async with broker.consumer("x", "s") as second:
                    assert await arrived(second) == []
            await broker.admin("subscriptions.update", **NAMES, policy={"max_in_flight": 20})
            assert len(await arrived(inbox)) == 12


async def test_least_busy_consumer_gets_the_next_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q4."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"dispatch": "least_busy"})
        producer = await broker.producer("x")
        async with (
            broker.consumer("x", "s") as slow,
            broker.consumer("x", "s") as quick,
        ):
            await producer.send_many([b"first"] * 10)
            held, done = await arrived(slow), await arrived(quick)
            assert (len(held), len(done)) == (5, 5)
            await quick.ack([message.id for message in done])
            await producer.send_many([b"second"] * 7)
            assert len(await arrived(slow)) == 1
            assert len(await arrived(quick)) == 6


# -- publishing ----------------------------------------------------------------------


async def test_publishing_over_the_rate_is_held_back_and_nothing_is_lost(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """V18: other topics go on. The rate can change at any time."""
    async with testing.start(config=CALM, engine=engine) as world:
        async with world.connect() as broker, world.connect() as another:
            await broker.admin("topics.create", topic="x")
            await broker.admin("topics.update", topic="x", policy={"max_publish_rate": 100})
            producer = await broker.producer("x", linger="0ms")
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(producer.send_many, [b"%d" % number] * 50)
                await world.clock.advance(seconds=2)
                # A held-back batch holds up its own connection and no other.
                assert 100 <= (await stored(another)) <= 300
                elsewhere = await another.producer("y")
                await elsewhere.send(b"at once")
                await another.admin("topics.update", topic="x", policy={"max_publish_rate": None})
                await world.clock.advance(seconds=3)
            assert await stored(another) == 500


async def stored(broker: escapement.Broker) -> int:
    """Return the number of messages published to the topic."""
    offset: int = (await broker.admin("topics.stats", topic="x"))["next_offset"]
    return offset


async def test_each_producer_has_its_own_rate(mock_clock: trio.testing.MockClock) -> None:
    """V18: a producer over its rate does not hold up another producer."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker, world.connect() as another:
            await broker.admin("topics.create", topic="x")
            policy = {"max_publish_rate_per_producer": 10}
            await broker.admin("topics.update", topic="x", policy=policy)
            greedy = await broker.producer("x", linger="0ms")
            modest = await another.producer("x")
            async with trio.open_nursery() as nursery:
                await greedy.send_many([b"much"] * 8)
                nursery.start_soon(greedy.send_many, [b"more"] * 8)
                await world.clock.settle()
                before_ms = world.clock.now_ms()
                await modest.send(b"little")
                assert world.clock.now_ms() == before_ms
                assert await stored(another) == 9
                await world.clock.advance(seconds=1)
            assert await stored(another) == 17


async def test_publish_that_would_wait_too_long_is_refused_and_may_be_retried(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V18: a batch sent again after a lost receipt does not count again."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="x")
        await broker.admin("topics.update", topic="x", policy={"max_publish_rate": 10})
        producer = await broker.producer("x", name="p", linger="0ms", send_timeout="5s")
        await producer.send_many([b"paid later"] * 100)

        async def too_much() -> None:
            with pytest.raises(Busy, match="over its maximum rate"):
                await producer.send(b"too much")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(too_much)
            await world.clock.advance(seconds=6)
        await producer.aclose()
        again = await broker.producer("x", name="p")
        batch = MessageBatch(Blobs.of([b"paid later"] * 100))
        receipts = await again.send_batch(batch, NO_TIMES, sequence=0)
        assert receipts.duplicates.all()
        assert await stored(broker) == 100
        await world.clock.advance(seconds=5)
        await again.send(b"now")
