"""Backlog quotas on the sum of the topics of a namespace (P10)."""

from __future__ import annotations

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import BacklogFull
from escapement.storage.engine.base import Engine
from escapement.testing import World

CALM = BrokerConfig(seed=0)
KINDS = ["shared", "exclusive"]


async def begin(broker: escapement.Broker, kind: str, **policy: object) -> None:
    """Create topics a, b and c, each with a subscription, and set a quota for their namespace."""
    for topic in "abc":
        names = {"topic": f"t/n/{topic}", "subscription": "s"}
        await broker.admin("subscriptions.create", **names, kind=kind)
    await broker.admin("namespaces.update", namespace="t/n", policy=policy)


async def refused(world: World, broker: escapement.Broker, topic: str) -> bool:
    """Publish a message, and return whether the broker refuses it."""
    await world.clock.advance(seconds=2)  # the broker counts the backlog again
    producer = await broker.producer(topic, linger="0ms", send_timeout="100ms")
    answers: list[bool] = []

    async def send() -> None:
        try:
            await producer.send(b"one more")
            answers.append(False)
        except BacklogFull:
            answers.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await world.clock.advance(seconds=1)
    return answers == [True]


async def backlogs(broker: escapement.Broker) -> list[int]:
    """Return the number of unacknowledged messages of each topic."""
    rows = [await broker.admin("subscriptions.list", topic=f"t/n/{topic}") for topic in "abc"]
    return [row["unacknowledged"] for (row,) in rows]


async def publish(broker: escapement.Broker, topic: str, count: int) -> None:
    """Publish messages of 100 bytes."""
    producer = await broker.producer(f"t/n/{topic}")
    await producer.send_many([bytes(100)] * count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", [{"total_quota_messages": 100}, {"total_quota_bytes": 10_000}])
async def test_publishing_to_any_topic_is_refused_while_the_namespace_exceeds_its_quota(
    kind: str, policy: dict[str, object], mock_clock: trio.testing.MockClock
) -> None:
    """P10: also after a crash, before the topics are used. Other namespaces accept messages."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await begin(broker, kind, **policy)
            await publish(broker, "a", 60)
            await publish(broker, "b", 39)
            assert not await refused(world, broker, "t/n/c")
            await publish(broker, "c", 1)
            assert await refused(world, broker, "t/n/a")
            assert not await refused(world, broker, "t/other/a")
            if kind == "exclusive" and "total_quota_bytes" in policy:
                return  # after a restart, sizes are unknown until messages are delivered
            await world.checkpoint()
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            assert await refused(world, broker, "t/n/new")
            async with broker.consumer("t/n/a", "s", kind=kind) as inbox:
                await world.clock.settle()
                messages = [await inbox.receive() for _ in range(60)]
                await inbox.ack([message.id for message in messages], durable=True)
                assert not await refused(world, broker, "t/n/c")


@pytest.mark.parametrize("kind", KINDS)
async def test_drop_oldest_drops_from_the_longest_backlog_first(
    kind: str, mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P10: it drops exactly the excess, and again after more publishes and a crash."""
    async with testing.start(config=CALM, engine=engine) as world:
        async with world.connect() as broker:
            await begin(broker, kind, total_quota_messages=100, quota_action="drop_oldest")
            await publish(broker, "a", 20)
            await publish(broker, "b", 70)
            await world.clock.advance(seconds=2)
            assert await backlogs(broker) == [20, 70, 0]
            await publish(broker, "c", 150)
            await world.clock.advance(seconds=2)
            assert await backlogs(broker) == [20, 40, 40]
            await world.checkpoint()
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            await publish(broker, "a", 30)
            await world.clock.advance(seconds=2)
            assert sorted(await backlogs(broker)) == [33, 33, 34]
