"""Acknowledgements in transactions of an application, with a whole broker and a real server.

The ack relay sleeps between two looks, on the virtual clock. So it learns nothing while a test does
not advance the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pymysql
import pytest
import trio

import escapement
from escapement import AlreadyProcessed, Inbox, Message, sql
from escapement.broker.outbox.ack_relay import AckRelay
from escapement.client.delivery import Source
from escapement.errors import OutcomeUnknown, StorageUnavailable
from escapement.storage.blocking import inline
from escapement.storage.outbox.ack_table import AckKey
from escapement.storage.outbox.acks import MAX_ROWS, AcksInApplication
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.outbox.faulty_relays import topics_of
from support.outbox.outboxes import Application, serving
from support.storage.commit_pipelines import FaultyEngine

MockClock = trio.testing.MockClock
LOG = bytes(range(16))


async def send(world: World, *payloads: bytes, topic: str = "t") -> None:
    async with world.connect() as broker:
        producer = await broker.producer(topic)
        for payload in payloads:
            await producer.send(payload)


@asynccontextmanager
async def consuming(world: World, topic: str = "t") -> AsyncIterator[Inbox]:
    async with (
        world.connect() as broker,
        broker.consumer(topic, "s", position="earliest") as consumer,
    ):
        yield consumer


async def delivered(world: World) -> list[Message]:
    """Return the messages that a new consumer gets. It leaves, so they are delivered again."""
    async with consuming(world) as consumer:
        return await arrived(consumer)


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def commit(application: Application, messages: Any) -> None:
    """Acknowledge messages in a transaction, and commit it."""
    with application.session() as cursor:
        sql.ack(cursor, messages)
        cursor.connection.commit()


def learned(application: Application) -> list[bool]:
    rows = application.run("SELECT learned_at IS NOT NULL FROM escapement_acks ORDER BY message")
    return [bool(row[0]) for row in rows]


@contextmanager
def in_thread(call: Any, *arguments: Any) -> Iterator[list[Any]]:
    """Call a function in a thread. Provide a list that has its result or exception at the end."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call(*arguments))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield found
    thread.join()


async def test_committed_acknowledgements_count_and_rolled_back_ones_do_not(
    application: Application, mock_clock: MockClock
) -> None:
    """V7, V17."""
    async with serving(application) as world:
        await send(world, b"1", b"2", b"3")
        async with consuming(world) as consumer:
            one, two, _three = await arrived(consumer)
            with application.session() as cursor:
                sql.ack(cursor, one)
                cursor.connection.rollback()
                sql.ack(cursor, two)
                cursor.connection.commit()
            await world.clock.advance(seconds=1)
            assert (await consumer.ack([0, 1, 2], durable=True)) == 2
        stats = world.server.stats()
        assert (stats["outbox_acks_learned"], stats["outboxes_waiting"]) == (1, [])
        assert learned(application) == [True]


async def test_learned_acknowledgement_survives_a_crash(
    application: Application, mock_clock: MockClock
) -> None:
    """V2, V7."""
    async with serving(application) as world:
        await send(world, b"1", b"2", b"3")
        messages = await delivered(world)
        commit(application, messages[:2])
        await world.clock.advance(seconds=1)
        assert learned(application) == [True, True]
        await world.crash()
        await world.restart()
        assert payloads(await delivered(world)) == [b"3"]


async def test_acknowledgement_that_was_committed_while_the_broker_was_down_is_learned(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        await send(world, b"1", b"2")
        messages = await delivered(world)
        await world.stop()
        commit(application, messages[1])
        await world.restart()
        await world.clock.advance(seconds=1)
        assert payloads(await delivered(world)) == [b"1"]


async def test_second_holder_is_told_that_the_message_was_processed(
    application: Application, mock_clock: MockClock
) -> None:
    """V7: the broker delivers a message again before it has learned of its acknowledgement."""
    application.run("CREATE TABLE effects (n INT)")
    async with serving(application) as world:
        await send(world, b"1", b"2")
        first = await delivered(world)
        commit(application, first[0])
        async with consuming(world) as consumer:
            second = await arrived(consumer)
            assert payloads(second) == [b"1", b"2"]
            with application.session() as cursor:
                with pytest.raises(AlreadyProcessed, match="t@0 of the subscription s was"):
                    sql.ack(cursor, second[0])
                with pytest.raises(AlreadyProcessed):
                    sql.ack(cursor, second)
                cursor.execute("INSERT INTO effects VALUES (1)")  # the transaction is usable
                sql.ack(cursor, second[1])
                cursor.connection.commit()
            await second[0].ack(durable=True)
        assert application.run("SELECT COUNT(*) FROM effects")[0][0] == 1
        assert payloads(await delivered(world)) == [b"2"]
        assert learned(application) == [False, False]
        await world.clock.advance(seconds=1)
        assert await delivered(world) == []


@pytest.mark.parametrize("commits", [True, False])
async def test_second_holder_waits_for_the_outcome_of_the_first(
    commits: bool, application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        await send(world, b"1", b"2")
        first, second = await delivered(world), await delivered(world)
        with application.session() as cursor:
            sql.ack(cursor, first)
            with in_thread(commit, application, second[::-1]) as found:
                await trio.to_thread.run_sync(wait_for_a_waiting_session, application, found)
                assert not found
                cursor.connection.commit() if commits else cursor.connection.rollback()
        assert isinstance(found[0], AlreadyProcessed) == commits
        assert len(learned(application)) == 2


def wait_for_a_waiting_session(application: Application, found: list[Any]) -> None:
    """Return when a session waits for a lock, or a thread has found something instead."""
    waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    while not found and not application.run(waiting)[0][0]:
        time.sleep(0.15)  # the server renews this table only if it was not read for 0.1 s


async def test_replayed_message_is_processed_again(
    application: Application, mock_clock: MockClock
) -> None:
    """A seek delivers acknowledged messages again, whether or not the relay has learned them."""
    async with serving(application) as world:
        await send(world, b"1", b"2")
        async with consuming(world) as consumer:
            one, two = await arrived(consumer)
            commit(application, one)
            await world.clock.advance(seconds=1)
            commit(application, two)
            await consumer.seek("earliest")
            again = await arrived(consumer)
            await world.clock.advance(seconds=1)
            assert payloads(again) == [b"1", b"2"]
            assert learned(application) == [True, True]
            commit(application, again[0])
            await world.clock.advance(seconds=1)
            assert await consumer.ack(again, durable=True) == 1
        # The delivery to a consumer that connects after the seek has the new id too.
        async with consuming(world) as consumer:
            await consumer.seek("earliest")
        commit(application, await delivered(world))
        await world.clock.advance(seconds=1)
        assert await delivered(world) == []


async def test_messages_of_a_recreated_topic_are_other_messages(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world, world.connect() as broker:
        for _ in range(2):
            await send(world, b"1")
            commit(application, await delivered(world))
            await broker.admin("topics.delete", topic="t", force=True)
        await world.clock.advance(seconds=1)
        assert learned(application) == [True, True]
        await send(world, b"1")
        assert payloads(await delivered(world)) == [b"1"]


async def test_message_with_the_offset_of_a_lost_one_is_another_message(
    application: Application, mock_clock: MockClock
) -> None:
    """The log is restored from an empty backup: offsets come again, and ids of subscriptions."""
    async with serving(application) as world:
        await send(world, b"1", b"2")
        before = await delivered(world)
    async with serving(application) as world:
        await send(world, b"1", b"other")
        after = await delivered(world)
    for one, other in zip(before, after, strict=True):
        other._columns._source = one._columns._source
    commit(application, before)
    commit(application, after[1])
    with pytest.raises(AlreadyProcessed):
        commit(application, after[0])


async def test_old_delivery_is_refused(application: Application, mock_clock: MockClock) -> None:
    async with serving(application) as world:
        await send(world, b"1")
        (message,) = await delivered(world)
        columns = message._columns
        for days, refused in ((3.4, False), (3.6, True)):
            sent_ms = columns._source.sent_after_ms - int(days * 86_400_000)
            columns._source = columns._source._replace(sent_after_ms=sent_ms)
            if refused:
                with pytest.raises(
                    escapement.InvalidRequest, match=r"is 7.0 days old; at most 3.5"
                ):
                    commit(application, message)
            else:
                commit(application, message)
                application.run("DELETE FROM escapement_acks")


async def test_row_that_commits_after_later_rows_were_learned_is_learned_too(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        await send(world, b"1", b"2")
        one, two = await delivered(world)
        with application.session() as early:
            sql.ack(early, one)
            commit(application, two)
            await world.clock.advance(seconds=1)
            assert learned(application) == [True]
            assert payloads(await delivered(world)) == [b"1"]
            early.connection.commit()
        await world.clock.advance(seconds=1)
        assert await delivered(world) == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_relay_and_open_transactions_do_not_wait_for_each_other(
    level: str, application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(application) as world:
        await send(world, *(b"%d" % n for n in range(6)))
        messages = await delivered(world)
        commit(application, messages[1])
        with application.session() as one, application.session() as other:
            for cursor in (one, other):
                cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
                cursor.execute("SET innodb_lock_wait_timeout = 1")
            sql.ack(one, messages[2])
            with pytest.raises(AlreadyProcessed):
                sql.ack(one, messages[1])  # from now on it has a lock on the committed row
            sql.ack(other, messages[4])
            other.connection.commit()
            await world.clock.advance(seconds=1)
            assert payloads(await delivered(world)) == [b"0", b"2", b"3", b"5"]
            assert learned(application) == [False, True]
            sql.ack(one, messages[3])
            sql.ack(other, messages[5])
            other.connection.commit()
            one.connection.commit()
        await world.clock.advance(seconds=1)
        assert learned(application) == [True] * 5
        assert payloads(await delivered(world)) == [b"0"]
        assert not caplog.records


async def test_consumers_insert_while_the_relay_has_locked_rows(application: Application) -> None:
    insert(application, 5, learned_days_ago=8)
    acks = AcksInApplication(application.engine, LOG)
    acks.attach()
    acks._open.begin()
    acks._open.execute("SELECT message FROM escapement_acks WHERE message <> '' FOR UPDATE")
    with application.session() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = 1")
        cursor.execute(INSERT, (key(5), LOG, 5, None))
        cursor.connection.commit()
    acks.close()
    assert len(learned(application)) == 6


INSERT = (
    "INSERT INTO escapement_acks (message, log, topic, subscription, message_offset, acked_at,"
    " learned_at) VALUES (%s, %s, 'public/default/t', 's', %s, UTC_TIMESTAMP(3),"
    " UTC_TIMESTAMP(3) - INTERVAL %s DAY)"
)


def key(offset: int, log: bytes = LOG) -> bytes:
    return AckKey(log, 1, offset, bytes(8)).pack()


def insert(
    application: Application, count: int, learned_days_ago: int | None, log: bytes = LOG
) -> None:
    with application.session() as cursor:
        cursor.executemany(INSERT, [(key(n, log), log, n, learned_days_ago) for n in range(count)])
        cursor.connection.commit()


def test_rows_are_deleted_a_week_after_they_were_learned(application: Application) -> None:
    acks = AcksInApplication(application.engine, LOG)
    acks.attach()
    insert(application, MAX_ROWS + 5, learned_days_ago=8)
    insert(application, 3, learned_days_ago=8, log=bytes(16))
    with application.session() as cursor:
        cursor.execute("DELETE FROM escapement_acks WHERE message = %s", (key(7),))
        cursor.execute(INSERT, (key(7), LOG, 7, 6))  # learned six days ago
        cursor.execute("DELETE FROM escapement_acks WHERE message = %s", (key(8),))
        cursor.execute(INSERT, (key(8), LOG, 8, None))  # not learned yet
        cursor.execute("UPDATE escapement_acks SET acked_at = acked_at - INTERVAL 30 DAY")
        cursor.connection.commit()
        cursor.execute("SELECT 1 FROM escapement_acks WHERE message = %s FOR UPDATE", (key(9),))
        assert [acks.purge(), acks.purge()] == [False, False]  # one row of the first step is locked
        cursor.connection.rollback()
    assert len(learned(application)) == 6
    acks.purge()
    acks.close()
    left = application.run("SELECT message_offset FROM escapement_acks WHERE log = %s", LOG)
    assert sorted(left) == [(7,), (8,)]


async def test_relay_deletes_old_rows_while_it_learns_new_ones(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        await send(world, b"1", b"2")
        one, two = await delivered(world)
        commit(application, one)
        await world.clock.advance(seconds=1)
        application.run("UPDATE escapement_acks SET learned_at = learned_at - INTERVAL 8 DAY")
        commit(application, two)
        await world.clock.advance(seconds=61)
        assert application.run("SELECT message_offset FROM escapement_acks") == ((two.offset,),)


async def test_rows_of_another_log_are_left_alone(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        await send(world, b"1")
        commit(application, await delivered(world))
        await world.stop()
        async with serving(application) as other:
            await send(other, b"1")
            commit(application, await delivered(other))
            await other.clock.advance(seconds=1)
            assert sorted(learned(application)) == [False, True]
            assert await delivered(other) == []
        await world.restart()
        await world.clock.advance(seconds=1)
        assert learned(application) == [True, True]


async def test_rows_that_name_no_message_are_marked_too(
    application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(application) as world:
        await send(world, b"1")
        (message,) = await delivered(world)
        source = message._columns._source
        wrong = [
            (0, 99, "public/default/t", "s"),
            (9, source.subscription_id, "public/default/t", "s"),  # beyond the end of the log
            (-1, source.subscription_id, "public/default/t", "s"),
            (0, source.subscription_id, "no/such/topic", "s"),
            (0, source.subscription_id, "'", ""),
        ]
        for n, (offset, subscription_id, topic, name) in enumerate(wrong):
            packed = AckKey(source.log, subscription_id, offset, b"%08d" % n).pack()
            application.run(
                "INSERT INTO escapement_acks (message, log, topic, subscription, message_offset,"
                " acked_at) VALUES (%s, %s, %s, %s, %s, NOW(3))",
                *(packed, source.log, topic, name, offset),
            )
        await world.clock.advance(seconds=1)
        assert learned(application) == [True] * len(wrong)
        assert payloads(await delivered(world)) == [b"1"]
        assert not caplog.records


async def test_row_is_marked_only_when_the_log_has_the_acknowledgement(
    application: Application, mock_clock: MockClock
) -> None:
    outage = Outage()
    async with serving(application, engine=outage.engine) as world:
        await send(world, b"1")
        message = await delivered(world)
        outage.unreachable()
        commit(application, message)
        await world.clock.advance(seconds=2)
        assert learned(application) == [False]
        outage.over()
        await world.clock.advance(seconds=10)
        assert learned(application) == [True]
        await world.crash()
        await world.restart()
        assert await delivered(world) == []


@pytest.mark.parametrize("step", ["UPDATE", "reply", "crash"])
async def test_rows_are_learned_although_the_mark_fails_at_first(
    step: str, application: Application, mock_clock: MockClock
) -> None:
    """The log has the acknowledgements, and the relay repeats them."""
    failures = 1

    def before(text: str) -> None:
        nonlocal failures
        if text.startswith("UPDATE escapement_acks") and step != "reply" and failures:
            failures -= 1
            raise StorageUnavailable("broken, says the test")

    def after(text: str) -> None:
        nonlocal failures
        if text == "commit" and step == "reply" and failures:
            failures -= 1
            raise OutcomeUnknown("the reply to a COMMIT is lost, says the test")

    engine = FaultyEngine(application.engine, before, after)
    async with serving() as world:
        await send(world, b"1", b"2")
        messages = await delivered(world)
        commit(application, messages[0])
        for _ in range(2):
            services = world.server.services
            relay = AckRelay(
                engine,
                services.log_identity,
                topics_of(world),
                services.consuming,
                services.pipeline.transact,
                inline,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(relay.run)
                await world.clock.advance(ms=100 if step == "crash" else 10_000)
                nursery.cancel_scope.cancel()
            relay.close()
            assert not failures
            if step == "crash" and learned(application) == [False]:
                await world.crash()
                await world.restart()
        assert learned(application) == [True]
        assert payloads(await delivered(world)) == [b"2"]


async def test_read_only_log_learns_nothing_and_says_so(
    application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage()
    async with serving(application, engine=outage.engine) as world:
        await send(world, b"1", b"2")
        async with consuming(world) as consumer:
            one, two = await arrived(consumer)
            outage.read_only()
            await one.ack()
            await world.clock.advance(seconds=1)  # a lane notices it
            commit(application, two)
            await world.clock.advance(seconds=2)
            assert learned(application) == [False]
            assert "acknowledgements in a database wait: the database is read-only" in caplog.text
            outage.over()
            await world.clock.advance(seconds=20)
            assert learned(application) == [True]


async def test_missing_table_is_named_and_the_outbox_is_served(
    application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a database whose outbox an earlier version has installed."""
    application.run("DROP TABLE escapement_acks")
    async with serving(application) as world:
        application.send(b"1")
        await world.clock.advance(seconds=10)
        (waiting,) = world.server.stats()["outboxes_waiting"]
        assert "the table escapement_acks is not there; create it with `escapement sql" in waiting
        assert caplog.text.count("escapement_acks is not there") == 1
        (message,) = await delivered(world)
        with pytest.raises(pymysql.err.ProgrammingError, match="escapement_acks"):
            commit(application, message)
        application.install()
        commit(application, message)
        await world.clock.advance(seconds=10)
        assert await delivered(world) == []
        assert world.server.stats()["outboxes_waiting"] == []


async def test_backlog_of_several_steps_is_learned_without_a_pause(
    application: Application, mock_clock: MockClock
) -> None:
    count = 2 * MAX_ROWS + 1
    async with serving(application) as world:
        async with world.connect() as broker:
            producer = await broker.producer("t")
            await producer.send_many([b"x"] * count)
        (message,) = (await delivered(world))[:1]
        source = message._columns._source
        with application.session() as cursor:
            cursor.executemany(
                INSERT,
                [
                    (
                        AckKey(source.log, source.subscription_id, n, b"8 bytes.").pack(),
                        source.log,
                        n,
                        None,
                    )
                    for n in range(count)
                ],
            )
            cursor.connection.commit()
        await world.clock.advance(ms=250)
        assert learned(application) == [True] * count
        assert await delivered(world) == []


async def test_source_of_a_message_is_that_of_its_batch(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        await send(world, b"1", b"2", b"3")
        async with consuming(world) as consumer:
            assert await consumer.receive() is not None
            rest = await consumer.next_batch()
            assert rest is not None
            assert isinstance(rest._source, Source)
            commit(application, rest)
        await world.clock.advance(seconds=1)
        assert payloads(await delivered(world)) == [b"1"]
