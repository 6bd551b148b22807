"""A broker that starts without its index serves at once, and fills the index from the log.

``BACKFILL`` holds back the reads of log rows. With steps of one byte, each row is a step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.inspection.search import Sought
from escapement.broker.limits import BrokerLimits
from escapement.broker.topic.topic import Topic
from escapement.names import TopicName
from escapement.protocol.amend_status import AmendStatus
from escapement.storage.engine.base import Engine
from escapement.storage.index import KEY_MIN
from escapement.testing import World, arrived
from support.faults.dying_brokers import lose_index
from support.faults.held_calls import BACKFILL, Held

TOPIC = "public/default/x"
STEPS = BrokerConfig(
    ack_wait_ms=10**10, seed=0, limits=BrokerLimits(backfill_step_bytes=1, index_memory_bytes=4096)
)


async def values(inbox: escapement.Inbox) -> list[bytes]:
    return [message.value for message in await arrived(inbox)]


@asynccontextmanager
async def started(engine: Engine | None = None) -> AsyncIterator[tuple[World, Held]]:
    held = Held()
    async with testing.start(config=STEPS, engine=engine, run=held) as world:
        yield world, held


async def publish(world: World, seconds: list[int], key: str | None = None) -> None:
    """Publish a message with each delay, in a log row of its own, and write a checkpoint."""
    async with world.connect() as broker:
        with_key = None if key is None else [key]
        with suppress(escapement.AlreadyExists):
            await broker.admin("subscriptions.create", topic="x", subscription="s")
        async with await broker.producer("x") as producer:
            for delay in seconds:
                value, after = b"%d" % delay, timedelta(seconds=delay)
                await producer.send_many([value], delay=[after], keys=with_key)
        await world.checkpoint()


async def lose(world: World) -> None:
    """Crash, and delete the index. The caller starts the broker again."""
    await world.crash()
    lose_index(world)


async def test_overdue_messages_are_delivered_before_the_rest_of_the_log_is_read(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B5, B8, P5: whatever their place in the log, and the others when they are due."""
    async with started() as (world, held):
        await publish(world, [5000, 3000, 30, 4000, 10, 600, 20])
        await lose(world)
        await world.clock.advance(seconds=25)
        with held.hold(BACKFILL, 2):
            await world.restart()
            async with world.connect() as broker, broker.consumer("x", "s") as inbox:
                await held.reached()
                assert await values(inbox) == [b"10", b"20"]
                await world.clock.advance(seconds=60)
                assert await values(inbox) == []  # 30 is late, because its row is not read yet
                held.release()
                await world.clock.settle()
                assert await values(inbox) == [b"30"]
                await world.clock.advance(seconds=5000)
                assert await values(inbox) == [b"600", b"3000", b"4000", b"5000"]


@pytest.mark.parametrize("order", ["any", "key"])
async def test_message_that_fell_due_just_now_passes_older_rows_unless_its_key_is_ordered(
    order: str, mock_clock: trio.testing.MockClock
) -> None:
    """B8, Q9: row by row, the fill reads 500, 10 and 20, and then 30."""
    async with started() as (world, held):
        await publish(world, [30, 500, 10, 640, 20], key="k")
        async with world.connect() as broker:
            policy = {"order": order}
            await broker.admin("subscriptions.update", topic="x", subscription="s", policy=policy)
        await lose(world)
        await world.clock.advance(seconds=510)
        with held.hold(BACKFILL, 3):
            await world.restart()
            async with world.connect() as broker, broker.consumer("x", "s") as inbox:
                found = []

                async def consume() -> None:
                    for _ in range(4):
                        for message in await arrived(inbox):
                            found.append(message.value)
                            await inbox.ack([message.id], durable=True)

                await held.reached()
                await consume()
                assert found == ([b"10", b"20", b"500"] if order == "any" else [b"10"])
                # The rows due soon were read up to a time that is close now.
                await world.clock.advance(seconds=50)
                held.release()
                await consume()
                await world.clock.advance(seconds=90)
                await consume()
                last_two = [b"500", b"30"] if order == "any" else [b"30", b"500"]
                assert found == [b"10", b"20", *last_two, b"640"]


async def test_crash_in_the_middle_of_a_fill_loses_nothing(
    engine: Engine, mock_clock: trio.testing.MockClock
) -> None:
    """P5, P6: also if checkpoints were written meanwhile, which must not claim that it ended."""
    delays = list(range(100, 2100, 100))
    async with started(engine) as (world, held):
        await publish(world, delays)
        for read in (0, 1, 7, 15):
            if read == 0:
                await lose(world)
            with held.hold(BACKFILL, read):
                await world.restart()
                await held.reached()
                await world.checkpoint()
                await publish(world, [])  # something new is in the journal
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(world.crash)
                    await world.clock.settle()
                    held.release()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            await world.clock.advance(seconds=2100)
            assert await values(inbox) == [b"%d" % delay for delay in delays]


async def test_clean_stop_in_the_middle_of_a_fill_begins_it_again(
    engine: Engine, mock_clock: trio.testing.MockClock
) -> None:
    """P5, invariant 7."""
    async with started(engine) as (world, held):
        await publish(world, [100, 200, 300])
        await lose(world)
        with held.hold(BACKFILL, 1):
            await world.restart()
            await held.reached()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.stop)
                await world.clock.settle()
                held.release()
        await world.restart()
        assert world.server.services.backfill.is_running
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            await world.clock.advance(seconds=300)
            assert await values(inbox) == [b"100", b"200", b"300"]
        await world.checkpoint()
        await world.crash()
        await world.restart()
        assert not world.server.services.backfill.is_running


async def test_order_of_keys_is_kept_while_the_index_is_filled(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q9: a new message of a key waits for earlier ones whose log rows are not read yet."""
    async with started() as (world, held):
        await publish(world, [40, 30, 20, 90], key="k")
        async with world.connect() as broker:
            order = {"order": "key"}
            await broker.admin("subscriptions.update", topic="x", subscription="s", policy=order)
        await lose(world)
        await world.clock.advance(seconds=35)
        with held.hold(BACKFILL, 2):
            await world.restart()
            async with world.connect() as broker, broker.consumer("x", "s") as inbox:
                await held.reached()
                async with await broker.producer("x") as producer:
                    await producer.send_many([b"new"], keys=["k"])
                    found = []
                    for _ in range(3):
                        for message in await arrived(inbox):
                            found.append(message.value)
                            await inbox.ack([message.id], durable=True)
                    assert found == [b"20"]
                    held.release()
                    for seconds in (0, 0, 0, 60, 0):
                        await world.clock.advance(seconds=seconds)
                        for message in await arrived(inbox):
                            found.append(message.value)
                            await inbox.ack([message.id], durable=True)
                    assert found == [b"20", b"30", b"new", b"40", b"90"]


async def test_searches_wait_for_the_whole_index(mock_clock: trio.testing.MockClock) -> None:
    """B6, B13: a request is refused as retryable; a bulk change waits and misses no message."""
    async with started() as (world, held):
        await publish(world, [100, 5000, 200])
        await lose(world)
        with held.hold(BACKFILL, 1):
            await world.restart()
            async with world.connect() as broker:
                await held.reached()
                server, refused = world.server, []

                async def look(ask: Callable[[Topic], Awaitable[object]]) -> None:
                    with pytest.raises(escapement.Busy, match="filling it from the log"):
                        await ask(server.registry.topic(TopicName.parse(TOPIC)))
                    refused.append(ask)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(look, lambda topic: server.peek(topic, Sought(), 10))
                    nursery.start_soon(look, lambda topic: server.select(topic, Sought(), KEY_MIN))
                    times = {"by_ms": 1000, "within_ms": 1000, "origin_ms": 0}
                    nursery.start_soon(look, lambda topic: server.forecast(topic, **times))
                    await world.clock.advance(seconds=2)
                assert len(refused) == 3
                change = await broker.bulk.cancel("x", everything=True)
                await world.clock.settle()
                held.release()
                for _ in range(10):
                    await world.clock.advance(seconds=5)
                    change = await broker.bulk.show("x", change.id)
                assert (change.state, change.done) == ("done", 3)
                assert [row async for row in broker.peek("x")] == []


async def test_message_changed_during_the_fill_keeps_its_new_due_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: the log row with the former due time is read after the change."""
    async with started() as (world, held):
        await publish(world, [100, 200, 300, 400])
        await lose(world)
        with held.hold(BACKFILL, 0):
            await world.restart()
            async with world.connect() as broker, broker.consumer("x", "s") as inbox:
                await held.reached()
                later, back = timedelta(seconds=1000), timedelta(seconds=200)
                for outcomes in (
                    await broker.cancel([0], topic="x"),
                    await broker.reschedule([1, 2], topic="x", delay=later),
                    await broker.reschedule([1], topic="x", delay=back),
                ):
                    assert (outcomes.statuses == AmendStatus.DONE).all()
                held.release()
                await world.clock.advance(seconds=500)
                assert await values(inbox) == [b"200", b"400"]
                await world.clock.advance(seconds=500)
                assert await values(inbox) == [b"300"]


async def test_attempts_and_back_off_survive_a_lost_index(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: a message in retry is not in the index when its back-off ends."""
    async with started() as (world, held):
        await publish(world, [10, 20])
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            await world.clock.advance(seconds=20)
            messages = await arrived(inbox)
            await inbox.nack([message.id for message in messages], timedelta(seconds=30))
            await world.clock.advance(seconds=1)
        await lose(world)
        with held.hold(BACKFILL, 0):
            await world.restart()
            async with world.connect() as broker, broker.consumer("x", "s") as inbox:
                await held.reached()
                await world.clock.advance(seconds=60)
                assert await arrived(inbox) == []
                held.release()
                await world.clock.settle()
                found = await arrived(inbox)
                assert [(one.value, one.attempt) for one in found] == [(b"10", 2), (b"20", 2)]


async def test_generations_stay_until_the_index_is_filled(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P11: a relocated message would be in a row that the fill does not read."""
    async with started() as (world, held):
        await publish(world, [10**6])
        services = world.server.services
        await services.housekeeper.set_parallelism(2)
        await publish(world, [10])
        await lose(world)
        with held.hold(BACKFILL, 0):
            await world.restart()
            await held.reached()
            services = world.server.services
            before = services.log.generations
            await services.forgetter.round()
            assert services.log.generations == before
            held.release()
        await world.clock.settle()
        assert not services.backfill.is_running
