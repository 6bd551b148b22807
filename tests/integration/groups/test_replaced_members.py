"""Groups whose messages are replaced by others with the same replace keys (Q10, B11)."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import FollowUp, Replace, Settings, testing
from escapement.errors import EscapementError
from escapement.storage.engine.base import Engine
from support.database.outages import Outage
from support.faults.held_calls import COMMIT, Held
from support.messages.received_messages import in_log

HOUR = timedelta(hours=1)
HURRIED = Settings(heartbeat_s=None, close_timeout_s=0)


async def closed_group(broker: escapement.Broker) -> escapement.Producer:
    """Close a group of two pending messages, with the keys k and l. Return their producer."""
    await broker.admin("subscriptions.create", topic="t", subscription="s")
    await broker.admin("topics.create", topic="after")
    producer = await broker.producer("t", send_timeout=(2, "s"))
    keys = ["k", "l", Replace.first("k")]  # the third message is dropped
    await producer.send_many([b"a", b"b", b"c"], delay=HOUR, replace=keys, groups="g")
    await broker.groups.close("t", "g", "s", FollowUp(b"done", "after"))
    return producer


async def test_replaced_and_dropped_messages_of_a_group_are_done(
    mock_clock: MockClock, engine: Engine
) -> None:
    """Q10, B11: the follow-up fires when the last message of the group is replaced."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        producer = await closed_group(broker)
        await producer.send(b"x", delay=HOUR, replace="k")
        await world.clock.settle()
        assert await in_log(broker, "after") == []
        await producer.send(b"y", delay=HOUR, replace="l")
        await world.clock.settle()
        assert await in_log(broker, "after") == [b"done"]


async def test_message_whose_replacement_is_refused_is_not_done(mock_clock: MockClock) -> None:
    """Q10, B11: even if the group is looked at while the outcome is open."""
    held, outage = Held(), Outage()
    async with (
        testing.start(engine=outage.engine, run=held) as world,
        world.connect(settings=HURRIED) as broker,
        trio.open_nursery() as nursery,
    ):
        producer = await closed_group(broker)

        async def refused() -> None:
            with pytest.raises(EscapementError):
                await producer.send_many([b"x", b"y"], delay=HOUR, replace=["k", "l"])

        with held.hold(COMMIT):
            nursery.start_soon(refused)
            await held.reached()
            (topic,) = (
                one for one in world.server.registry.active.values() if one.groups.completions
            )
            world.server.services.group_completer.look(topic)
            await world.clock.settle()
            outage.unreachable()
        await world.clock.advance(seconds=3)
        outage.over()
        for _ in range(5):  # the broker reconnects, and repeats what has failed
            await world.clock.advance(seconds=2)
        (completion,) = (await broker.groups.get("t", "g")).completions
        assert (completion.state, completion.remaining) == ("waiting", 2)


async def test_message_that_is_being_replaced_is_waived_for_a_later_subscription(
    mock_clock: MockClock,
) -> None:
    """Q10, B11: the replacement may be refused, and then nothing else would finish the message."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("topics.create", topic="after")
        producer = await broker.producer("t")
        await producer.send(b"a", delay=HOUR, group="g")
        late = {"topic": "t", "subscription": "late", "kind": "exclusive"}
        await broker.admin("subscriptions.create", **late)
        (topic,) = (one for one in world.server.registry.active.values() if one.name.name == "t")
        topic.amendments.replace(np.array([0]))
        await broker.groups.close("t", "g", "late", FollowUp(b"done", "after"))
        await world.clock.settle()
        topic.amendments.restore(np.array([0]))
        await world.clock.settle()
        assert await in_log(broker, "after") == [b"done"]
