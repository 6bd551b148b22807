"""The delivery order of a shared subscription: by priority, by key, or one message at a time."""

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
    """Return a producer of a topic that has a subscription without a consumer."""
    async with broker.consumer("x", "s"):
        return await broker.producer("x")


async def taken(broker: escapement.Broker) -> list[escapement.Message]:
    """Return the messages that one consumer with a credit of one gets, in order, acknowledged."""
    async with broker.consumer("x", "s", permits=1) as inbox:
        messages = await arrived(inbox)
        await inbox.ack([message.id for message in messages], durable=True)
        return messages


def priorities_of(messages: Sequence[escapement.Message]) -> list[int]:
    return [message.priority for message in messages]


async def test_messages_due_together_are_delivered_by_priority(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V5: single sends, batches, delayed or not. Lower priorities first; the default is 50."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await subscribed(broker)
        in_a_minute = timedelta(minutes=1)
        await producer.send_many([b""] * 4, priorities=[60, 10, 255, 49], delay=in_a_minute)
        await producer.send(b"", delay=in_a_minute)
        await producer.send(b"", delay=in_a_minute, priority=0)
        await producer.message(b"").priority(51).delay_at(1, "minutes").send()
        await world.clock.advance(minutes=1)
        assert priorities_of(await taken(broker)) == [0, 10, 49, 50, 51, 60, 255]


async def test_low_priority_message_waits_a_bounded_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V5: one second per priority step, unless the subscription sets priority_ageing_ms."""
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
async def test_long_backlog_of_one_priority_does_not_hold_up_another(
    end: str, mock_clock: trio.testing.MockClock
) -> None:
    """V5: many more messages than ready holds, in memory and on disk, also after a restart."""
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
            # The first scan of the backlog does not reach all of it; a few more scans do.
            settled = found[100:]
            assert {10, 20, 50, 200} == set(settled)
            assert settled == sorted(settled)


@pytest.mark.parametrize("end", ["crash", "checkpoint", "stop"])
async def test_retried_messages_keep_their_priority(
    end: str, mock_clock: trio.testing.MockClock
) -> None:
    """V5, V16: from the wheel of retries, the journal, or the attempts of a checkpoint."""
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
async def test_exclusive_and_failover_subscriptions_ignore_priorities(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """V5: they deliver in the order of the log."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", kind=kind) as inbox:
            await producer.send_many([b""] * 4, priorities=[60, 10, 255, 49])
            assert priorities_of(await arrived(inbox)) == [60, 10, 255, 49]


# -- keys ------------------------------------------------------------------------------


async def with_policy(broker: escapement.Broker, **policy: object) -> escapement.Producer:
    """Return a producer of a topic that has a subscription with this policy."""
    await broker.admin("subscriptions.create", topic="x", subscription="s", policy=policy)
    return await broker.producer("x")


def values_of(messages: Sequence[escapement.Message]) -> list[bytes]:
    return [message.value for message in messages]


async def test_consumers_get_the_keys_of_their_ranges(mock_clock: trio.testing.MockClock) -> None:
    """V16: keys outside all ranges wait. Messages without a key go to any consumer."""
    async with testing.start(config=SMALL) as world, world.connect() as broker:
        producer = await subscribed(broker)
        keys = [f"user-{n}" for n in range(400)]
        low = [key.encode() for key in keys if escapement.slot_of(key) < 20_000]
        high = [key.encode() for key in keys if escapement.slot_of(key) >= 20_000]
        await producer.send_many([key.encode() for key in keys], keys=keys)
        async with broker.consumer("x", "s", key_range=(0, 19_999), name="low") as inbox:
            messages = await arrived(inbox)
            assert values_of(messages) == low
            await inbox.ack([message.id for message in messages], durable=True)
            with pytest.raises(escapement.Conflict, match="which low has"):
                async with broker.consumer("x", "s", key_range=(19_999, 30_000)):
                    pass
            await producer.send(b"no key")
            assert values_of(await arrived(inbox)) == [b"no key"]
            async with broker.consumer("x", "s", key_range=(20_000, 65_535)) as other:
                assert values_of(await arrived(other)) == high
        for wanted in ((0, 65_536), (5, 4), "some", (1, 2, 3)):
            with pytest.raises(escapement.InvalidRequest, match="is not a key range"):
                async with broker.consumer("x", "s", key_range=wanted):  # type: ignore[arg-type]
                    pass
        with pytest.raises(escapement.InvalidRequest, match="only shared subscriptions"):
            async with broker.consumer("x", "log", kind="exclusive", key_range="auto"):
                pass


async def test_idle_consumer_holds_up_no_other_key_range(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V16: it may have many ready messages, and gets all of them in order once it takes them."""
    async with testing.start(config=SMALL) as world, world.connect() as broker:
        producer = await subscribed(broker)
        keys = [f"user-{n}" for n in range(60)]
        low = [key for key in keys if escapement.slot_of(key) < 20_000]
        high = [key for key in keys if escapement.slot_of(key) >= 20_000]
        stuck = broker.consumer("x", "s", key_range=(0, 19_999), permits=5)
        async with stuck as idle, broker.consumer("x", "s", key_range=(20_000, 65_535)) as inbox:
            numbers = [b"%d" % n for n in range(1500)]
            await producer.send_many(numbers, keys=[low[n % len(low)] for n in range(1500)])
            for later in range(3):
                await producer.send_many([b"high"] * 300, keys=[high[n % 3] for n in range(300)])
                await world.clock.advance(seconds=1 if later == 0 else 0)
                messages = await arrived(inbox)
                assert values_of(messages) == [b"high"] * 300
                await inbox.ack([message.id for message in messages], durable=True)
            found: list[bytes] = []
            while len(found) < 1500:
                messages = await arrived(idle)
                found += values_of(messages)
                await idle.ack([message.id for message in messages], durable=True)
                if not messages:
                    await world.clock.advance(seconds=1)
            assert found == numbers


async def test_key_ranges_are_reassigned_when_consumers_join_and_leave(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V16: in-flight messages stay with their consumer and hold their keys until acknowledged."""
    async with testing.start(config=SMALL) as world, world.connect() as broker:
        producer = await with_policy(broker, order="key")
        keys = [f"user-{n}" for n in range(40)]
        async with broker.consumer("x", "s", key_range="auto") as first:
            await producer.send_many([b"1"] * 40, keys=keys)
            held = await arrived(first)
            assert len(held) == 40
            async with broker.consumer("x", "s", key_range="auto") as second:
                await producer.send_many([b"2"] * 40, keys=keys)
                assert await arrived(first) == await arrived(second) == []
                await first.ack([message.id for message in held], durable=True)
                mine, yours = await arrived(first), await arrived(second)
                assert len(mine) + len(yours) == 40
                assert mine
                assert yours
                assert max(escapement.slot_of(m.key or "") for m in mine) < min(
                    escapement.slot_of(m.key or "") for m in yours
                )
            again = await arrived(first)
            assert {m.offset for m in again} == {m.offset for m in yours}


@pytest.mark.parametrize("end", ["live", "crash", "checkpoint", "stop"])
async def test_message_waiting_for_a_retry_holds_only_its_own_key(
    end: str, mock_clock: trio.testing.MockClock
) -> None:
    """Q9, V16: also across restarts."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            producer = await with_policy(broker, order="key")
            await producer.send_many(
                [b"a1", b"a2", b"b1", b"b2", b"-", b"-"], keys=["a", "a", "b", "b", None, None]
            )
            async with broker.consumer("x", "s") as inbox:
                a, b, *unkeyed = await arrived(inbox)
                assert (a.value, b.value, len(unkeyed)) == (b"a1", b"b1", 2)
                await b.ack(durable=True)
                await a.nack(timedelta(seconds=30))
                (b,) = await arrived(inbox)
                assert b.value == b"b2"
                await inbox.ack([m.id for m in (b, *unkeyed)], durable=True)
            if end == "checkpoint":
                await world.checkpoint()
        if end != "live":
            await (world.stop() if end == "stop" else world.crash())
            await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            await world.clock.advance(seconds=29)
            assert await arrived(inbox) == []
            await world.clock.advance(seconds=2)
            (a,) = await arrived(inbox)
            assert (a.value, a.attempt) == (b"a1", 2)
            await a.nack(timedelta(hours=1))
            skip = {"topic": "x", "subscription": "s", "policy": {"on_retry": "skip"}}
            await broker.admin("subscriptions.update", **skip)
            assert values_of(await arrived(inbox)) == [b"a2"]


async def test_ready_message_is_not_held_up_by_one_due_later(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V16: the order of a key is by due time, among due messages only."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await with_policy(broker, order="key")
        await producer.send(b"later", key="a", delay=timedelta(hours=1))
        await producer.send(b"now", key="a")
        async with broker.consumer("x", "s") as inbox:
            assert values_of(await arrived(inbox)) == [b"now"]


@pytest.mark.parametrize("on_retry", ["hold", "skip"])
async def test_topic_order_keeps_one_message_in_flight_at_a_time(
    on_retry: str, mock_clock: trio.testing.MockClock
) -> None:
    """Q9: by due time, across all consumers."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await with_policy(broker, order="topic", on_retry=on_retry)
        await producer.send_many([b"0", b"1", b"2"], keys=["a", "b", None])
        async with broker.consumer("x", "s") as one, broker.consumer("x", "s") as two:
            (first,) = await arrived(one) + await arrived(two)
            assert first.value == b"0"
            await first.nack(timedelta(minutes=1))
            found = await arrived(one) + await arrived(two)
            assert values_of(found) == ([] if on_retry == "hold" else [b"1"])
            await world.clock.advance(minutes=1, ms=10)
            order = [b"0", b"1", b"2"] if on_retry == "hold" else [b"0", b"2"]
            for value in order:
                for message in found:
                    await message.ack(durable=True)
                found = await arrived(one) + await arrived(two)
                assert values_of(found) == [value]


async def test_keys_without_an_order_hold_up_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V16: only the order policy makes messages of one key wait for each other."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await subscribed(broker)
        await producer.send_many([b""] * 50, keys=["a"] * 50)
        assert [message.offset for message in await taken(broker)] == list(range(50))


async def test_dead_message_holds_up_no_other_message(mock_clock: trio.testing.MockClock) -> None:
    """Q9: a message that fails its last attempt releases its key."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await with_policy(broker, order="topic", max_deliveries=1)
        await producer.send_many([b"bad", b"good"])
        async with broker.consumer("x", "s") as inbox:
            (bad,) = await arrived(inbox)
            await bad.nack(timedelta(hours=1))
            assert values_of(await arrived(inbox)) == [b"good"]
