"""Orders of events in a broker that need a rule of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.encoding.attempts import MOST_PARTS
from escapement.storage.state.state import load_state
from support.database.outages import Outage
from support.faults.held_calls import COMMIT, Held

CALM = BrokerConfig(ack_wait_ms=10_000, seed=0)


async def values(inbox: escapement.Inbox) -> list[bytes]:
    """Return the payloads of messages that have arrived."""
    return [message.payload for message in await testing.arrived(inbox)]


async def test_message_published_while_a_subscription_becomes_durable_is_delivered(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 4: its offset is after the subscription's start, its due time is before that."""
    async with testing.start() as world:
        async with world.connect() as broker, world.connect() as other:
            before: dict[str, list[bytes]] = {}
            for topic in [f"t{number}" for number in range(10)]:
                producer = await broker.producer(topic)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(producer.send, topic.encode())
                    async with other.consumer(topic, "s") as inbox:
                        before[topic] = await values(inbox)
        # A restart reads everything again, so it delivers what the first run may have missed.
        await world.stop()
        await world.restart()
        async with world.connect() as broker:
            for topic, got in before.items():
                async with broker.consumer(topic, "s") as inbox:
                    assert await values(inbox) == got


async def test_dispatch_resumes_once_the_acks_that_stopped_it_are_durable(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 4: the commit alone resumes it, without another event."""
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


@asynccontextmanager
async def commit_that_a_checkpoint_precedes(
    world: testing.World, held: Held, outage: Outage
) -> AsyncIterator[None]:
    """Write a checkpoint while the commit of the block is held back, then crash and restart."""
    with held.hold(COMMIT):
        yield
        await held.reached()
        await world.checkpoint()
        outage.unreachable()
    await world.crash()
    outage.over()
    await world.restart()
    await world.clock.advance(seconds=2)


async def test_dead_letter_survives_a_checkpoint_before_its_commit(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1, invariant 4: the acknowledgement becomes durable with the dead letter, or not at all."""
    held, outage = Held(), Outage()
    async with testing.start(engine=outage.engine, run=held, config=CALM) as world:
        async with world.connect() as broker:
            names = {"topic": "x", "subscription": "s"}
            await broker.admin("subscriptions.create", **names, policy={"max_deliveries": 1})
            producer = await broker.producer("x")
            await producer.send_many([b"first", b"fails"])
            async with broker.consumer("x", "s") as inbox:
                first, bad = await testing.arrived(inbox)
                await inbox.nack([first.id])  # its dead letter creates the dead-letter topic
                await world.clock.advance(seconds=3)
                async with commit_that_a_checkpoint_precedes(world, held, outage):
                    await inbox.nack([bad.id])
                    await trio.testing.wait_all_tasks_blocked()
                # Its attempt is durable, but not its failure, so it is delivered once more.
                await world.clock.advance(minutes=1)
                await inbox.nack([message.id for message in await testing.arrived(inbox)])
                await world.clock.advance(seconds=3)
            dead_letters = await broker.admin("dlq.list", **names, count=10)
            assert [one["payload"] for one in dead_letters] == [b"first", b"fails"]


async def test_dead_letter_of_a_cancelled_message_survives_a_checkpoint_before_its_commit(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1, V4: a checkpoint keeps the attempts of a message until its dead letter is durable."""
    held, outage = Held(), Outage()
    async with testing.start(engine=outage.engine, run=held, config=CALM) as world:
        async with world.connect() as broker:
            names = {"topic": "x", "subscription": "s"}
            await broker.admin("subscriptions.create", **names, policy={"max_deliveries": 2})
            await broker.admin("subscriptions.create", topic="x", subscription="other")
            producer = await broker.producer("x")
            await producer.send(b"first")
            async with broker.consumer("x", "s") as inbox:
                for _ in range(2):  # its dead letter creates the dead-letter topic
                    (first,) = await testing.arrived(inbox)
                    await inbox.nack([first.id], delay=timedelta(0))
                await world.clock.advance(seconds=3)
                receipt = await producer.send(b"fails")
                assert len(await testing.arrived(inbox)) == 1
                # From now on only the record of its attempts says that it is pending for s.
                (outcome,) = await broker.cancel([receipt.id])
                assert (outcome.done, outcome.handed) == (True, ("s",))
                await inbox.nack([receipt.id], delay=timedelta(0))
                for _ in range(MOST_PARTS + 2):  # the next checkpoint then rewrites all parts
                    assert len(await testing.arrived(inbox)) == 1
                    await inbox.release([receipt.id])
                    await world.clock.settle()
                    await world.checkpoint()
                assert len(await testing.arrived(inbox)) == 1
                # So the next checkpoint is not empty.
                await producer.send(b"", delay=timedelta(days=1))
                async with commit_that_a_checkpoint_precedes(world, held, outage):
                    await inbox.nack([receipt.id])
                    await trio.testing.wait_all_tasks_blocked()
                while not (arrived := await testing.arrived(inbox)):
                    await world.clock.advance(seconds=1)
                (again,) = arrived
                assert again.attempt == 3  # one more attempt
                await inbox.nack([again.id])
                await world.clock.advance(seconds=3)
            dead_letters = await broker.admin("dlq.list", **names, count=10)
            assert [one["payload"] for one in dead_letters] == [b"first", b"fails"]


async def test_attempts_survive_a_checkpoint_before_the_commit_of_an_acknowledgement(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4, Q2: a message whose acknowledgement is lost keeps the count of its attempts."""
    held, outage, client = Held(), Outage(), trio.CancelScope()

    async def consume(task_status: trio.TaskStatus[escapement.Inbox]) -> None:
        with client:
            async with world.connect() as other, other.consumer("x", "s") as inbox:
                task_status.started(inbox)
                await trio.sleep_forever()

    async with (
        testing.start(engine=outage.engine, run=held, config=CALM) as world,
        world.connect() as broker,
        trio.open_nursery() as nursery,
    ):
        producer = await broker.producer("x")
        inbox = await nursery.start(consume)
        await producer.send(b"tried")
        for _ in range(2):
            (message,) = await testing.arrived(inbox)
            await inbox.nack([message.id], delay=timedelta(0))
        (message,) = await testing.arrived(inbox)
        assert message.attempt == 3
        await world.checkpoint()
        # So the next checkpoint is not empty.
        await producer.send(b"", delay=timedelta(days=1))
        async with commit_that_a_checkpoint_precedes(world, held, outage):
            await inbox.ack([message.id])
            await trio.testing.wait_all_tasks_blocked()
            client.cancel()  # a running client would repeat the acknowledgement
        async with broker.consumer("x", "s") as inbox:
            (again,) = await testing.arrived(inbox)
            assert again.attempt > 2


async def test_acknowledgements_survive_a_checkpoint_beside_one_that_is_not_committed(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V2, P6: the checkpoint leaves out the uncommitted acknowledgements only."""
    held, outage = Held(), Outage()
    async with testing.start(engine=outage.engine, run=held, config=CALM) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            async with broker.consumer("x", "s") as inbox:
                await producer.send_many([b"%d" % number for number in range(100)])
                messages = await testing.arrived(inbox)
                await inbox.ack([m.id for m in messages[:50]], durable=True)
                async with commit_that_a_checkpoint_precedes(world, held, outage):
                    await inbox.ack([m.id for m in messages[50:60]])
                    await trio.testing.wait_all_tasks_blocked()
                again = {m.offset for m in await testing.arrived(inbox)}
                # The client repeats the acknowledgements that have no receipt.
                assert again <= {m.offset for m in messages[50:]}
                await inbox.ack([m.id for m in messages], durable=True)
            await world.checkpoint()
            await world.crash()
            await world.restart()
            await world.clock.advance(seconds=2)
            async with broker.consumer("x", "s") as inbox:
                assert await testing.arrived(inbox) == []


async def test_checkpoint_writes_no_expiry_that_is_not_committed(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: a message that expired before a crash, and was acknowledged after it, was delivered."""
    held, outage = Held(), Outage()
    async with testing.start(engine=outage.engine, run=held, config=CALM) as world:
        async with world.connect() as broker:
            names = {"topic": "x", "subscription": "s"}
            await broker.admin("subscriptions.create", **names)
            await broker.admin("topics.update", topic="x", policy={"ttl_ms": 1_000})
            await (await broker.producer("x")).send(b"expires")
            with held.hold(COMMIT):
                await world.clock.advance(seconds=2)
                await held.reached()
                (stats,) = await broker.admin("subscriptions.list", topic="x")
                assert stats["expired"] == 1
                await world.checkpoint()
                outage.unreachable()
        await world.crash()
        outage.over()
        stored = load_state(outage.database.connect()).chunks
        assert [chunk for rows in stored.values() for chunk in rows] == []
