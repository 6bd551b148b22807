"""The delay policy of namespaces and topics in a whole broker on a virtual clock (B10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.client.producing.groups import FollowUp
from escapement.clock import moment
from escapement.errors import (
    DelaysDisabled,
    DelayTooLong,
    DelayTooShort,
)
from escapement.testing import World, arrived
from support.messages.received_messages import in_log

SPACE = {"namespace": "public/default"}
CALM = BrokerConfig(ack_wait_ms=10**11, seed=0)
MINUTE = timedelta(minutes=1)


async def rule(broker: escapement.Broker, topic: str = "", **delays: Any) -> None:
    """Set delays, such as ``min="1m"``, of a topic or of the namespace."""
    policy = {f"{name}_delay_ms": value for name, value in delays.items()}
    if topic:
        await broker.admin("topics.update", topic=topic, policy=policy)
    else:
        await broker.admin("namespaces.update", **SPACE, policy=policy)


async def due_in_s(world: World, broker: escapement.Broker, topic: str) -> list[float]:
    """Return in how many seconds each message is due as it was published, by offset."""
    found: list[int] = []
    async for page in broker.read(topic):
        found += page.due_ms.tolist()
    return [(due_ms - world.clock.now_ms()) / 1000 for due_ms in found]


async def test_default_delay_applies_to_messages_without_a_time(mock_clock: MockClock) -> None:
    """B10: single messages and batches. A topic replaces its namespace's value."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="x")
        await rule(broker, default="5m")
        producer = await broker.producer("x")
        await producer.send(b"bare")
        await producer.send(b"delayed", delay="7m")
        await producer.send(b"now", delay="0s")
        await producer.send_many([b"a", b"b"])
        await producer.send_many([b"c", b"d"], delay=[None, "9m"])
        assert await due_in_s(world, broker, "x") == [300, 420, 0, 300, 300, 300, 540]
        await rule(broker, "x", default="1h")
        await producer.send(b"topic's")
        await rule(broker, "x", default=None)
        await rule(broker, default=None)
        await producer.send(b"none")
        assert (await due_in_s(world, broker, "x"))[-2:] == [3600, 0]


async def test_delay_outside_the_bounds_refuses_the_whole_batch(mock_clock: MockClock) -> None:
    """B10: the error names the message, its delay, the bound, and where it is set."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="x")
        await rule(broker, min="1m", max="1h")
        producer = await broker.producer("x")
        with pytest.raises(DelayTooShort, match=r"has no delay\. The minimum is 1m, set by name"):
            await producer.send(b"bare")
        with pytest.raises(DelayTooLong, match=r"delay of 2h\. The maximum is 1h, set by namespac"):
            await producer.send(b"late", delay="2h")
        with pytest.raises(DelayTooShort, match="Message 2 of a batch of 3 has a delay of 59s"):
            await producer.send_many([b"a", b"b", b"c"], delay=["1m", "59s", "1h"])
        with pytest.raises(DelayTooShort):
            await producer.send(b"past", at=moment(world.clock.now_ms()))
        await producer.send(b"good", delay="1m")
        await rule(broker, "x", max="3h")
        await producer.send(b"longer", delay="2h")
        assert await in_log(broker, "x") == [b"good", b"longer"]


async def test_delay_policy_survives_a_crash(mock_clock: MockClock) -> None:
    """B10."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("topics.create", topic="x")
            await rule(broker, default="5m")
            await rule(broker, "x", max="10m")
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            shown = await broker.admin("topics.get", topic="x")
            assert (shown["default_delay_ms"], shown["max_delay_ms"]) == (0, 600_000)
            shown = await broker.admin("namespaces.get", **SPACE)
            assert (shown["default_delay_ms"], shown["max_delay_ms"]) == (300_000, 0)
            producer = await broker.producer("x")
            await producer.send(b"bare")
            assert await due_in_s(world, broker, "x") == [300]
            with pytest.raises(DelayTooLong, match="set by topic public/default/x"):
                await producer.send(b"late", delay="11m")


async def test_stored_message_that_is_sent_again_is_no_refusal(mock_clock: MockClock) -> None:
    """B10, B3: by the second time, its due time is nearer than the minimum."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="x")
        await rule(broker, min="1m")
        at = moment(world.clock.now_ms()) + MINUTE
        producer = await broker.producer("x", name="p")
        first = await producer.send(b"a", at=at, sequence=0, dedup="k")
        await producer.aclose()
        await world.clock.advance(seconds=30)
        again = await (await broker.producer("x")).send(b"a", at=at, dedup="k")
        assert (again.id, again.duplicate) == (first.id, True)
        repeated = await (await broker.producer("x", name="p")).send(b"a", at=at, sequence=0)
        assert repeated.duplicate
        with pytest.raises(DelayTooShort):
            await (await broker.producer("x")).send(b"b", at=at, dedup="l")


async def test_brokers_maximum_delay_stays_the_outer_bound(mock_clock: MockClock) -> None:
    """B10: also for a default and for a longer maximum."""
    config = BrokerConfig(limits=BrokerLimits(max_delay_ms=3_600_000), seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="x")
        await rule(broker, max="5h", default="2h")
        producer = await broker.producer("x")
        for options in ({}, {"delay": "3h"}):
            with pytest.raises(DelayTooLong, match="past the maximum delay of 1h"):
                await producer.send(b"late", **options)


async def test_delay_policy_has_no_effect_while_delays_are_disabled(mock_clock: MockClock) -> None:
    """B10, P2."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="x")
        await rule(broker, default="5m", min="1m")
        await broker.admin("namespaces.disable_delayed_message", **SPACE)
        producer = await broker.producer("x")
        await producer.send(b"bare")
        assert await due_in_s(world, broker, "x") == [0]
        with pytest.raises(DelaysDisabled):
            await producer.send(b"delayed", delay="5m")
        await broker.admin("namespaces.enable_delayed_message", **SPACE)
        await producer.send(b"bare")
        assert await due_in_s(world, broker, "x") == [0, 300]


async def test_reschedule_obeys_the_maximum_only(mock_clock: MockClock) -> None:
    """B10: a message may be brought forward; run-now obeys no policy."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        receipt = await producer.send(b"a", delay="10m")
        await rule(broker, min="5m", max="1h")
        with pytest.raises(DelayTooLong, match="The message has a delay of 2h"):
            await broker.reschedule(receipt, delay="2h")
        assert (await broker.reschedule(receipt, delay="1m"))[0].done
        assert (await broker.show(receipt)).due_at == moment(world.clock.now_ms()) + MINUTE
        assert (await broker.run_now(receipt))[0].done


async def test_follow_up_obeys_the_bounds_if_it_has_a_time(mock_clock: MockClock) -> None:
    """B10, Q10: a follow-up without a time is due when its group completes."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        await broker.admin("topics.create", topic="after")
        await rule(broker, "after", min="1m", default="1h")
        with pytest.raises(DelayTooShort, match="set by topic public/default/after"):
            await broker.groups.close("x", "g", "s", FollowUp(b"!", "after", delay="1s"))
        for group, delay in (("g", None), ("h", "2m")):
            await broker.groups.close("x", group, "s", FollowUp(b"!", "after", delay=delay))
        await world.clock.advance(seconds=2)
        assert [round(due_s) for due_s in await due_in_s(world, broker, "after")] == [-2, 118]


async def test_messages_that_the_broker_publishes_obey_no_delay_policy(
    mock_clock: MockClock,
) -> None:
    """B10: occurrences of schedules, dead letters and redriven messages have their own times."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        names = {"topic": "x", "subscription": "s"}
        await broker.admin("subscriptions.create", **names, policy={"max_deliveries": 1})
        await broker.schedules.create("beat", "beats", every=MINUTE)
        await (await broker.producer("x")).send(b"dead")
        await rule(broker, default="1h", min="30m")
        async with broker.consumer("x", "s") as inbox:
            await inbox.nack([m.id for m in await arrived(inbox)])
            await world.clock.advance(seconds=3)
            (letter,) = await broker.admin("dlq.list", **names)
            assert letter["due_at_ms"] <= world.clock.now_ms()
            await broker.admin("dlq.redrive", **names)
            await world.clock.advance(seconds=3)
            assert [m.payload for m in await arrived(inbox)] == [b"dead"]
        await world.clock.advance(seconds=60)
        assert await in_log(broker, "beats") == [b""]
        assert [due_s <= 0 for due_s in await due_in_s(world, broker, "beats")] == [True]
