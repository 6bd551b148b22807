"""The index of a broker in memory, on disk and in the journal, observed from outside."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import trio
import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import arrived
from support.faults.held_calls import FETCH, Held

PATIENT = BrokerConfig(ack_wait_ms=10**10, seed=0)
TOPIC = "t/n/x"


async def test_the_next_partition_is_in_the_wheel_before_it_begins(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P3: partitions of five minutes; only the current one and the next are in memory."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
        producer = await broker.producer(TOPIC)
        # The virtual clock starts at a full hour, and so at the beginning of a partition.
        for minutes in (6, 7, 11):
            await producer.send(b"%d" % minutes, delay=timedelta(minutes=minutes))
        await world.checkpoint()

        async def in_the_wheel() -> int:
            stats = await broker.admin("topics.stats", topic=TOPIC)
            return int(stats["wheel_entries"])

        assert await in_the_wheel() == 0
        await world.clock.advance(minutes=4, seconds=54)
        assert await in_the_wheel() == 0
        await world.clock.advance(seconds=1)
        assert await in_the_wheel() == 2
        await world.clock.advance(minutes=2)
        assert await in_the_wheel() == 1
        async with broker.consumer(TOPIC, "s") as inbox:
            assert [m.value for m in await arrived(inbox)] == [b"6"]


async def test_subscriptions_share_one_index(mock_clock: trio.testing.MockClock) -> None:
    """P12: five subscriptions cost the index no more entries than one."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer(TOPIC)
        for name in "abcde":
            await broker.admin("subscriptions.create", topic=TOPIC, subscription=name)
        await producer.send_many([b"m"] * 100, delay=timedelta(hours=1))
        for _ in range(2):
            stats = await broker.admin("topics.stats", topic=TOPIC)
            assert stats["index_entries"] == 100
            await world.checkpoint()
        await world.clock.advance(hours=1)
        for name in "abcde":
            async with broker.consumer(TOPIC, name) as inbox:
                assert len(await arrived(inbox)) == 100


async def test_index_size_is_proportional_to_pending_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P11, B1: keys of rescheduled and cancelled messages leave it long before they are due."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
        producer = await broker.producer(TOPIC)
        await producer.send_many([b"m" * 100] * 1000, delay=timedelta(days=30))
        entries, segments, size_bytes = [], [], []
        for day in range(1, 61):
            moved = await broker.reschedule(range(1000), topic=TOPIC, delay=timedelta(days=day))
            assert moved.done.all()
            await world.checkpoint()
            await world.clock.advance(seconds=6)  # a round of compaction
            stats = await broker.admin("topics.stats", topic=TOPIC)
            entries.append(stats["index_entries"])
            segments.append(world.server.index.segment_count)
            size_bytes.append(world.server.index.disk_bytes)
        assert max(entries) <= 4 * 1000
        assert max(segments) <= 4
        assert max(size_bytes) <= 4 * 1000 * 200
        # Without a subscription, no cursor marks messages as done.
        await broker.admin("subscriptions.delete", topic=TOPIC, subscription="s")
        assert (await broker.cancel(range(10, 1000), topic=TOPIC)).done.all()
        for _ in range(4):
            await producer.send(b"n", delay=timedelta(days=30))
            await world.checkpoint()
            await world.clock.advance(seconds=6)
        assert world.server.index.manifest is not None
        await world.server.services.compactor.merge(list(world.server.index.manifest.segments))
        stats = await broker.admin("topics.stats", topic=TOPIC)
        assert stats["index_entries"] == 14
        assert len([one async for one in broker.peek(TOPIC)]) == 14


@pytest.mark.parametrize("position", ["latest", "offset:200", "time"])
async def test_later_subscription_keeps_no_finished_messages_in_the_index(
    position: str, mock_clock: trio.testing.MockClock
) -> None:
    """P1: the files on disk shrink, too. Messages that it must still receive stay there."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        names = {"topic": TOPIC, "subscription": "first"}
        await broker.admin("subscriptions.create", **names)
        producer = await broker.producer(TOPIC)
        await producer.send_many([bytes(100_000)] * 190, delay="1h")
        await producer.send_many([b"later"] * 10, delay="3h")
        await world.checkpoint()
        await world.clock.advance(hours=1)
        async with broker.consumer(TOPIC, "first", permits=1000) as inbox:
            while len(messages := await arrived(inbox)):
                await inbox.ack([message.id for message in messages], durable=True)
        if position == "time":
            position = f"time:{world.clock.now_ms() + 1_000}"
        await broker.admin(
            "subscriptions.create", topic=TOPIC, subscription="second", position=position
        )
        await world.checkpoint()
        await world.clock.advance(minutes=1)
        assert world.server.index.disk_bytes < 100_000
        await world.clock.advance(hours=2)
        for name, count in (("first", 10), ("second", 0 if "offset" in position else 10)):
            async with broker.consumer(TOPIC, name) as inbox:
                assert [m.value for m in await arrived(inbox)] == [b"later"] * count


async def test_loading_a_partition_reads_a_bounded_number_of_files(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P3, invariant 9: also if segments are added fast, and after a start that finds many."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
            producer = await broker.producer(TOPIC)
            most = world.server.index.limits.most_segments
            counts = []
            for _ in range(2 * most):  # at one instant, so the compactor does not run
                await producer.send(b"m", delay=timedelta(hours=1))
                await world.checkpoint()
                counts.append(world.server.index.segment_count)
            assert max(counts) == most
        await world.crash()
        await world.restart()
        async with world.connect() as broker, broker.consumer(TOPIC, "s", permits=100) as inbox:
            await world.clock.advance(minutes=54)
            assert world.server.index.segment_count <= world.server.index.limits.max_segments
            await world.clock.advance(minutes=6)
            assert len(await arrived(inbox)) == 2 * most


async def test_merge_that_the_end_of_the_broker_gives_up_is_not_logged_as_failed(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """O6: for example when the lease is lost. The warning asks whether the disk is full."""
    held = Held()
    async with testing.start(config=PATIENT, run=held) as world:
        async with world.connect() as broker:
            producer = await broker.producer(TOPIC)
            with held.hold("Compaction.run"):
                for _ in range(8):
                    await producer.send_many([b"m"] * 10, delay=timedelta(hours=1))
                    await world.checkpoint()
                assert (await broker.cancel(range(40), topic=TOPIC)).done.all()
                await world.clock.advance(seconds=6)  # a round of compaction
                await held.reached()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(world.crash)
                    await trio.testing.wait_all_tasks_blocked()
                    held.release()
    assert not [one for one in caplog.records if getattr(one, "event", "") == "index.merge_failed"]


async def test_merges_wait_while_memory_fills(mock_clock: trio.testing.MockClock) -> None:
    """P3, invariant 9: up to a bound of segments, which are merged once publishing slows down."""
    limits = BrokerLimits(index_memory_bytes=20_000)
    config = replace(PATIENT, limits=limits)
    async with testing.start(config=config) as world, world.connect() as broker:
        producer = await broker.producer(TOPIC)
        index = world.server.index
        counts = []
        for _ in range(60):
            await producer.send(b"m" * 15_000, delay=timedelta(hours=1))
            await world.clock.advance(seconds=2)
            counts.append(index.segment_count)
        # Each message fills a segment, and no segments are merged below that bound.
        assert counts[:10] == list(range(1, 11))
        assert index.limits.filling_segments <= max(counts) <= index.limits.filling_segments + 3
        await world.clock.advance(seconds=60)
        assert index.segment_count < index.limits.merge_width
        stats = await broker.admin("topics.stats", topic=TOPIC)
        assert stats["index_entries"] == 60


async def test_message_due_soon_is_delivered_without_reading_the_disk(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P3: after a checkpoint it is still in memory, so a slow disk does not delay it."""
    held = Held()
    async with testing.start(config=PATIENT, run=held) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
        producer = await broker.producer(TOPIC)
        await producer.send(b"soon", delay=timedelta(seconds=5))
        await producer.send(b"later", delay=timedelta(seconds=20))
        await world.checkpoint()
        with held.hold(FETCH):
            async with broker.consumer(TOPIC, "s") as inbox:
                await world.clock.advance(seconds=5)
                assert [m.value for m in await arrived(inbox)] == [b"soon"]


@pytest.mark.parametrize("pending", [100, 3000])
async def test_journal_that_a_start_replays_does_not_grow_with_pending_messages(
    mock_clock: trio.testing.MockClock, pending: int
) -> None:
    """B5: a checkpoint covers the pending messages. A start reads only the journal after it."""
    engine = SqliteEngine.in_memory()
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
            producer = await broker.producer(TOPIC)
            for _ in range(pending // 100):
                await producer.send_many([b"m"] * 100, delay=timedelta(days=30))
            await world.checkpoint()
            await producer.send(b"after it", delay=timedelta(days=30))
        await world.crash()
        connection = engine.connect()
        assert connection.execute("SELECT COUNT(*) FROM journal").rows == [(1,)]
        connection.close()
        await world.restart()
        async with world.connect() as broker, broker.consumer(TOPIC, "s", permits=5000) as inbox:
            assert await arrived(inbox) == []
            await world.clock.advance(days=30)
            assert len(await arrived(inbox)) == pending + 1
