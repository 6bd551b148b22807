"""Pauses of topics and subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest
import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.shared import SharedSubscription
from escapement.clock import moment
from escapement.errors import InvalidRequest, NotFound
from escapement.storage.catalog.rule import FOREVER_MS
from escapement.testing import World, arrived
from support.faults.held_calls import FETCH, Held, uncached
from support.messages.received_messages import values

CALM = BrokerConfig(seed=0)
KINDS = ["shared", "exclusive"]


@pytest.mark.parametrize("kind", KINDS)
async def test_paused_subscription_gets_nothing_until_it_is_resumed(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with (
            broker.consumer("x", "s", kind=kind) as inbox,
            broker.consumer("x", "other") as other,
        ):
            await producer.send(b"before")
            (held,) = await arrived(inbox)
            await broker.pause("x", "s")
            await producer.send(b"meanwhile")
            assert await held.ack(durable=True) is None, "in-flight messages can be acknowledged"
            await world.clock.advance(days=300)
            assert await values(inbox) == []
            assert b"meanwhile" in await values(other), "other subscriptions go on"
            await broker.resume("x", "s")
            assert await values(inbox) == [b"meanwhile"]


@pytest.mark.parametrize("kind", KINDS)
async def test_topic_resumes_at_the_end_of_its_pause_also_after_a_restart(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """No other event is needed at that time (invariant 4)."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic="x", subscription="s", kind=kind)
            producer = await broker.producer("x")
            until = moment(world.clock.now_ms()) + timedelta(hours=2)
            await broker.pause("x", until=until)
            await producer.send(b"one")
            await world.crash()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s", kind=kind) as inbox:
            await world.clock.advance(seconds=7199)
            assert await values(inbox) == []
            await world.clock.advance(seconds=1)
            assert await values(inbox) == [b"one"]


async def test_subscription_resumes_once_neither_it_nor_its_topic_is_paused(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox:
            await broker.pause("x", duration="1h")
            await broker.pause("x", "s", duration="2h")
            await producer.send(b"one")
            await broker.resume("x")
            assert await values(inbox) == []
            await broker.pause("x")
            await world.clock.advance(hours=3)
            assert await values(inbox) == []
            await broker.resume("x")
            assert await values(inbox) == [b"one"]


async def test_message_that_times_out_during_a_pause_is_redelivered_after_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", ack_wait="5s") as inbox:
            await producer.send(b"hard")
            assert len(await arrived(inbox)) == 1
            await broker.pause("x", "s", duration="1h")
            await world.clock.advance(minutes=59)
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=1)
            assert [message.attempt for message in await arrived(inbox)] == [2]


async def test_sought_and_new_subscriptions_of_a_paused_topic_wait(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send(b"one")
        async with broker.consumer("x", "s", position="earliest") as inbox:
            assert await values(inbox) == [b"one"]
            await broker.pause("x")
            await inbox.seek("earliest")
            async with broker.consumer("x", "new", position="earliest") as new:
                await world.clock.advance(minutes=1)
                assert await values(inbox) + await values(new) == []
                await broker.resume("x")
                await world.clock.advance(seconds=1)
                assert (await values(inbox), await values(new)) == ([b"one"], [b"one"])


async def test_publishing_goes_on_during_a_pause_and_ready_stays_bounded(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V3."""
    config = BrokerConfig(seed=0, limits=BrokerLimits(ready_messages=100))
    async with testing.start(config=config) as world, world.connect() as broker:
        async with broker.consumer("x", "s", permits=5_000) as inbox:
            await broker.pause("x", "s")
            producer = await broker.producer("x")
            for start in range(0, 1000, 100):
                await producer.send_many([b"%d" % i for i in range(start, start + 100)])
            subscription = _subscription(world)
            assert subscription.ready_count == 100
            assert len(subscription.held) == 100
            await broker.resume("x", "s")
            assert await values(inbox) == [b"%d" % i for i in range(1000)]


def _subscription(world: World) -> SharedSubscription:
    (topic,) = world.server.registry.active.values()
    return topic.shared["s"]


async def test_invalid_pauses_are_refused(mock_clock: trio.testing.MockClock) -> None:
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        soon = moment(world.clock.now_ms()) + timedelta(hours=1)
        refused: list[tuple[type[Exception], Awaitable[Any]]] = [
            (NotFound, broker.pause("nowhere")),
            (NotFound, broker.pause("x", "nobody")),
            (InvalidRequest, broker.pause("x", until=soon, duration="1h")),
            (InvalidRequest, broker.pause("x", until=soon.replace(tzinfo=None))),
            (InvalidRequest, broker.pause("x", until=soon - timedelta(hours=1))),
            (InvalidRequest, broker.admin("dispatch.pause", topic="x", for_ms=1, until_ms=1)),
        ]
        for error, asked in refused:
            with pytest.raises(error):
                await asked
        topic = await broker.admin("topics.get", topic="x")
        assert topic["paused_until_ms"] == 0
        await broker.pause("x")
        assert (await broker.admin("topics.get", topic="x"))["paused_until_ms"] == FOREVER_MS


async def test_messages_being_read_when_a_pause_begins_wait_for_its_end(
    mock_clock: trio.testing.MockClock,
) -> None:
    """The payloads are being read from disk when the pause is confirmed."""
    held = Held()
    async with testing.start(run=held, config=uncached(CALM)) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        await (await broker.producer("x")).send_many([b"one", b"two"])
        await world.checkpoint()
        async with broker.consumer("x", "s", permits=2) as inbox:
            with held.hold(FETCH):
                await held.reached()
                await broker.pause("x", "s", duration="1h")
            await world.clock.advance(minutes=59)
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=1)
            messages = await arrived(inbox)
            assert [(m.value, m.attempt) for m in messages] == [(b"one", 1), (b"two", 1)]
