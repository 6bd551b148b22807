"""Backlog quotas of a topic: publishing is refused while the backlog is too large (P10)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.cli.produce import say_why
from escapement.errors import BacklogFull, Disconnected
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.faults.held_calls import ORDER, Held, uncached
from support.messages.refused_publishes import refused, refused_at_once

CALM = BrokerConfig(seed=0)
NAMES = {"topic": "x", "subscription": "s"}
KINDS = ["shared", "exclusive"]


async def limit(broker: escapement.Broker, **policy: object) -> None:
    """Set the topic's quota."""
    await broker.admin("topics.update", topic="x", policy=policy)


@pytest.mark.parametrize("kind", KINDS)
async def test_publishing_is_refused_while_the_backlog_exceeds_its_quota(
    kind: str, mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P10: the longest backlog among the subscriptions counts, also after a crash."""
    async with testing.start(config=CALM, engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES, kind=kind)
            await limit(broker, quota_messages=100)
            producer = await broker.producer("x")
            await producer.send_many([b"waits"] * 99)
            assert not await refused(world, broker)
            assert await refused(world, broker)
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            assert await refused(world, broker)
            async with (
                broker.consumer("x", "s", kind=kind) as inbox,
                broker.consumer("x", "quick") as quick,
            ):
                messages = await arrived(inbox)
                assert len(messages) == 100
                assert await refused(world, broker), (
                    "delivered messages count until they are acknowledged"
                )
                await inbox.ack([message.id for message in messages], durable=True)
                assert not await refused(world, broker)
                await quick.flush_acks()


async def test_delayed_messages_count_only_with_quota_counts_all(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: both on disk and in memory."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        await limit(broker, quota_messages=10)
        producer = await broker.producer("x")
        await producer.send_many([b"far"] * 500, delay="1h")
        assert not await refused(world, broker)
        await world.checkpoint()
        assert not await refused(world, broker)
        await limit(broker, quota_counts="all")
        assert await refused(world, broker)
        await limit(broker, quota_counts="due")
        assert not await refused(world, broker)
        await world.clock.advance(hours=1)
        assert await refused(world, broker), "all messages are due now"


@pytest.mark.parametrize("prefix", ["", "total_"])
async def test_cancelled_messages_and_former_due_times_in_the_index_do_not_count(
    prefix: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: their index entries may stay until other messages are indexed."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        policy = {f"{prefix}quota_messages": 100, "quota_counts": "all"}
        await broker.admin("namespaces.update", namespace="public/default", policy=policy)
        producer = await broker.producer("x")

        async def full() -> bool:
            await world.clock.advance(ms=1)  # with the second in refused(), the cached sum expires
            return await refused(world, broker)

        await producer.send_many([b"far"] * 100, delay="300d")
        await world.checkpoint()
        assert await full()
        assert (await broker.cancel(range(50), topic="x")).done.all()
        assert not await full()
        await producer.send_many([b"near"] * 29)
        assert (await broker.reschedule(range(50, 100), topic="x", delay="200d")).done.all()
        assert not await full()
        await producer.send_many([b"near"] * 19)
        assert await full()


async def test_quota_of_a_namespace_applies_to_each_of_its_topics(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: a quota in bytes. A topic without a subscription has no backlog."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        update = {"namespace": "public/default"}
        await broker.admin("namespaces.update", **update, policy={"quota_bytes": "10KiB"})
        producer = await broker.producer("x")
        await producer.send_many([bytes(1_000)] * 100)
        assert not await refused(world, broker)
        await broker.admin("subscriptions.create", **NAMES)
        await producer.send_many([bytes(1_000)] * 20)
        assert await refused(world, broker)
        elsewhere = await broker.producer("y")
        await elsewhere.send(b"another topic")
        await limit(broker, quota_bytes="1MiB")
        assert not await refused(world, broker)


async def test_backlog_beyond_the_ready_messages_counts(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: messages published before the subscription do not count."""
    config = BrokerConfig(seed=0, limits=BrokerLimits(ready_messages=50))
    async with testing.start(config=config) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await broker.admin("subscriptions.create", topic="x", subscription="other")
        await producer.send_many([b"before"] * 1_000)
        await broker.admin("subscriptions.create", **NAMES)
        await broker.admin("subscriptions.delete", topic="x", subscription="other")
        await limit(broker, quota_messages=300)
        await producer.send_many([b"waits"] * 250)
        assert not await refused(world, broker)
        await producer.send_many([b"waits"] * 250)
        assert await refused(world, broker)


async def test_send_waits_for_room_and_neither_loses_nor_duplicates_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: the client retries by itself, and expired messages make room."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        await limit(broker, quota_messages=10, ttl_ms="10s")
        producer = await broker.producer("x", linger="0ms")
        await producer.send_many([b"waits"] * 10)
        await world.clock.advance(seconds=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, b"after them")
            await world.clock.advance(seconds=5)
            assert (await broker.admin("topics.stats", topic="x"))["next_offset"] == 10
            assert isinstance(producer.waits_for, BacklogFull)
            await world.clock.advance(seconds=10)
        assert (await broker.admin("topics.stats", topic="x"))["next_offset"] == 11
        assert producer.waits_for is None


async def test_command_line_says_why_it_waits(
    mock_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """P10: it prints each reason once, after a moment."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        await limit(broker, quota_messages=10, ttl_ms="30s")
        producer = await broker.producer("x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(say_why, producer)
            await producer.send_many([b"waits"] * 10)
            await world.clock.advance(seconds=5)
            assert capsys.readouterr().err == ""
            nursery.start_soon(producer.send, b"after them")
            await world.clock.advance(seconds=20)
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("waiting: ")
            assert "quota" in line
            await world.clock.advance(minutes=1)
            assert capsys.readouterr().err == ""
            await world.crash()
            nursery.start_soon(producer.send, b"not sent")
            await world.clock.advance(seconds=5)
            (line,) = capsys.readouterr().err.splitlines()
            assert line == "waiting: there is no connection to the broker"
            await world.restart()
            await world.clock.advance(seconds=10)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_new_subscription_at_earliest_counts_at_once(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: a cached count does not include it. A deleted subscription no longer counts."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        async with broker.consumer("x", "s") as inbox, await broker.producer("x") as producer:
            await producer.send_many([b"done"] * 3)
            await inbox.ack([one.offset for one in await arrived(inbox)], durable=True)
            await limit(broker, quota_messages=3)
            assert not await refused(world, broker)
            late = {"topic": "x", "subscription": "late"}
            await broker.admin("subscriptions.create", **late, kind=kind, position="earliest")
            await world.clock.settle()
            assert await refused_at_once(world, broker)
            await broker.admin("subscriptions.delete", **late)
            assert not await refused_at_once(world, broker)


async def test_acknowledged_messages_still_in_the_index_do_not_count(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P10: without reading keys, the index cannot tell what a later subscription has not done."""
    async with testing.start(config=CALM, engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES)
            producer = await broker.producer("x")
            await producer.send_many([b"done"] * 100)
            await world.checkpoint()
            async with broker.consumer("x", "s") as inbox:
                await inbox.ack([message.id for message in await arrived(inbox)], durable=True)
            await broker.admin("subscriptions.create", topic="x", subscription="later")
            await limit(broker, quota_messages=3)
        await world.stop()
        await world.restart()  # the new broker has not read any index block yet
        async with world.connect() as broker:
            assert [await refused(world, broker) for _ in range(4)] == [False] * 3 + [True]


async def test_count_during_which_the_machine_was_suspended_does_not_hold_for_hours(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: a count that took a second holds for ten, and one that took an hour for two minutes."""
    held = Held()
    async with testing.start(config=uncached(CALM), run=held) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        await limit(broker, quota_messages=10, quota_counts="all")
        producer = await broker.producer("x")
        await producer.send_many([b"far"] * 10, delay="10d")
        await world.checkpoint()
        await world.clock.advance(seconds=2)

        async def send() -> None:
            with pytest.raises(Disconnected):
                await producer.send(b"one more")

        async with trio.open_nursery() as nursery:
            with held.hold(ORDER):
                nursery.start_soon(send)
                await held.reached()
                await world.clock.advance(hours=1)
        assert await refused(world, broker)
        await broker.cancel(range(10), topic="x")
        await world.clock.advance(minutes=3)
        assert not await refused(world, broker)
