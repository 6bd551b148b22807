"""A backlog quota that drops the oldest due messages instead of refusing new ones (P10)."""

from __future__ import annotations

import random

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.messages import received_messages
from support.messages.refused_publishes import refused

CALM = BrokerConfig(seed=0)
TIGHT = BrokerConfig(seed=0, limits=BrokerLimits(ready_messages=20))
NAMES = {"topic": "x", "subscription": "s"}
QUOTA = 30
KINDS = ["shared", "exclusive"]


async def begin(
    broker: escapement.Broker, most: int, kind: str = "shared", **policy: str | int
) -> None:
    """Create a subscription of a topic whose quota keeps at most ``most`` messages."""
    await broker.admin("subscriptions.create", **NAMES, kind=kind, policy=policy)
    quota = {"quota_messages": most, "quota_action": "drop_oldest"}
    await broker.admin("topics.update", topic="x", policy=quota)


async def figures(broker: escapement.Broker) -> tuple[int, int]:
    """Return the numbers of dropped and of unacknowledged messages."""
    rows = await broker.admin("subscriptions.list", topic="x")
    (row,) = (row for row in rows if row["subscription"] == NAMES["subscription"])
    return row["dropped"], row["unacknowledged"]


async def publish(broker: escapement.Broker, numbers: range, **how: str) -> None:
    """Publish the numbers as messages, in one batch."""
    producer = await broker.producer("x")
    await producer.send_many([b"%d" % number for number in numbers], **how)


async def values(inbox: escapement.Inbox) -> list[int]:
    """Acknowledge all messages that have arrived, and return their values."""
    return [int(value) for value in await received_messages.values(inbox)]


@pytest.mark.parametrize("kind", KINDS)
async def test_oldest_messages_are_dropped_down_to_the_quota(
    kind: str, mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P10: without traffic, from memory and from disk, and across a crash."""
    async with testing.start(config=TIGHT, engine=engine) as world:
        async with world.connect() as broker:
            await begin(broker, 100, kind)
            await publish(broker, range(250))
            await world.clock.advance(seconds=2)
            assert await figures(broker) == (150, 100)
            await world.checkpoint()
            await publish(broker, range(250, 270))
            await world.clock.advance(seconds=2)
            assert await figures(broker) == (170, 100)
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            await world.clock.advance(seconds=2)
            assert await figures(broker) == (0, 100)
            async with broker.consumer("x", "s", kind=kind) as inbox:
                assert await values(inbox) == list(range(170, 270))


@pytest.mark.parametrize("kind", KINDS)
async def test_in_flight_messages_are_kept_and_retrying_ones_are_dropped(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: a dropped message is not redelivered when its back-off ends."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await begin(broker, 10, kind, max_in_flight=8)
        async with broker.consumer("x", "s", kind=kind, ack_wait="1h") as inbox:
            await publish(broker, range(8))
            held = await arrived(inbox)
            assert len(held) == 8
            await inbox.nack([message.id for message in held[:4]], "10m")
            await publish(broker, range(8, 18))
            await world.clock.advance(seconds=2)
            dropped, pending = await figures(broker)
            assert (dropped, pending) == (8, 10)
            assert await inbox.ack([m.id for m in held[4:]], durable=True) == 4
            await world.clock.advance(minutes=11)
            assert await figures(broker) == (8, 6)


async def test_messages_that_fall_due_are_dropped_over_the_quota_without_traffic(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: messages that are not yet due are never dropped."""
    async with testing.start(config=TIGHT) as world, world.connect() as broker:
        await begin(broker, 10)
        await publish(broker, range(100), delay="1h")
        await world.checkpoint()
        await publish(broker, range(100, 200), delay="2h")
        await world.clock.advance(minutes=30)
        assert await figures(broker) == (0, 200)
        await world.clock.advance(minutes=31)
        assert await figures(broker) == (90, 110)
        await world.clock.advance(hours=1)
        async with broker.consumer("x", "s") as inbox:
            assert await values(inbox) == list(range(190, 200))


async def test_messages_before_an_exclusive_subscription_began_are_not_counted_twice(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: neither if they were cancelled, nor if this subscription acknowledges them."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="x")
        await publish(broker, range(10), delay="1h")
        await broker.cancel(range(4), topic="x")
        await begin(broker, 5, "exclusive")
        async with broker.consumer("x", "s", kind="exclusive", permits=1) as inbox:
            await inbox.ack([4, 5, 6], durable=True)
        await publish(broker, range(10, 30))
        await world.clock.advance(seconds=2)
        async with broker.consumer("x", "s", kind="exclusive") as inbox:
            assert await values(inbox) == list(range(25, 30))


async def test_acknowledged_messages_still_in_the_index_cause_no_drops(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: the broker counts exactly before it drops messages."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await begin(broker, 100)
            await publish(broker, range(1_000), delay="9h")
            async with broker.consumer("x", "s") as inbox:
                await broker.admin("topics.update", topic="x", policy={"quota_messages": 0})
                await publish(broker, range(500))
                await world.checkpoint()
                assert len(await values(inbox)) == 500
                await inbox.flush_acks()
            await broker.admin("topics.update", topic="x", policy={"quota_messages": 100})
            await publish(broker, range(90))
            await world.clock.settle()
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            await publish(broker, range(90, 95))
            await world.clock.advance(seconds=3)
            assert await figures(broker) == (0, 1_095)


@pytest.mark.parametrize("kind", KINDS)
async def test_dropped_messages_are_dead_lettered_if_configured(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: once each, with the reason and the number of attempts."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await begin(broker, 5, kind, dropped_to_dead_letter="yes")
        async with broker.consumer("x", "s", kind=kind) as inbox:
            await publish(broker, range(1))
            (message,) = await arrived(inbox)
            await message.nack("1h")
            await world.clock.settle()
        await publish(broker, range(1, 30))
        await world.clock.advance(seconds=5)
        rows = await broker.admin("dlq.list", **NAMES, count=100)
        assert {row["reason"] for row in rows} == {"dropped"}
        assert sorted(row["attempts"] for row in rows) == [0] * 24 + [1]
        assert await figures(broker) == (25, 5)
        await world.clock.advance(hours=2)
        assert await figures(broker) == (25, 5)


async def test_publish_is_refused_only_when_dropping_cannot_meet_the_quota(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: if delayed messages count, they alone may reach the quota."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await begin(broker, 100)
        await broker.admin("topics.update", topic="x", policy={"quota_counts": "all"})
        await publish(broker, range(60), delay="1h")
        await publish(broker, range(60))
        await world.clock.advance(seconds=2)
        assert await figures(broker) == (20, 100)
        await publish(broker, range(60, 100), delay="1h")
        await world.clock.advance(seconds=2)
        assert await figures(broker) == (60, 100)
        assert await refused(world, broker)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("change", ["none", "cancelled", "moved"])
async def test_delayed_messages_are_counted_exactly_before_dropping(
    change: str, whole: bool, mock_clock: trio.testing.MockClock
) -> None:
    """P10: the index also holds cancelled messages and former due times."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        prefix = "total_" if whole else ""
        quota = {f"{prefix}quota_messages": 100, "quota_action": "drop_oldest"}
        policy = {**quota, "quota_counts": "all"}
        await broker.admin("namespaces.update", namespace="public/default", policy=policy)
        await publish(broker, range(60), delay="300d")
        await publish(broker, range(20))
        await world.checkpoint()
        if change == "cancelled":
            assert (await broker.cancel(range(30), topic="x")).done.all()
        elif change == "moved":
            assert (await broker.reschedule(range(60), topic="x", delay="200d")).done.all()
        await publish(broker, range(20))
        await world.checkpoint()
        await world.clock.advance(seconds=5)
        kept = 70 if change == "cancelled" else 100
        assert await figures(broker) == (0, kept)
        await publish(broker, range(40))
        await world.clock.advance(seconds=5)
        assert await figures(broker) == (kept + 40 - 100, 100)


async def test_exclusive_subscription_counts_a_delayed_message_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: a delayed message is also one of the messages that the subscription will get."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await begin(broker, 100, "exclusive")
        await broker.admin("topics.update", topic="x", policy={"quota_counts": "all"})
        await publish(broker, range(60), delay="300d")
        await publish(broker, range(40))
        await world.clock.advance(seconds=5)
        assert await figures(broker) == (0, 100)
        await publish(broker, range(30))
        await world.clock.advance(seconds=5)
        assert await figures(broker) == (30, 100)


async def test_cancelled_messages_do_not_count_for_an_exclusive_subscription(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: the index still holds them as delayed messages."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await begin(broker, 3, "exclusive")
        await broker.admin("topics.update", topic="x", policy={"quota_counts": "all"})
        producer = await broker.producer("x")
        receipts = await producer.send_many([b"0"] * 5, delay="1h")
        await broker.cancel(receipts.offsets, topic="x")
        await publish(broker, range(4))
        await world.clock.advance(seconds=5)
        assert await figures(broker) == (1, 3)


@pytest.mark.parametrize("change", ["due", "moved", "cancelled"])
async def test_acknowledged_message_stops_counting_once_it_is_no_longer_delayed(
    change: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: even if no shared subscription waits for it and no message is published."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await begin(broker, 0, "exclusive")
        await publish(broker, range(1), delay="1m")
        await publish(broker, range(1, 6), delay="1h")
        await publish(broker, range(6, 7))
        async with broker.consumer("x", "s", kind="exclusive", permits=1) as inbox:
            assert await inbox.ack([0], durable=True) == 1
        if change == "cancelled":
            await broker.admin("subscriptions.create", topic="x", subscription="t")
        policy = {"quota_messages": 3, "quota_counts": "all"}
        await broker.admin("topics.update", topic="x", policy=policy)
        await world.clock.advance(seconds=5)
        assert await figures(broker) == (0, 6)
        if change == "moved":
            assert (await broker.reschedule([0], topic="x", delay="1s")).done.all()
        elif change == "cancelled":
            assert (await broker.cancel([0], topic="x")).done.all()
        await world.clock.advance(seconds=80 if change == "due" else 5)
        assert await figures(broker) == (1, 5)


@pytest.mark.parametrize("whole", [False, True], ids=["topic", "namespace"])
async def test_setting_the_clock_back_does_not_postpone_drops(
    whole: bool, mock_clock: trio.testing.MockClock
) -> None:
    """P10: the second between two checks of a quota does not depend on the wall clock."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, kind="exclusive")
        quota = "total_quota_messages" if whole else "quota_messages"
        policy = {quota: 5, "quota_action": "drop_oldest"}
        await broker.admin("namespaces.update", namespace="public/default", policy=policy)
        await publish(broker, range(10))
        await world.clock.advance(seconds=2)
        assert await figures(broker) == (5, 5)
        await publish(broker, range(10, 12))
        world.clock.set_back(3_600_000)
        await world.clock.advance(seconds=5)
        await publish(broker, range(12, 20))
        await world.clock.advance(seconds=5)
        assert await figures(broker) == (15, 5)


async def test_drop_that_failed_during_a_database_outage_happens_afterwards(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: the failed log read is repeated, although no further message arrives."""
    outage = Outage()
    async with testing.start(config=CALM, engine=outage.engine) as world:
        async with world.connect() as broker:
            await begin(broker, 5, "exclusive")
            await publish(broker, range(10))
            await world.clock.advance(seconds=2)
            # The broker checks the quota for the first batch now, for the second a second later.
            await publish(broker, range(10, 12))
            await publish(broker, range(12, 14))
            outage.unreachable()
            await world.clock.advance(seconds=2)
            assert await figures(broker) == (7, 7)
            outage.over()
            await world.clock.advance(seconds=5)
            assert await figures(broker) == (9, 5)


async def test_drops_beyond_the_bound_of_dead_messages_wait_for_dead_lettering(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: dead messages wait in memory while the database is away, in bounded number."""
    outage = Outage()
    async with testing.start(config=TIGHT, engine=outage.engine) as world:
        async with world.connect() as broker:
            await begin(broker, 5, dropped_to_dead_letter="yes")
            await publish(broker, range(30), delay="3s")
            await publish(broker, range(30, 60), delay="6s")
            outage.unreachable()
            await world.clock.advance(seconds=8)
            dropped, _ = await figures(broker)
            assert dropped == 25
            outage.over()
            await world.clock.advance(seconds=10)
            assert await figures(broker) == (55, 5)


async def test_byte_quota_uses_the_mean_size_also_after_a_restart(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await begin(broker, 0)
            await broker.admin("topics.update", topic="x", policy={"quota_bytes": "100KiB"})
            producer = await broker.producer("x")
            await producer.send_many([bytes(1_000)] * 90)
            await world.checkpoint()
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            await world.clock.advance(seconds=2)
            assert await figures(broker) == (0, 90)
            producer = await broker.producer("x")
            await producer.send_many([bytes(1_000)] * 90)
            await world.clock.advance(seconds=2)
            dropped, pending = await figures(broker)
            assert dropped + pending == 180
            assert 95 <= pending <= 105


async def let_time_pass(
    world: World,
    inbox: escapement.Inbox,
    kind: str,
    due: dict[int, int],
    held: dict[int, escapement.Message],
) -> dict[int, int]:
    """Let time pass, and return the messages left: the oldest ones not in flight are dropped.

    Messages that arrive are added to ``held``.
    """
    held |= {int(message.value): message for message in await arrived(inbox)}
    await world.clock.advance(seconds=3)
    held |= {int(message.value): message for message in await arrived(inbox)}
    assert held.keys() <= due.keys(), "a dropped message was delivered"
    now_ms, in_log_order = world.clock.now_ms(), kind == "exclusive"
    counts = [one for one in due if in_log_order or due[one] <= now_ms]
    at_rest = [one for one in counts if one not in held]
    at_rest.sort(key=lambda one: (0 if in_log_order else due[one], one))
    gone = set(at_rest[: max(len(counts) - QUOTA, 0)])
    return {one: due_ms for one, due_ms in due.items() if one not in gone}


async def play(world: World, broker: escapement.Broker, chance: random.Random, kind: str) -> None:
    """Run a random history. After each step, only the newest messages of the quota are left."""
    due: dict[int, int] = {}  # number -> due time, of pending messages
    held: dict[int, escapement.Message] = {}
    number = 0
    producer = await broker.producer("x")
    async with broker.consumer("x", "s", kind=kind, ack_wait="90d") as inbox:
        for _ in range(25):
            count, delay_s = chance.randrange(1, 25), chance.choice([0, 0, 0, 2, 5])
            numbers = range(number, number + count)
            number += count
            priority = chance.choice([50, 50, 10, 90])
            now_ms = world.clock.now_ms()
            for one in numbers:
                await producer.submit(b"%d" % one, delay=f"{delay_s}s", priority=priority)
            await producer.flush()
            due |= dict.fromkeys(numbers, now_ms + delay_s * 1000)
            due = await let_time_pass(world, inbox, kind, due, held)
            assert (await figures(broker))[1] == len(due)
            for one in chance.sample(sorted(held), chance.randrange(len(held) + 1)):
                message = held.pop(one)
                if chance.random() < 0.5:
                    await inbox.ack(message.id, durable=True)
                    del due[one]
                else:
                    await message.nack(chance.choice(["0s", "1h"]))
            if chance.random() < 0.2:
                await world.checkpoint()
            due = await let_time_pass(world, inbox, kind, due, held)
            assert (await figures(broker))[1] == len(due)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
async def test_random_history_keeps_the_newest_messages(
    kind: str, seed: int, mock_clock: trio.testing.MockClock
) -> None:
    """P10: with priorities, delays, retries and checkpoints, against a simple model."""
    async with testing.start(config=TIGHT) as world, world.connect() as broker:
        await begin(broker, QUOTA, kind, max_in_flight=3)
        await play(world, broker, random.Random(seed), kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["sought", "made"])
async def test_seek_or_new_subscription_at_earliest_is_cut_to_the_quota(
    how: str, kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: both lengthen the backlog without any traffic."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await begin(broker, 10, kind)
        await publish(broker, range(50))
        async with broker.consumer("x", "s", kind=kind) as inbox:
            await values(inbox)
        await world.checkpoint()
        await world.clock.advance(seconds=5)
        if how == "made":
            await broker.admin("subscriptions.delete", **NAMES)
            await broker.admin("subscriptions.create", **NAMES, kind=kind, position="earliest")
        else:
            await broker.admin("subscriptions.seek", **NAMES, position="earliest")
        await world.clock.advance(seconds=3)
        _, pending = await figures(broker)
        assert pending == 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["leave", "nack", "timeout"])
async def test_messages_no_longer_in_flight_are_dropped_over_the_quota(
    how: str, kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: they were in flight when the quota was checked, and no message arrives afterwards."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await begin(broker, 10, kind)
        async with broker.consumer("x", "s", kind=kind, ack_wait="10s", permits=50) as inbox:
            await publish(broker, range(50))
            held = await arrived(inbox)
            assert len(held) == 50
            await world.clock.advance(seconds=3)
            assert await figures(broker) == (0, 50)
            if how == "nack":
                await inbox.nack([message.id for message in held], "1h")
            elif how == "timeout":
                await world.clock.advance(seconds=8)
            if how != "leave":
                await world.clock.advance(seconds=3)
                assert await figures(broker) == (40, 10)
        await world.clock.advance(seconds=3)
        assert await figures(broker) == (40, 10)
