"""Relocation: messages that old generations of the log still have are stated again in a new one."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.inspection import reading
from escapement.client.administration.message_history import MessageHistory
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.index import KEY_MAX, KEY_MIN
from escapement.testing import World, arrived
from support.storage.forgetting_brokers import (
    PATIENT,
    TOPIC,
    YEAR,
    a_day_later,
    begin,
    forget,
    generations,
    restart_without_index,
    roll,
    subscribe,
    take,
)


async def test_subscription_at_earliest_gets_a_restated_acknowledged_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P11, N1: it gets every message that can be read, though no index has it any more."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await begin(broker)
        await producer.send_many([b"done", b"moved"], delay=[timedelta(0), timedelta(days=9)])
        await roll(world)
        await broker.run_now([1], topic=TOPIC)
        assert sorted(await take(broker)) == [b"done", b"moved"]
        await world.checkpoint()
        await forget(world)
        readable = [m.value async for page in broker.read(TOPIC) for m in page]
        assert readable == [b"moved"]
        await subscribe(broker, "late", "shared")
        assert await take(broker, "late") == readable


async def test_former_due_time_is_kept_until_every_subscription_has_read_past_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: a message acknowledged at its new due time is not delivered again at the former one."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await begin(broker)
        await producer.send(b"moved", delay=timedelta(days=5))
        await world.checkpoint()
        await roll(world)
        await broker.run_now([0], topic=TOPIC)
        assert await take(broker) == [b"moved"]
        await world.clock.advance(seconds=1)
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="idle")
        await forget(world)
        await world.clock.advance(days=6)
        await forget(world)
        assert await take(broker, "idle") == []


async def test_one_message_in_a_thousand_due_next_year_keeps_little_of_the_log(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P11: live messages are relocated, and the log shrinks to under 2 % in one round."""
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            for batch in range(10):
                delays = [YEAR if n == batch else timedelta(0) for n in range(1000)]
                values = [b"%d.%d" % (batch, n) + b"." * 100 for n in range(1000)]
                await producer.send_many(values, delay=delays)
            assert len(await take(broker)) == 9_990
            await world.checkpoint()
            before = log_bytes(engine)
            await a_day_later(world)
            assert generations(engine) == [2]
            assert log_bytes(engine) < 0.02 * before
            await producer.send(b"a reason to go on")
            assert len(await take(broker)) == 1
            await world.checkpoint()
            await a_day_later(world)
            assert generations(engine) == [2, 3]  # a mostly live generation is not relocated
        await restart_without_index(world)
        async with world.connect() as broker:
            assert await take(broker) == []
            moved = await broker.reschedule(
                [escapement.MessageId(TOPIC, 0)], delay=timedelta(days=1)
            )
            assert moved.done.tolist() == [True]
            await world.clock.advance(days=2)
            assert [value[:3] for value in await take(broker)] == [b"0.0"]
            await world.clock.advance(days=365)
            late = [value[:3] for value in await take(broker)]
            assert late == [b"%d.%d" % (n, n) for n in range(1, 10)]


async def test_acknowledged_message_leaves_the_moves_once_its_keys_have_passed(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P11, B1: its entry leaves memory and database once both of its due times are past."""
    engine = SqliteEngine.in_memory()

    async def look(world: World) -> tuple[int, int]:
        """Return the number of entries in memory and of rows in the database."""
        await forget(world)
        await world.checkpoint()
        (topic,) = world.server.registry.active.values()
        connection = engine.connect()
        rows = connection.execute("SELECT COUNT(*) FROM moves").rows[0][0]
        connection.close()
        return len(topic.amendments.moves), rows

    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            late = [timedelta(days=200)] * 3 + [YEAR] * 2
            await producer.send_many([b"%d" % n for n in range(5)], delay=late)
            await producer.send_many([b"." * 100] * 1000)
            assert len(await take(broker)) == 1000
            await broker.reschedule([3], topic=TOPIC, delay=timedelta(days=2))
            await broker.cancel([4], topic=TOPIC)
            await world.checkpoint()
            await a_day_later(world)
            assert generations(engine) == [2]
            assert await look(world) == (4, 1)
            await world.clock.advance(days=2)
            assert await take(broker) == [b"3"]
            # Message 3 is done, but its former key is due later, and the entry voids this key.
            assert await look(world) == (4, 1)
            assert [one.id.offset async for one in broker.peek(TOPIC)] == [0, 1, 2]
            await world.clock.advance(days=200)
            assert len(await take(broker)) == 3
            assert await look(world) == (1, 1)
            await world.clock.advance(days=180)
            await producer.send(b"a reason for a checkpoint")
            assert await look(world) == (0, 0)
        await world.crash()
        await world.restart()
        async with world.connect() as broker:
            assert await take(broker) == [b"a reason for a checkpoint"]
            assert await look(world) == (0, 0)


async def test_dead_letter_of_a_relocated_message_keeps_its_publish_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P11, V1: its first log row is deleted, and the restating row has the publish time."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await begin(broker)
        names = {"topic": TOPIC, "subscription": "s"}
        await broker.admin("subscriptions.update", **names, policy={"max_deliveries": 1})
        published_ms = world.clock.now_ms()
        await producer.send(b"late", delay=YEAR)
        await producer.send_many([b"." * 100] * 1000)
        assert len(await take(broker)) == 1000
        await world.checkpoint()
        await a_day_later(world)
        await world.clock.advance(days=366)
        async with broker.consumer(TOPIC, "s") as inbox:
            await inbox.nack([m.id for m in await arrived(inbox)], timedelta(0))
            for _ in range(3):
                await world.clock.advance(seconds=1)
        (dead_letter,) = await broker.admin("dlq.list", **names, count=10)
        answer = await broker.admin("dlq.show", **names, offset=dead_letter["offset"])
        assert (answer["payload"], answer["published_at_ms"]) == (b"late", published_ms)


async def everything(broker: escapement.Broker, page_messages: int) -> list[tuple[object, ...]]:
    """Return all messages that can be read by offset, with due and publish times and keys."""
    found: list[tuple[object, ...]] = []
    async for page in broker.read(TOPIC, page_messages=page_messages):
        columns = (page.offsets, page.due_ms, page.published_ms)
        rows = zip(*(column.tolist() for column in columns), page.values(), strict=True)
        found += [(*row, page[at].key) for at, row in enumerate(rows)]
    return found


async def look_up(broker: escapement.Broker, offset: int) -> tuple[MessageHistory, list[int]]:
    """Return the history of a message, and the offsets that a peek at this message shows."""
    history = await broker.show(offset, TOPIC)
    return history, [one.id.offset async for one in broker.peek(TOPIC, offset=offset)]


async def test_relocated_messages_are_read_by_offset_as_before(
    mock_clock: trio.testing.MockClock, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1, P11: with pages of any size, after a second relocation, and after losing the index."""
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            for batch in range(4):
                delays = [YEAR if n % 25 == batch else timedelta(0) for n in range(100)]
                keys = [f"k{n}" for n in range(100)]
                values = [b"%d.%d" % (batch, n) for n in range(100)]
                await producer.send_many(values, delay=delays, keys=keys)
                await world.clock.advance(seconds=1)
            whole = await everything(broker, 1000)
            kept = [row for row in whole if row[1] != row[2]]
            assert (len(whole), len(kept)) == (400, 16)
            assert len(await take(broker)) == 384
            # The first is rescheduled, the second run now and acknowledged, the third cancelled.
            first, second, third = (broker_id(row) for row in kept[:3])
            await broker.reschedule(first, delay=timedelta(days=100))
            await broker.run_now(second)
            assert len(await take(broker)) == 1
            await broker.cancel(third)
            kept = [kept[0], *kept[3:]]
            moved = (await look_up(broker, first.offset))[0]
            await world.checkpoint()
            for generation in (2, 3):
                await a_day_later(world)
                assert generations(engine) == [generation]
                for page_messages in (1000, 4, 1):
                    assert await everything(broker, page_messages) == kept
                with monkeypatch.context() as context:
                    context.setattr(reading, "_PAGE_BYTES", 1)
                    assert await everything(broker, 1000) == kept
                assert (await everything(broker, 1))[0][4] == "k0"
                history, seen = await look_up(broker, first.offset)
                assert (history, seen) == (moved, [first.offset])
                with pytest.raises(escapement.NotFound, match="does not have message 1 any"):
                    await look_up(broker, 1)
                filler = [b"." * 100] * 1000
                await producer.send_many(filler)
                assert len(await take(broker)) == 1000
                await world.checkpoint()
            await a_day_later(world)
        for restart in (world.restart, lambda: restart_without_index(world)):
            await world.crash()
            await restart()
            async with world.connect() as broker:
                assert await everything(broker, 5) == kept
                assert (await look_up(broker, first.offset))[0] == moved
                assert [offset for offset, *_ in kept if offset == third.offset] == []


def broker_id(row: tuple[object, ...]) -> escapement.MessageId:
    offset = row[0]
    assert isinstance(offset, int)
    return escapement.MessageId(TOPIC, offset)


def log_bytes(engine: Engine) -> int:
    """Return the size of all rows of the log in bytes."""
    connection = engine.connect()
    try:
        found = connection.execute("SELECT id, parallelism FROM generations").rows
        tables = [f"log_{id}_{shard}" for id, parallelism in found for shard in range(parallelism)]
        sizes = [f"SELECT COALESCE(SUM(size_bytes), 0) FROM {table}" for table in tables]
        return sum(int(connection.execute(size).rows[0][0]) for size in sizes)
    finally:
        connection.close()


async def test_restated_message_whose_generation_is_deleted_is_given_up(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P11, invariant 7: also after a crash, for which the log no longer has the restatement."""
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            await producer.send_many([b"moved", b"not moved"], delay=timedelta(hours=1))
            await broker.reschedule([0], topic=TOPIC, delay=timedelta(hours=2))
            await world.checkpoint()
            await world.clock.advance(hours=3)
            assert len(await take(broker)) == 2
            await world.checkpoint()
            await a_day_later(world)
            assert len(generations(engine)) == 1
        await world.crash()
        await world.restart()
        names = {"topic": TOPIC, "subscription": "s"}
        async with world.connect() as broker, broker.consumer(TOPIC, "s") as inbox:
            await broker.admin("subscriptions.seek", **names, position="earliest")
            await world.clock.advance(seconds=1)
            # Messages that only the index still has must not be delivered: a merge may remove them.
            messages = await arrived(inbox)
            await inbox.nack(messages, timedelta(hours=1))
            await world.checkpoint()
        await restart_without_index(world)
        async with world.connect() as broker, broker.consumer(TOPIC, "s") as inbox:
            await world.clock.advance(hours=2)
            assert await arrived(inbox) == []
            (row,) = await broker.admin("subscriptions.list", topic=TOPIC)
            assert row["unacknowledged"] == 0
        assert messages == []


async def test_later_subscription_gets_no_rescheduled_message_that_is_deleted(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P11, B1: the index may have both of its keys, without an entry that voids the former one."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await begin(broker)
        await producer.send_many([b"moved", b"not moved"], delay=timedelta(hours=1))
        await world.checkpoint()
        await broker.reschedule([0], topic=TOPIC, delay=timedelta(hours=2))
        await world.checkpoint()
        await world.clock.advance(hours=2)
        assert await take(broker) == [b"not moved", b"moved"]
        await a_day_later(world)
        (topic,) = world.server.registry.active.values()
        assert topic.amendments.moves.empty
        _, offsets = world.server.index.plan(topic.id, KEY_MIN, KEY_MAX, 100).read()
        assert sorted(offsets) == [0, 0, 1], "a merge removed them, so this test proves nothing"
        for name in ("late", "later"):
            await subscribe(broker, name, "shared")
        assert await take(broker, "late") == []
        later = {"topic": TOPIC, "subscription": "later"}
        await broker.admin("subscriptions.update", **later, policy={"expired_to_dead_letter": True})
        await broker.admin("topics.update", topic=TOPIC, policy={"ttl_ms": 3_600_000})
        await world.clock.advance(seconds=5)
        assert await broker.admin("dlq.list", **later) == []
