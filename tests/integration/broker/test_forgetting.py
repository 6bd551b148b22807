"""Deletion of old log generations in a whole broker on a virtual clock, on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.inspection import reading
from escapement.broker.limits import BrokerLimits
from escapement.client.administration.message_history import MessageHistory
from escapement.protocol.amend_status import AmendStatus
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.index import KEY_MAX, KEY_MIN
from escapement.testing import World, arrived
from support.faults.dying_brokers import DiesAt, finish, lose_index
from support.storage.commit_pipelines import FaultyEngine, no_fault

DAY_MS = 86_400_000
YEAR = timedelta(days=365)
NAMESPACE = "t/n"
TOPIC = "t/n/x"
PATIENT = BrokerConfig(
    ack_wait_ms=10**12, limits=BrokerLimits(max_delay_ms=10**12), table_parallelism=2, seed=0
)


def generations(engine: Engine) -> list[int]:
    """Return the generations of the log, after checking that the log has no other tables."""
    connection = engine.connect()
    try:
        found = connection.execute("SELECT id, parallelism FROM generations ORDER BY id").rows
        names = {f"log_{id}_{shard}" for id, parallelism in found for shard in range(parallelism)}
        if engine.kind == "sqlite":
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        else:
            query = (
                "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
            )
        tables = {name for (name,) in connection.execute(query).rows if name[:4] == "log_"}
        assert tables - {"log_identity"} == names
        marks = "SELECT COUNT(*) FROM removals WHERE kind = 'generation'"
        assert connection.execute(marks).rows == [(0,)]
        return [id for id, _ in found]
    finally:
        connection.close()


async def take(
    broker: escapement.Broker, name: str = "s", kind: str = "shared", most: int = 10**6
) -> list[bytes]:
    """Return the values of messages that have arrived, after acknowledging them durably."""
    found: list[bytes] = []
    async with broker.consumer(TOPIC, name, kind=kind, permits=1000) as inbox:
        while len(found) < most and (messages := (await arrived(inbox))[: most - len(found)]):
            await inbox.ack([m.id for m in messages], durable=True)
            found += [m.value for m in messages]
    return found


async def a_day_later(world: World) -> None:
    """Start a new generation and run a round of the forgetter."""
    await roll(world)
    await forget(world)


async def roll(world: World) -> None:
    """Move the clock a day ahead, so that the log starts a new generation."""
    world.clock.set_back(-DAY_MS)
    await finish(world, world.server.services.housekeeper.round)


async def forget(world: World) -> None:
    """Run a round of the forgetter, which deletes old generations."""
    await finish(world, world.server.services.forgetter.round)


async def restart_without_index(world: World) -> None:
    """Crash and restart without an index, so that the broker rebuilds it from the log."""
    await world.crash()
    lose_index(world)
    await world.restart()


async def begin(broker: escapement.Broker, retention: str = "0s") -> escapement.Producer:
    """Create a topic with a subscription, in a namespace with that retention."""
    await broker.admin("namespaces.create", namespace=NAMESPACE)
    await broker.admin("namespaces.update", namespace=NAMESPACE, policy={"retention_ms": retention})
    await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
    return await broker.producer(TOPIC)


async def subscribe(broker: escapement.Broker, name: str, kind: str) -> None:
    """Create a subscription at the earliest position."""
    options = {"kind": kind, "position": "earliest"}
    await broker.admin("subscriptions.create", topic=TOPIC, subscription=name, **options)


async def test_generation_is_deleted_once_its_messages_are_acknowledged_and_old_enough(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """Q7: the tables of the generation are dropped."""
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            producer = await begin(broker, "2d")
            await producer.send_many([b"%d" % n for n in range(100)])
            assert len(await take(broker)) == 100
            await a_day_later(world)
            assert generations(engine) == [1, 2]  # two days have not passed
            await producer.send(b"later")
            await a_day_later(world)
            assert generations(engine) == [2, 3]
        await world.crash()
        await world.restart()
        async with world.connect() as broker:
            assert await take(broker) == [b"later"]
            receipt = await (await broker.producer(TOPIC)).send(b"next")
            assert receipt.id.offset == 101  # offsets go on


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


async def test_unacknowledged_message_keeps_its_generation(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7: retention applies only to messages that every subscription has acknowledged."""
    engine = SqliteEngine.in_memory()
    async with testing.start(config=PATIENT, engine=engine) as world, world.connect() as broker:
        producer = await begin(broker)
        await producer.send_many([b"%d" % n for n in range(10)])
        await subscribe(broker, "o", "exclusive")
        assert len(await take(broker)) == 10
        await a_day_later(world)
        assert generations(engine) == [1, 2]
        assert len(await take(broker, "o", "exclusive", most=9)) == 9
        await a_day_later(world)
        assert generations(engine) == [1, 2]
        assert await take(broker, "o", "exclusive") == [b"9"]
        await a_day_later(world)
        assert generations(engine) == [2]


async def test_retention_bytes_delete_generations_before_their_retention_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7: the oldest is deleted early if newer ones have ``retention_bytes`` of messages."""
    engine = SqliteEngine.in_memory()
    async with testing.start(config=PATIENT, engine=engine) as world, world.connect() as broker:
        producer = await begin(broker, "300d")
        for wanted in ([1, 2], [1, 2, 3], [2, 3, 4]):
            policy = {"retention_bytes": 1500}
            await broker.admin("namespaces.update", namespace=NAMESPACE, policy=policy)
            await producer.send(b"." * 1000)
            await take(broker)
            await a_day_later(world)
            assert generations(engine) == wanted


async def test_mostly_acknowledged_generation_ends_before_its_day(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P11: without retention, acknowledged messages do not stay in the log until midnight."""
    engine = SqliteEngine.in_memory()
    config = replace(PATIENT, limits=replace(PATIENT.limits, sparse_generation_bytes=5_000))
    async with testing.start(config=config, engine=engine) as world, world.connect() as broker:
        producer = await begin(broker)
        for kept, taken, wanted in ((100, 0, [1]), (0, 500, [2])):
            await producer.send_many([b"." * 100] * (kept + taken))
            if taken:
                await take(broker)
            await world.checkpoint()
            await world.clock.advance(minutes=2)
            await finish(world, world.server.services.housekeeper.round)
            await forget(world)
            assert generations(engine) == wanted


async def test_reads_seeks_and_new_subscriptions_begin_where_the_log_begins(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N1, Q7: positions in a deleted generation lead to the oldest one that is left."""
    engine = SqliteEngine.in_memory()
    async with testing.start(config=PATIENT, engine=engine) as world, world.connect() as broker:
        producer = await begin(broker)
        await producer.send_many([b"%d" % n for n in range(10)])
        await take(broker)
        await a_day_later(world)
        await producer.send_many([b"%d" % n for n in range(10, 15)])
        kept = [b"%d" % n for n in range(10, 15)]
        assert generations(engine) == [2]
        assert await take(broker) == kept
        for position in ("earliest", "offset:3"):
            arguments = {"topic": TOPIC, "subscription": "s", "position": position}
            await broker.admin("subscriptions.seek", **arguments)
            assert await take(broker) == kept
        for kind in ("shared", "exclusive"):
            await broker.admin(
                "subscriptions.create",
                topic=TOPIC,
                subscription=kind,
                kind=kind,
                position="earliest",
            )
            assert await take(broker, kind, kind) == kept
        pages = [page async for page in broker.read(TOPIC)]
        assert [page.offsets.tolist() for page in pages] == [[10, 11, 12, 13, 14]]
        assert list(pages[0].values()) == kept


async def test_seek_into_an_old_generation_keeps_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7: a generation is not deleted while a subscription must receive its messages again."""
    engine = SqliteEngine.in_memory()
    async with testing.start(config=PATIENT, engine=engine) as world, world.connect() as broker:
        producer = await begin(broker, "1d")
        await producer.send_many([b"%d" % n for n in range(10)])
        await take(broker)
        await roll(world)
        await broker.admin("subscriptions.seek", topic=TOPIC, subscription="s", position="earliest")
        await a_day_later(world)
        assert generations(engine) == [1, 2]
        assert len(await take(broker)) == 10
        await a_day_later(world)
        assert generations(engine) == [2]


async def test_crash_at_any_step_of_deleting_a_generation_loses_nothing(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P6, P11, Q7: the next start completes the deletion, and no message is lost."""
    faulty = FaultyEngine(engine)
    late: list[bytes] = []
    async with testing.start(config=PATIENT, engine=faulty) as world:
        async with world.connect() as broker:
            await begin(broker)
        # Restarts are slow on MySQL, so only every third step is tested there.
        for number in count(1, 3 if engine.kind == "mysql" else 1):
            late.append(b"late %d" % number)
            async with world.connect() as broker:
                producer = await broker.producer(TOPIC)
                await producer.send(late[-1], delay=YEAR)
                await producer.send_many([b"%d" % n + b"." * 100 for n in range(300)])
                assert len(await take(broker)) == 300
                await world.checkpoint()
                await roll(world)
                await producer.send(b"kept")
            newer = generations(engine)[1:]
            faulty.before = dies = DiesAt(number)
            await forget(world)
            await world.crash()
            faulty.before = no_fault
            await world.restart()
            await world.checkpoint()
            await forget(world)
            assert generations(engine) == newer
            async with world.connect() as broker:
                assert await take(broker) == [b"kept"]
            if not dies.dead:
                break
        assert number > 10
        await restart_without_index(world)
        async with world.connect() as broker:
            await world.clock.advance(days=366)
            assert await take(broker) == late


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


async def test_sqlite_file_shrinks_when_generations_are_deleted(
    mock_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """P11, Q7: the file shrinks although SQLite keeps free pages."""
    path = tmp_path / "log.sqlite3"
    async with testing.start(config=PATIENT, engine=SqliteEngine(path)) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            for number in range(20):
                kept = timedelta(days=1) if number == 10 else timedelta(0)
                await producer.send(b"%02d" % number + b"." * 1_000_000, delay=kept)
            assert len(await take(broker)) == 19
            await world.checkpoint()
            before_bytes = on_disk(path)
            await a_day_later(world)
            await finish(world, world.server.services.housekeeper.round)
            await world.clock.advance(days=1)
            assert [value[:2] for value in await take(broker)] == [b"10"]
    assert before_bytes > 15_000_000
    assert on_disk(path) < 8_000_000


def on_disk(path: Path) -> int:
    """Return the size of an SQLite database in bytes, with its write-ahead log."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


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
        shown = await broker.admin("dlq.show", **names, offset=dead_letter["offset"])
        assert (shown["payload"], shown["published_at_ms"]) == (b"late", published_ms)


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


async def test_cancel_and_reschedule_give_the_same_outcome_for_deleted_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1, Q7: both report deleted messages as delivered, and unpublished ones as unknown."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            await producer.send_many([b"0", b"1"])
            assert await take(broker) == [b"0", b"1"]
        await world.checkpoint()
        await a_day_later(world)
        await a_day_later(world)
        async with world.connect() as broker:
            with pytest.raises(escapement.NotFound):
                await broker.show(0, TOPIC)
            cancelled = await broker.cancel([1, 0, 9], topic=TOPIC)
            moved = await broker.reschedule([1, 0, 9], topic=TOPIC, delay="1h")
            assert cancelled.statuses.tolist() == moved.statuses.tolist()
            assert moved.statuses.tolist() == [
                AmendStatus.DELIVERED,
                AmendStatus.DELIVERED,
                AmendStatus.UNKNOWN,
            ]
            assert [one.handed for one in moved] == [one.handed for one in cancelled]


async def test_cancel_does_not_tell_expired_from_delivered_among_deleted_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1, invariant 9: otherwise the broker keeps a bit per message forever."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            await producer.send_many([b"0", b"1"])
            assert await take(broker) == [b"0", b"1"]
            await broker.admin("topics.update", topic=TOPIC, policy={"ttl_ms": "1m"})
            await producer.send_many([b"2", b"3"])
            await world.clock.advance(minutes=2)
            cancelled = await broker.cancel(range(4), topic=TOPIC)
            assert (
                cancelled.statuses.tolist() == [AmendStatus.DELIVERED] * 2 + [AmendStatus.OVER] * 2
            )
        await world.checkpoint()
        await a_day_later(world)
        await a_day_later(world)
        async with world.connect() as broker:
            cancelled = await broker.cancel(range(4), topic=TOPIC)
            assert cancelled.statuses.tolist() == [AmendStatus.OVER] * 4
        await world.checkpoint()
        await world.crash()
        await world.restart()
        async with world.connect() as broker:
            cancelled = await broker.cancel(range(4), topic=TOPIC)
            assert cancelled.statuses.tolist() == [AmendStatus.OVER] * 4


@pytest.mark.parametrize("sought", [False, True])
@pytest.mark.parametrize("where", ["earliest", "offset:1", "past"])
async def test_subscription_at_a_past_position_gets_only_messages_in_the_log(
    mock_clock: trio.testing.MockClock, where: str, sought: bool
) -> None:
    """Invariant 7, N3: although the index has other messages, and the broker crashes at once."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            past = f"time:{world.clock.now_ms() - 3_600_000}"
            producer = await begin(broker)
            await producer.send_many([b"0", b"1"])
            await world.checkpoint()
            assert await take(broker) == [b"0", b"1"]
            await roll(world)
            await producer.send_many([b"2", b"3"], delay=[timedelta(days=30), timedelta(0)])
            await forget(world)
            (topic,) = world.server.registry.active.values()
            _, offsets = world.server.index.plan(topic.id, KEY_MIN, KEY_MAX, 100).read()
            assert {0, 1} <= set(offsets), "a merge removed them, so this test proves nothing"
            names = {"topic": TOPIC, "subscription": "late"}
            position = past if where == "past" else where
            if sought:
                await broker.admin("subscriptions.create", **names)
                await broker.admin("subscriptions.seek", **names, position=position)
            else:
                await broker.admin("subscriptions.create", **names, position=position)
        await world.crash()
        await world.restart()
        for left in ([b"3"], []):
            async with world.connect() as broker:
                assert await take(broker, "late") == left
                (late,) = [
                    row
                    for row in await broker.admin("subscriptions.list", topic=TOPIC)
                    if row["subscription"] == "late"
                ]
                before = where == "offset:1"  # message 1 counts, but is not delivered
                assert late["unacknowledged"] == 1 + before
                outcomes = await broker.cancel([1], topic=TOPIC)
                assert outcomes.statuses.tolist() == [AmendStatus.OVER]
            await world.checkpoint()
            await restart_without_index(world)
        async with world.connect() as broker:
            await world.clock.advance(days=30)
            assert await take(broker, "late") == [b"2"]


@pytest.mark.parametrize("asks_for_dead_letters", [False, True])
async def test_message_that_neither_log_nor_index_has_is_given_up(
    mock_clock: trio.testing.MockClock, asks_for_dead_letters: bool
) -> None:
    """Invariant 7: a message in retry came from an index that is lost since.

    All subscriptions were done with the message, and its generation was deleted. Then the clock was
    set back, so the message was due in the future for a new subscription. The index does not know
    how late the clock was before, like the index of another broker.
    """
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            await producer.send_many([b"0", b"1"])
            await world.checkpoint()
            assert await take(broker) == [b"0", b"1"]
            await a_day_later(world)
            world.clock.set_back(2 * DAY_MS)
            await world.clock.advance(seconds=1)
            world.server.index.forgotten_until_ms = 0
            late = {"topic": TOPIC, "subscription": "late"}
            await broker.admin("subscriptions.create", **late)
            await world.clock.advance(days=1)
            async with broker.consumer(TOPIC, "late") as inbox:
                messages = await arrived(inbox)
                assert len(messages) == 2, "a merge removed them, so this test proves nothing"
                await inbox.nack(messages, timedelta(hours=1))
            if asks_for_dead_letters:
                policy = {"expired_to_dead_letter": True}
                await broker.admin("subscriptions.update", **late, policy=policy)
                await broker.admin("topics.update", topic=TOPIC, policy={"ttl_ms": 3_600_000})
        await restart_without_index(world)
        async with world.connect() as broker, broker.consumer(TOPIC, "late") as inbox:
            await world.clock.advance(hours=2)
            assert await arrived(inbox) == []
            producer = await broker.producer(TOPIC)
            await producer.send(b"2")
            assert [message.value for message in await arrived(inbox)] == [b"2"]
            (row,) = [
                row
                for row in await broker.admin("subscriptions.list", topic=TOPIC)
                if row["subscription"] == "late"
            ]
            assert (row["unacknowledged"], row["in_flight"]) == (1, 1)


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
