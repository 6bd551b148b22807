"""Backlogs that are read during delivery, and messages that are read ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.due_subscription import DueSubscription
from escapement.broker.subscription.priorities.bands import Scan
from escapement.broker.subscription.priorities.staged import Staged
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep import drop_oldest
from escapement.broker.upkeep.drop_oldest import DropOldest
from escapement.client.broker import Broker
from escapement.client.consuming.inbox import Inbox
from escapement.client.producing.producer import Producer
from escapement.message import Blobs, MessageBatch, MessageId, Times
from escapement.storage.index import Key
from escapement.testing import arrived
from support.faults.held_calls import KEYS, Held

LONG_MS = 100 * 24 * 3_600_000
SMALL = BrokerLimits(ready_messages=8, deliver_messages=4)


async def offsets(inbox: Inbox) -> list[int]:
    return [message.offset for message in await arrived(inbox)]


async def test_ready_messages_are_delivered_while_the_backlog_is_read(
    mock_clock: MockClock,
) -> None:
    """V3, P3: a slow disk delays only the messages on it, not those in memory."""
    held = Held()
    config = BrokerConfig(ack_wait_ms=LONG_MS, limits=SMALL, seed=0)
    async with testing.start(run=held, config=config) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with await broker.producer("t") as producer:
            await producer.send_many([b"%d" % n for n in range(40)], delay=(1, "s"))
        await world.clock.advance(seconds=2)
        await world.checkpoint()
        seen: list[int] = []
        async with broker.consumer("t", "s") as inbox:
            with held.hold(KEYS):
                await held.reached()
                seen += await offsets(inbox)
                assert seen == list(range(8)), "the messages that fit in ready"
            while more := await offsets(inbox):
                seen += more
        assert seen == list(range(40))


async def test_nothing_passes_a_more_urgent_band_that_is_being_read(
    mock_clock: MockClock,
) -> None:
    """V5: the urgent band has no ready messages and more in the index, so other bands wait."""
    held = Held()
    config = BrokerConfig(ack_wait_ms=LONG_MS, limits=SMALL, seed=0)
    async with testing.start(run=held, config=config) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with await broker.producer("t") as producer:
            await producer.send_many([b""] * 30, priorities=[10] * 15 + [90] * 15, delay=(1, "s"))
        await world.clock.advance(seconds=2)
        await world.checkpoint()
        seen: list[int] = []
        async with broker.consumer("t", "s", permits=1) as inbox:
            with held.hold(KEYS):
                seen += await offsets(inbox)
                await held.reached()
                # The ready messages are delivered, and no others while the rest is read.
                assert seen == list(range(8))
            while messages := await arrived(inbox):
                seen += [message.offset for message in messages]
                await inbox.ack([message.id for message in messages], durable=True)
        assert seen == list(range(30))


async def test_many_messages_due_together_are_read_before_delivery(
    mock_clock: MockClock,
) -> None:
    """V5, V3: a large offer is read first and sorted by priority; a small one does not wait."""
    held = Held()
    limits = BrokerLimits(large_offer=20)
    config = BrokerConfig(ack_wait_ms=LONG_MS, limits=limits, seed=0)
    async with testing.start(run=held, config=config) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with await broker.producer("t") as producer, broker.consumer("t", "s") as inbox:
            await producer.send_many([b""] * 19, priorities=list(range(60, 79)), delay=(1, "s"))
            await producer.send_many([b""] * 30, priorities=list(range(90, 60, -1)), delay=(9, "s"))
            await world.checkpoint()
            with held.hold(KEYS):
                await world.clock.advance(seconds=2)
                assert await offsets(inbox) == list(range(19)), "a small offer waits for no read"
                await world.clock.advance(seconds=8)
                await held.reached()
                assert await offsets(inbox) == []
            assert await offsets(inbox) == list(range(48, 18, -1))


# A piece is 4,096 messages of about 40 bytes each.
PIECE_BYTES = 4_096 * 40


@pytest.mark.parametrize("staged_bytes", [0, 200_000, 96 << 20])
async def test_messages_read_ahead_are_delivered_unchanged(
    autojump_clock: MockClock, staged_bytes: int
) -> None:
    """V5, V16: with room for no message, for some and for all. Each payload matches its offset."""
    count = 20_000
    rng = np.random.default_rng(5)
    limits = BrokerLimits(ready_messages=5_000, staged_bytes=staged_bytes)
    config = BrokerConfig(ack_wait_ms=LONG_MS, limits=limits, seed=0)
    keys = [b"k%d" % key for key in rng.integers(0, 500, count).tolist()]
    payloads = [b"%d %s" % (n, b"x" * (n % 50)) for n in range(count)]
    batch = MessageBatch(
        Blobs.of(payloads), Blobs.of(keys), None, rng.integers(0, 256, count, dtype=np.uint8)
    )
    async with testing.start(config=config) as world, world.connect() as broker:
        policy = {"order": "key"}
        await broker.admin("subscriptions.create", topic="t", subscription="s", policy=policy)
        async with await broker.producer("t") as producer:
            for first in range(0, count, 1_000):
                part = np.arange(first, first + 1_000)
                await producer.send_batch(
                    batch.take(part), Times(1_000 + rng.integers(0, 100, 1_000))
                )
        await world.checkpoint()
        seen = np.zeros(count, bool)
        async with broker.consumer("t", "s", permits=3_000) as inbox:
            while not seen.all():
                got = await inbox.next_batch(60.0)
                assert got is not None
                failed = (got.attempts == 1) & (got.offsets % 10 == 0)
                if failed.any():
                    await inbox.nack(got.offsets[failed], (1, "ms"))
                assert not seen[got.offsets].any()
                seen[got.offsets[~failed]] = True
                found = [message.payload for message in got]
                assert found == [payloads[offset] for offset in got.offsets.tolist()]
                if not failed.all():
                    await inbox.ack(got.offsets[~failed])
        (topic,) = world.server.registry.active.values()
        staged = topic.shared["s"].staged
        # The map of offsets is not included: it is larger than its entries.
        messages_bytes = staged.size_bytes - staged._positions.size_bytes
        assert messages_bytes <= staged_bytes
        assert (messages_bytes > 0) == (staged_bytes > 0)


async def test_topic_can_be_deleted_while_its_messages_are_read_ahead(
    mock_clock: MockClock,
) -> None:
    """N6: the missing messages cause no error."""
    held = Held()
    config = BrokerConfig(ack_wait_ms=LONG_MS, limits=SMALL, seed=0)
    async with testing.start(run=held, config=config) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with await broker.producer("t") as producer:
            await producer.send_many([b""] * 30, priorities=list(range(30)), delay=(1, "s"))
        await world.clock.advance(seconds=2)
        await world.checkpoint()
        async with broker.consumer("t", "s"):
            with held.hold(KEYS):
                await held.reached()
                await broker.admin("topics.delete", topic="t", force=True)
        assert (await broker.admin("topics.list"))["topics"] == []
        await world.clock.advance(seconds=1)


async def test_messages_over_a_quota_are_dropped_while_readers_are_busy(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: a read that waits for its turn keeps waiting while messages are dropped.

    Otherwise two scans of one band would run at once.
    """
    dropping: list[Subscription] = []
    begun: list[bool] = []
    drop, next_scan = DropOldest.drop, DueSubscription.next_scan

    async def drop_watched(self: DropOldest, topic: Topic, subscription: Subscription) -> None:
        dropping.append(subscription)
        await drop(self, topic, subscription)
        dropping.remove(subscription)

    def scan_watched(self: DueSubscription, frontier: Key, now_ms: int) -> Scan | None:
        begun.append(self in dropping)
        return next_scan(self, frontier, now_ms)

    monkeypatch.setattr(DropOldest, "drop", drop_watched)
    monkeypatch.setattr(DueSubscription, "next_scan", scan_watched)
    monkeypatch.setattr(drop_oldest, "_STEP_KEYS", 20)  # so that counting takes several steps
    held = Held()
    config = BrokerConfig(ack_wait_ms=LONG_MS, limits=SMALL, seed=0)
    async with testing.start(run=held, config=config) as world, world.connect() as broker:
        for name in "abcdx":
            await broker.admin("subscriptions.create", topic=name, subscription="s")
            async with await broker.producer(name) as producer:
                await producer.send_many([b""] * 300, delay=(1, "s"))
        await world.clock.advance(seconds=2)
        await world.checkpoint()
        async with AsyncExitStack() as stack:
            with held.hold(KEYS):
                for name in "abcdx":  # one more than the number of readers
                    inbox = await stack.enter_async_context(broker.consumer(name, "s"))
                    assert await arrived(inbox) == []
                policy = {"quota_messages": 5, "quota_action": "drop_oldest"}
                await broker.admin("topics.update", topic="x", policy=policy)
                await world.clock.advance(seconds=2)
            await world.clock.advance(seconds=2)
            (row,) = await broker.admin("subscriptions.list", topic="x")
            assert (row["dropped"], row["unacknowledged"]) == (295, 5)
    assert begun
    assert not any(begun)


async def test_large_messages_read_ahead_stay_within_the_bound(
    autojump_clock: MockClock,
) -> None:
    """Invariant 9: the broker knows the sizes of messages only after it has read them."""
    limits = BrokerLimits(staged_bytes=1_000_000, deliver_messages=64)
    config = BrokerConfig(ack_wait_ms=LONG_MS, limits=limits, seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        policy = {"order": "key"}
        await broker.admin("subscriptions.create", topic="t", subscription="s", policy=policy)
        async with await broker.producer("t") as producer:
            for _ in range(4):
                await producer.send_many([b"x" * 20_000] * 100, keys=["k"] * 100, delay=(1, "s"))
            await producer.send_many([b""] * 3_000, keys=["k"] * 3_000, delay=(2, "s"))
        await world.checkpoint()
        await trio.sleep(10)
        await world.crash()
        await world.restart()
        async with world.connect() as again, again.consumer("t", "s") as inbox:
            for _ in range(3):
                got = await inbox.next_batch(60.0)
                assert got is not None
                await inbox.ack(got.offsets)
            (topic,) = world.server.registry.active.values()
            assert topic.shared["s"].staged.size_bytes <= 1_000_000 + 64 * 20_100


class OneBehindAnother(NamedTuple):
    """A message that is ready and waits for the message of its key that is in flight."""

    world: testing.World
    broker: Broker
    producer: Producer
    inbox: Inbox
    waiting: MessageId


@asynccontextmanager
async def one_behind_another() -> AsyncIterator[OneBehindAnother]:
    config = BrokerConfig(ack_wait_ms=LONG_MS, seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        policy = {"order": "key"}
        await broker.admin("subscriptions.create", topic="t", subscription="s", policy=policy)
        async with await broker.producer("t") as producer, broker.consumer("t", "s") as inbox:
            receipts = await producer.send_many([b"first", b"moved"], keys=["k"] * 2)
            assert await offsets(inbox) == [0], "the second message waits for the first"
            assert receipts[1].id is not None
            yield OneBehindAnother(world, broker, producer, inbox, receipts[1].id)


async def test_message_moved_before_it_is_read_ahead_is_delivered_at_its_new_time(
    mock_clock: MockClock,
) -> None:
    """B1: the index has dropped the old key, so only the new one is read ahead."""
    async with one_behind_another() as (world, broker, producer, inbox, moved):
        await broker.reschedule([moved], delay=(1, "h"))
        await world.checkpoint()
        await world.clock.advance(hours=2)
        await make_ready(producer)
        assert staged_by(world).expected == 0
        await inbox.ack(0)
        assert [message.payload for message in await arrived(inbox)] == [b"moved"]


async def test_message_that_becomes_ready_twice_is_read_ahead_once(
    mock_clock: MockClock,
) -> None:
    """V5: a message that was ready is moved to now, and is ready again under the same key."""
    async with one_behind_another() as (world, broker, producer, _, moved):
        await broker.run_now([moved])
        await make_ready(producer)
        assert staged_by(world).expected == 0
        staged_by(world)._check()


async def make_ready(producer: Producer) -> None:
    """Publish as many messages as are worth reading ahead, in offers that are taken at once."""
    for _ in range(4):
        await producer.send_many([b""] * 512, keys=["k"] * 512)
    await trio.testing.wait_all_tasks_blocked()


def staged_by(world: testing.World) -> Staged:
    (topic,) = world.server.registry.active.values()
    return topic.shared["s"].staged
