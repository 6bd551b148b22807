"""A subscription with an order delivers the messages of a key by due time, then by offset.

Each test is an interleaving in which a message might be delivered before an earlier one of its key:
within a tick, while a retry waits, while the index or the log is being read, while ready is full,
or while the policy changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.keys.key_order import GATHER_MS
from escapement.client.consuming.inbox import Inbox
from escapement.clock import moment
from escapement.testing import World, arrived
from support.faults.held_calls import KEYS, Held

T = TypeVar("T")
TOPIC = "t/n/x"
FILL = "LogReader._read_due"
LONG_MS = 100 * 24 * 3_600_000
ORDERS = pytest.mark.parametrize("order", ["key", "topic"])


def config(**limits: int) -> BrokerConfig:
    return BrokerConfig(ack_wait_ms=LONG_MS, limits=BrokerLimits(**limits), seed=0)


async def ordered(
    broker: escapement.Broker,
    order: str = "key",
    tick_ms: int = 1000,
    granularity_ms: int = 60_000,
) -> escapement.Producer:
    """Return a producer of a topic that has a subscription with this order."""
    producer = await broker.producer(TOPIC)
    await broker.admin(
        "namespaces.enable_delayed_message",
        namespace="t/n",
        tick_ms=tick_ms,
        granularity_ms=granularity_ms,
    )
    names = {"topic": TOPIC, "subscription": "s"}
    await broker.admin("subscriptions.create", **names, policy={"order": order})
    return producer


async def drained(world: World, inbox: Inbox, seconds: float = 30) -> list[bytes]:
    """Consume and acknowledge everything that arrives while time passes."""
    values = []
    for _ in range(int(seconds * 10)):
        while messages := await arrived(inbox):
            values += [message.value for message in messages]
            await inbox.ack([message.id for message in messages], durable=True)
        await world.clock.advance(ms=100)
    return values


# -- within a tick -----------------------------------------------------------------------


@ORDERS
@pytest.mark.parametrize("tick_ms", [1000, 100, 10])
async def test_delayed_message_is_not_passed_within_its_tick(
    mock_clock: MockClock, tick_ms: int, order: str
) -> None:
    """Q9, V16: a message that is due when it is sent goes behind those that fell due before it."""
    async with testing.start(config=config()) as world, world.connect() as broker:
        producer = await ordered(broker, order, tick_ms)
        async with broker.consumer(TOPIC, "s") as inbox:
            await producer.send(b"A", key="a", delay=(tick_ms * 4 // 10, "ms"))
            await producer.send(b"later", key="a", delay=(tick_ms * 8 // 10, "ms"))
            await world.clock.advance(ms=tick_ms // 2)
            await producer.send(b"B", key="a")
            await world.clock.advance(ms=tick_ms // 10)
            await producer.send(b"C", key="a")
            assert await drained(world, inbox) == [b"A", b"B", b"C", b"later"]


async def test_topic_with_an_order_delivers_at_ticks_without_other_traffic(
    mock_clock: MockClock,
) -> None:
    """P5, P6: messages are delivered at the tick, and none before its due time."""
    async with testing.start(config=config()) as world, world.connect() as broker:
        producer = await ordered(broker)
        async with broker.consumer(TOPIC, "s") as inbox:
            await producer.send_many(
                [b"1", b"2"], keys=["a", "b"], delay=[(300, "ms"), (900, "ms")]
            )
            await world.clock.advance(ms=999)
            assert await arrived(inbox) == []
            await world.clock.advance(ms=1)
            assert [message.value for message in await arrived(inbox)] == [b"1", b"2"]
            await producer.send_many(
                [b"3", b"4"], keys=["c", "d"], delay=[(300, "ms"), (600, "ms")]
            )
            await world.clock.advance(ms=500)
            await producer.send(b"now", key="e")
            assert [message.value for message in await arrived(inbox)] == [b"3", b"now"]


async def test_acknowledgement_within_a_tick_lets_the_lowest_rank_go_next(
    mock_clock: MockClock,
) -> None:
    """V5, V16: a due, urgent message goes first, even before its tick."""
    async with testing.start(config=config()) as world, world.connect() as broker:
        producer = await ordered(broker)
        async with broker.consumer(TOPIC, "s") as inbox:
            await producer.send_many([b"first", b"second"], keys=["a", "a"])
            await producer.send(b"urgent", key="a", priority=10, delay=(200, "ms"))
            (first,) = await arrived(inbox)
            await world.clock.advance(ms=300)
            await first.ack(durable=True)
            assert await drained(world, inbox) == [b"urgent", b"second"]


@ORDERS
async def test_message_waiting_for_a_retry_is_not_passed(mock_clock: MockClock, order: str) -> None:
    """Q9: neither new messages nor messages that fall due pass it."""
    async with testing.start(config=config()) as world, world.connect() as broker:
        producer = await ordered(broker, order)
        async with broker.consumer(TOPIC, "s") as inbox:
            await producer.send(b"A", key="a", delay=(250, "ms"))
            await world.clock.advance(ms=300)
            await producer.send(b"B", key="a")
            (message,) = await arrived(inbox)
            assert message.value == b"A"
            await message.nack((256, "ms"))
            await producer.send(b"C", key="a", delay=(100, "ms"))
            await world.clock.advance(ms=255)
            await producer.send(b"D", key="a")
            assert await arrived(inbox) == []
            assert await drained(world, inbox) == [b"A", b"B", b"C", b"D"]


async def test_retry_comes_behind_a_lower_rank_that_fell_due_within_the_tick(
    mock_clock: MockClock,
) -> None:
    """V5, Q9: at the end of the back-off, all messages due by then are compared."""
    async with testing.start(config=config()) as world, world.connect() as broker:
        producer = await ordered(broker)
        async with broker.consumer(TOPIC, "s") as inbox:
            await producer.send(b"tried", key="a")
            await producer.send(b"urgent", key="a", priority=0, delay=(350, "ms"))
            (message,) = await arrived(inbox)
            await message.nack((400, "ms"))
            assert await drained(world, inbox) == [b"urgent", b"tried"]


async def test_order_enabled_later_applies_to_all_due_messages(
    mock_clock: MockClock,
) -> None:
    """Q9: messages that became ready out of order are read again in order."""
    async with testing.start(config=config()) as world, world.connect() as broker:
        producer = await ordered(broker, "any")
        async with broker.consumer(TOPIC, "s", permits=1) as inbox:
            await producer.send(b"A", key="a", delay=(456, "ms"))
            await producer.send(b"other")
            await world.clock.advance(ms=559)
            await producer.send(b"B", key="a")
            names = {"topic": TOPIC, "subscription": "s"}
            await broker.admin("subscriptions.update", **names, policy={"order": "key"})
            assert await drained(world, inbox) == [b"other", b"A", b"B"]


async def test_message_outside_every_key_range_is_not_passed(mock_clock: MockClock) -> None:
    """Q9, V16: once the last range is released, the messages of all ranges are in one order."""
    high = next(key for key in map(str, range(99)) if escapement.slot_of(key) >= 32_768)
    limits = config(ready_messages=4)
    async with testing.start(config=limits) as world, world.connect() as broker:
        producer = await ordered(broker, "topic")
        async with broker.consumer(TOPIC, "s", permits=1, key_range=(0, 32_767)) as inbox:
            await producer.send(b"first")
            assert len(await arrived(inbox)) == 1
            await producer.send(b"A", key=high)
            await producer.send_many([b"%d" % n for n in range(6)])  # more than ready holds
        async with broker.consumer(TOPIC, "s", permits=1) as inbox:
            expected = [b"first", b"A", *(b"%d" % n for n in range(6))]
            assert await drained(world, inbox) == expected


# -- while the index is read ---------------------------------------------------------------


async def test_messages_in_a_window_being_read_are_not_passed(mock_clock: MockClock) -> None:
    """Q9: messages fall due and others are published while a slow disk reads keys."""
    held = Held()
    async with testing.start(config=config(), run=held) as world, world.connect() as broker:
        producer = await ordered(broker, granularity_ms=10_000)
        await producer.send(b"A", key="a", delay=(61, "s"))
        await producer.send(b"C", key="a", delay=(63, "s"))
        await world.checkpoint()
        async with broker.consumer(TOPIC, "s") as inbox:
            with held.hold(KEYS):
                await world.clock.advance(seconds=62)
                await held.reached()
                await producer.send(b"B", key="a")
                assert await arrived(inbox) == []
            assert await drained(world, inbox) == [b"A", b"B", b"C"]


async def test_messages_in_a_window_not_yet_read_are_not_passed(mock_clock: MockClock) -> None:
    """Q9: the clock jumps past the horizon, and a message is published before the topic wakes."""
    async with testing.start(config=config()) as world, world.connect() as broker:
        producer = await ordered(broker)
        async with broker.consumer(TOPIC, "s") as inbox:
            await producer.send(b"A", key="a", delay=(1, "h"))
            world.clock.set_back(-2 * 3_600_000)
            await producer.send(b"B", key="a")
            assert await drained(world, inbox) == [b"A", b"B"]


async def test_backlog_being_read_is_not_passed(mock_clock: MockClock) -> None:
    """Q9: a message published while the last part of a backlog is read waits for that read."""
    held = Held()
    async with testing.start(config=config(), run=held) as world:
        async with world.connect() as broker:
            producer = await ordered(broker)
            await producer.send_many([b"A", b"B"], keys=["a", "a"])
        await world.stop()
        await world.restart()
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(world.connect())
            with held.hold(KEYS):
                inbox = await stack.enter_async_context(broker.consumer(TOPIC, "s"))
                await held.reached()
                await world.clock.advance(ms=5)
                async with await broker.producer(TOPIC) as producer:
                    await producer.send(b"C", key="a")
                await world.clock.advance(ms=GATHER_MS)
                assert await arrived(inbox) == []
            assert await drained(world, inbox) == [b"A", b"B", b"C"]


@pytest.mark.parametrize("ready_messages", [4, 100_000])
async def test_earlier_message_that_a_running_scan_misses_is_not_passed(
    mock_clock: MockClock, ready_messages: int
) -> None:
    """Q9: a message is rescheduled ahead of others while these are being read."""
    held = Held()
    limits = config(ready_messages=ready_messages)
    async with testing.start(config=limits, run=held) as world:
        async with world.connect() as broker:
            producer = await ordered(broker)
            await producer.send(b"first", key="a", delay=(1, "h"))
            await producer.send_many([b"%d" % n for n in range(9)], keys=["a"] * 9)
        await world.stop()
        await world.restart()
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(world.connect())
            with held.hold(KEYS):
                inbox = await stack.enter_async_context(broker.consumer(TOPIC, "s"))
                await held.reached()
                now = moment(world.clock.now_ms())
                (outcome,) = await broker.reschedule([0], at=now, topic=TOPIC)
                assert outcome.done
            assert await drained(world, inbox) == [b"first", *(b"%d" % n for n in range(9))]


async def test_earlier_message_that_finds_no_room_is_not_passed(mock_clock: MockClock) -> None:
    """Q9: a message is rescheduled ahead of all messages that fill ready."""
    limits = config(ready_messages=4)
    async with testing.start(config=limits) as world, world.connect() as broker:
        producer = await ordered(broker)
        async with broker.consumer(TOPIC, "s", permits=1) as inbox:
            await producer.send(b"other")
            await producer.send(b"first", key="a", delay=(1, "h"))
            await producer.send_many([b"%d" % n for n in range(9)], keys=["a"] * 9)
            now = moment(world.clock.now_ms())
            (outcome,) = await broker.reschedule([1], at=now, topic=TOPIC)
            assert outcome.done
            expected = [b"other", b"first", *(b"%d" % n for n in range(9))]
            assert await drained(world, inbox) == expected


# -- while the log is filled in --------------------------------------------------------------


async def test_messages_being_filled_in_from_the_log_are_not_passed(mock_clock: MockClock) -> None:
    """Q9: they go before messages published after the subscription began."""
    held = Held()
    async with testing.start(config=config(), run=held) as world, world.connect() as broker:
        producer = await broker.producer(TOPIC)
        policy = {"order": "key"}
        large = b"x" * 700_000
        await producer.send(b"A", key="a")
        await producer.send(large, key="b")
        # In another row of the log, which the filler reads in a separate step.
        await producer.send(b"B" + large, key="a")
        await world.checkpoint()
        names = {"topic": TOPIC, "subscription": "s"}
        async with AsyncExitStack() as stack:
            with held.hold(FILL):
                await broker.admin(
                    "subscriptions.create", **names, position="earliest", policy=policy
                )
                inbox = await stack.enter_async_context(broker.consumer(TOPIC, "s"))
                await held.reached()
                await producer.send(b"C", key="a")
                assert await arrived(inbox) == []
            found = await drained(world, inbox)
        assert [value[:1] for value in found if value != large] == [b"A", b"B", b"C"]


async def test_quota_drops_nothing_while_the_log_is_filled_in(mock_clock: MockClock) -> None:
    """P10, Q9: the oldest messages are not known yet, and later ones must not be dropped first."""
    held = Held()
    async with testing.start(config=config(), run=held) as world, world.connect() as broker:
        producer = await broker.producer(TOPIC)
        await broker.admin(
            "topics.update",
            topic=TOPIC,
            policy={"quota_messages": 3, "quota_action": "drop_oldest"},
        )
        await producer.send_many([b"0", b"1"], keys=["a"] * 2)
        await world.checkpoint()
        names = {"topic": TOPIC, "subscription": "s", "position": "earliest"}
        async with AsyncExitStack() as stack:
            with held.hold(FILL):
                await broker.admin("subscriptions.create", **names, policy={"order": "key"})
                await held.reached()
                await world.clock.advance(seconds=2)
                await producer.send_many([b"%d" % number for number in range(2, 9)], keys=["a"] * 7)
                await world.clock.advance(seconds=2)
                (row,) = await broker.admin("subscriptions.list", topic=TOPIC)
                assert row["dropped"] == 0
                inbox = await stack.enter_async_context(broker.consumer(TOPIC, "s"))
                assert await arrived(inbox) == []
            found = await drained(world, inbox)
        assert found == sorted(found)
        assert found[-3:] == [b"6", b"7", b"8"]


class HeldFill(Held):
    """Holds every read of a fill except the first."""

    reads = 0

    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T:
        if getattr(function, "__qualname__", "") == FILL:
            self.reads += 1
            if self.reads == 1:
                return function(*arguments)
        return await super().__call__(function, *arguments)


async def test_filled_in_messages_are_delivered_while_the_fill_goes_on(
    mock_clock: MockClock,
) -> None:
    """Q9: messages at the beginning of the log do not wait for rows accepted later."""
    held = HeldFill()
    async with testing.start(config=config(), run=held) as world, world.connect() as broker:
        producer = await broker.producer(TOPIC)
        await producer.send(b"A", key="a")
        await world.clock.advance(seconds=1)
        await producer.send(b"B", key="a")
        for n in range(3):
            await world.clock.advance(seconds=1)
            await producer.send(b"%d" % n * 1_100_000, key="b")
        await world.checkpoint()
        names = {"topic": TOPIC, "subscription": "s", "position": "earliest"}
        async with AsyncExitStack() as stack:
            with held.hold(FILL):
                await broker.admin("subscriptions.create", **names, policy={"order": "key"})
                inbox = await stack.enter_async_context(broker.consumer(TOPIC, "s"))
                await held.reached()
                (message,) = await arrived(inbox)
                assert message.value == b"A"
                await message.ack(durable=True)
                assert await arrived(inbox) == []
            found = await drained(world, inbox)
            assert [value[:1] for value in found] == [b"B", b"0", b"1", b"2"]
