"""Deletion of old log generations in a whole broker on a virtual clock, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest
import trio

import escapement
from escapement import testing
from escapement.protocol.amend_status import AmendStatus
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.index import KEY_MAX, KEY_MIN
from escapement.storage.log.table_sets import Plan
from escapement.storage.upgrade import upgrade
from escapement.testing import arrived
from support.database.accounts import FOUR_RIGHTS, account
from support.faults.dying_brokers import DiesAt, finish
from support.storage.commit_pipelines import FaultyEngine, no_fault
from support.storage.forgetting_brokers import (
    DAY_MS,
    NAMESPACE,
    PARALLELISM,
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


@pytest.fixture(params=["sqlite", "mysql", "four rights"])
def forgetting(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Return an engine: SQLite, MySQL, and MySQL with a user that may not create tables."""
    if request.param == "sqlite":
        yield SqliteEngine.in_memory()
        return
    url: str = request.getfixturevalue("mysql_url")
    administrator = MysqlEngine(MysqlAddress.parse(url))
    if request.param == "mysql":
        yield administrator
        return
    upgrade(administrator, Plan(PARALLELISM, 3), lambda statement: None, dry_run=False)
    with account(request.getfixturevalue("mysql_server"), url, FOUR_RIGHTS) as address:
        yield MysqlEngine(address)


async def test_crash_at_any_step_of_deleting_a_generation_loses_nothing(
    mock_clock: trio.testing.MockClock, forgetting: Engine
) -> None:
    """P6, P11, Q7: the next start completes the deletion, and no message is lost.

    With four rights, the generations use the same three table sets again and again.
    """
    engine = forgetting
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
