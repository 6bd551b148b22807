"""The outbox relay in a whole broker on a virtual clock, with a real database server."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

import pymysql
import pytest
import trio

from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.clock import moment
from escapement.sql import schedule
from escapement.storage.engine.mysql.engine import MysqlConnection, MysqlEngine
from escapement.storage.outbox.application import MAX_BYTES, MAX_TOPICS, OutboxInApplication
from escapement.storage.outbox.statements import MAX_ROWS
from escapement.storage.outbox.tables import RESET
from escapement.testing import arrived
from support.outbox.outboxes import Application, moved, serving

MockClock = trio.testing.MockClock
INSERT = "INSERT INTO escapement_outbox (topic, payload) VALUES ('t', %s)"
# Locks the first rows, up to a number.
LOCK_FIRST = "SELECT id FROM escapement_outbox ORDER BY id LIMIT %s FOR UPDATE"


async def test_committed_rows_become_messages_and_rolled_back_rows_do_not(
    application: Application, mock_clock: MockClock
) -> None:
    """V7, N7."""
    async with serving(application) as world:
        with application.session() as cursor:
            cursor.execute(INSERT, (b"rolled back",))
            cursor.connection.rollback()
            cursor.execute(INSERT, (b"committed",))
            assert await moved(world) == []
            cursor.connection.commit()
        assert await moved(world) == [b"committed"]
        assert application.left == 0
        assert await moved(world) == [b"committed"]


async def test_message_has_all_that_the_row_has(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world, world.connect() as broker:
        due = moment(world.clock.now_ms() + 86_400_123)
        properties = {"n": 1, "text": "é", "list": [True, None, 1.5]}
        application.send(b"\x00\xff", key="schlüssel ", properties=properties, priority=3, at=due)
        await moved(world)
        async with broker.consumer("t", "s", position="earliest") as consumer:
            await world.clock.advance(days=1, ms=-9_878)
            assert await arrived(consumer) == []
            await world.clock.advance(ms=10)  # a tick
            (message,) = await arrived(consumer)
        assert message.payload == b"\x00\xff"
        assert message.key == "schlüssel "
        assert message.properties == properties
        assert message.priority == 3
        assert moment(message.due_ms) == due


async def test_row_that_commits_after_a_later_row_was_moved_is_moved_too(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        with application.session() as early, application.session() as late:
            early.execute(INSERT, (b"early",))
            late.execute(INSERT, (b"late",))
            late.connection.commit()
            assert await moved(world) == [b"late"]
            early.connection.commit()
        assert await moved(world) == [b"late", b"early"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_open_transactions_delay_neither_the_relay_nor_each_other(
    level: str, application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        application.send(b"first")
        with application.session() as open, application.session() as other:
            for cursor in (open, other):
                cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
                cursor.execute("SET innodb_lock_wait_timeout = 1")
            open.execute(INSERT, (b"open",))
            assert await moved(world) == [b"first"]
            other.execute(INSERT, (b"other",))
            other.connection.commit()
            assert await moved(world) == [b"first", b"other"]
            open.execute(INSERT, (b"open too",))
            open.connection.commit()
        assert await moved(world) == [b"first", b"other", b"open", b"open too"]


async def test_open_transaction_delays_no_large_batch(
    application: Application, mock_clock: MockClock
) -> None:
    """For a long list of ids, the server prefers to scan the table, and meets the locked row."""
    async with serving(application) as world:
        with application.session() as open:
            open.execute(INSERT, (b"open",))
            application.send(*[b"x"] * 1_000)
            assert len(await moved(world)) == 1_000
            assert application.left == 0
            open.connection.commit()
        assert len(await moved(world)) == 1_001


async def test_relay_deletes_many_rows_between_rows_of_an_open_transaction(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        with application.session() as open, application.session() as other:
            for n in range(40):
                (open if n % 3 else other).execute(INSERT, (b"%d" % (n % 3),))
            other.connection.commit()
            assert await moved(world) == [b"0"] * 14
            assert application.left == 0
            open.connection.commit()
        assert len(await moved(world)) == 40


async def test_application_inserts_while_the_relay_has_locked_rows(
    application: Application, mock_clock: MockClock
) -> None:
    application.send(b"1", b"2")
    outbox = OutboxInApplication(application.engine, bytes(16), {})
    outbox.attach()
    rows, _ = outbox.take()
    with application.session() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = 1")
        cursor.execute(INSERT, (b"3",))
        outbox.finish(rows, [], 1)
        cursor.execute(INSERT, (b"4",))
        cursor.connection.commit()
    rows, _ = outbox.take()
    assert [row.payload for row in rows] == [b"3", b"4"]
    outbox.close()
    assert application.left == 2


async def test_reset_waits_for_the_batch_in_progress(application: Application) -> None:
    application.send(b"1")
    outbox = OutboxInApplication(application.engine, bytes(16), {})
    outbox.attach()
    rows, _ = outbox.take()
    with application.session() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = 1")
        with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
            cursor.execute(RESET)
        outbox.finish(rows, [], 1)
        cursor.execute(RESET)
        cursor.connection.commit()
    assert application.left == 0
    outbox.close()


async def test_rows_of_a_key_keep_their_order_when_another_session_locks_one(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        with application.session() as holder:
            application.send(b"a1", key="a")
            application.send(b"b1", key="b")
            application.send(b"a2", key="a")
            application.send(b"none")
            holder.execute("SELECT * FROM escapement_outbox WHERE payload = 'a1' FOR UPDATE")
            holder.connection.rollback()
            holder.execute(
                "SELECT * FROM escapement_outbox WHERE id ="
                " (SELECT MIN(id) FROM escapement_outbox) FOR UPDATE"
            )
            assert await moved(world) == [b"b1", b"none"]
            holder.connection.rollback()
        assert await moved(world) == [b"b1", b"none", b"a1", b"a2"]


async def test_large_locked_rows_do_not_delay_the_rows_of_other_keys(
    application: Application, mock_clock: MockClock
) -> None:
    large = bytes(MAX_BYTES)
    async with serving(application) as world:
        application.send(large, key="a")
        application.send(large, key="c")
        application.send(b"a2", key="a")
        application.send(b"b1", key="b")
        with application.session() as holder:
            holder.execute(LOCK_FIRST, (2,))
            assert await moved(world) == [b"b1"]
            holder.connection.rollback()
        assert await moved(world) == [b"b1", large, large, b"a2"]


async def test_many_rows_behind_a_locked_row_do_not_delay_the_rows_of_other_keys(
    application: Application, mock_clock: MockClock
) -> None:
    many = [b"%d" % n for n in range(MAX_ROWS + 1)]
    async with serving(application) as world:
        application.send(*many, key="a")
        application.send(b"b", key="b")
        with application.session() as holder:
            holder.execute(LOCK_FIRST, (1,))
            assert await moved(world) == [b"b"]
            assert application.left == len(many)
            holder.connection.rollback()
        assert await moved(world) == [b"b", *many]


async def test_rows_of_later_slices_wait_for_related_rows_of_earlier_ones(
    application: Application, mock_clock: MockClock
) -> None:
    large = bytes(MAX_BYTES)
    async with serving(application) as world:
        application.send(large, key="a")
        application.send(b"2", key="a", dedup="d")
        application.send(b"3", key="c", dedup="d")
        application.send(b"4", key="c")
        application.send(b"5", key="b")
        with application.session() as holder:
            holder.execute(LOCK_FIRST, (1,))
            assert await moved(world) == [b"5"]
            assert application.left == 4
            holder.connection.rollback()
        assert await moved(world) == [b"5", large, b"2", b"4"]


async def test_rows_that_can_never_be_delivered_are_kept_with_their_reasons(
    application: Application, mock_clock: MockClock
) -> None:
    config = BrokerConfig(seed=0, limits=BrokerLimits(max_delay_ms=86_400_000))
    async with serving(application, config=config) as world:
        columns = "topic, payload, headers, due_at, dedup_key"
        insert = f"INSERT INTO escapement_outbox ({columns}) VALUES (%s, %s, %s, %s, %s)"
        late = moment(world.clock.now_ms()) + timedelta(days=1, seconds=60)
        bad = [
            ("no/topic", b"name", None, None, None),
            ("t", b"headers", json.dumps([1]), None, None),
            ("t", b"number", json.dumps(2**64), None, None),
            ("t", b"late", None, late.astimezone(UTC).replace(tzinfo=None), None),
            ("t", b"dedup", None, None, ""),
            ("t", bytes(9 << 20), None, None, None),
            ("t", b"floats", '{"x":[' + ",".join(["1e1"] * 1_000_000) + "]}", None, None),
        ]
        for row in bad:
            application.run(insert, *row)
        application.send(b"good")
        assert await moved(world) == [b"good"]
        assert application.left == 0
        kept = [(payload[:10], reason) for payload, reason in application.refusals]
        assert [payload for payload, _ in kept] == [row[1][:10] for row in bad]
        reasons = [reason for _, reason in kept]
        wanted = [
            "not a topic",
            "JSON object",
            "JSON object",
            "maximum delay",
            "dedup_key is empty",
        ]
        for reason, part in zip(
            reasons, [*wanted, "more than 8,323,072", "payload and properties"], strict=True
        ):
            assert part in reason


async def test_delay_policy_of_the_topic_applies_to_rows(
    application: Application, mock_clock: MockClock
) -> None:
    """B10: the default and the maximum, but not the minimum, because rows may have waited."""
    async with serving(application) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t")
        policy = {"default_delay_ms": "30m", "min_delay_ms": "10m", "max_delay_ms": "1h"}
        await broker.admin("topics.update", topic="t", policy=policy)
        now_ms = world.clock.now_ms()
        application.send(b"bare")
        application.send(b"soon", at=moment(now_ms + 60_000))
        application.send(b"late", at=moment(now_ms + 7_200_000))
        assert await moved(world) == [b"bare", b"soon"]
        pages = [page async for page in broker.read("t")]
        due_in_s = [round((ms - now_ms) / 1000) for page in pages for ms in page.due_ms.tolist()]
        assert 1800 <= due_in_s[0] <= 1810
        assert due_in_s[1] == 60
        await broker.admin("topics.update", topic="t", policy={"default_delay_ms": None})
        space = {"namespace": "public/default", "policy": {"default_delay_ms": "2h"}}
        await broker.admin("namespaces.update", **space)
        application.send(b"default")
        assert await moved(world) == [b"bare", b"soon"]
        (late, late_reason), (default, default_reason) = application.refusals
        assert (late, default) == (b"late", b"default")
        assert "maximum delay of 1h, set by topic public/default/t" in late_reason
        assert default_reason == (
            "the default delay of 2h, set by namespace public/default is longer than the maximum "
            "of 1h, set by topic public/default/t"
        )


async def test_outbox_with_other_column_types_is_served(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(
        "ALTER TABLE escapement_outbox DROP COLUMN payload_bytes, MODIFY payload LONGTEXT,"
        " MODIFY id BIGINT UNSIGNED AUTO_INCREMENT, MODIFY topic VARBINARY(640) NOT NULL,"
        " MODIFY priority INT NULL, MODIFY `key` LONGTEXT, MODIFY headers LONGTEXT,"
        " ADD COLUMN payload_bytes BIGINT AS (OCTET_LENGTH(payload)) STORED"
    )
    application.run(
        "INSERT INTO escapement_outbox (topic, payload, priority) VALUES ('t', 'a', NULL),"
        " ('t', 'é', 255), ('t', 'refused', 256)"
    )
    application.run(
        "INSERT INTO escapement_outbox (topic, payload, `key`)"
        " VALUES ('t', '', REPEAT('k', 9000000))"
    )
    application.run(
        "INSERT INTO escapement_outbox (topic, payload, headers) VALUES ('t', '', '{x}')"
    )
    async with serving(application) as world:
        assert await moved(world) == [b"a", "é".encode()]
        reasons = [reason for _, reason in application.refusals]
        assert reasons[:2] == [
            "priority must be from 0 to 255, not 256",
            "key has more than 1024 characters",
        ]
        assert reasons[2].startswith("headers cannot be read: ")
        assert application.left == 0


async def test_missing_outbox_is_named_and_served_once_it_exists(
    mysql_url: str, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    application = Application(mysql_url)
    async with serving(application) as world:
        assert await moved(world) == []
        assert "escapement sql install" in caplog.text
        assert caplog.text.count("rows of the outbox escapement_outbox wait") == 1
        assert caplog.text.count("acknowledgements in a database wait") == 1
        location = application.engine.location
        assert [
            waiting.partition("; ")[0] for waiting in world.server.stats()["outboxes_waiting"]
        ] == [
            f"{location}: no complete outbox is there",
            f"{location}: the table escapement_acks is not there",
        ]
        application.install()
        application.send(b"now")
        with caplog.at_level(logging.INFO):
            assert await moved(world) == [b"now"]
        again = f"rows of the outbox escapement_outbox are moved again from {location}"
        assert caplog.messages.count(again) == 1
        assert caplog.messages.count(f"acknowledgements are read again from {location}") == 1
        stats = world.server.stats()
        assert stats["outboxes_waiting"] == []
        assert (stats["outbox_moved"], stats["outbox_refused"]) == (1, 0)


async def test_problem_of_a_whole_database_is_listed_once(mock_clock: MockClock) -> None:
    """It has two relays, an outbox and acknowledgements."""
    application = Application("mysql://shop:secret@127.0.0.1:1/shop")
    async with serving(application) as world:
        await world.clock.advance(seconds=10)
        (waiting,) = world.server.stats()["outboxes_waiting"]
    assert waiting.startswith("mysql://shop@127.0.0.1:1/shop: Can't connect")
    assert waiting.count("mysql://") == 1


async def test_relays_of_a_missing_outbox_connect_at_most_every_five_seconds(
    mysql_url: str, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox relay and the ack relay do, and the task that reads the mappings."""
    application, connect = Application(mysql_url), MysqlEngine.connect
    connections: list[float] = []

    def counted(engine: MysqlEngine) -> MysqlConnection:
        connections.append(trio.current_time())
        return connect(engine)

    monkeypatch.setattr(MysqlEngine, "connect", counted)
    async with serving(application) as world:
        for second in range(120):
            if second == 20:
                connections.clear()
            await world.clock.advance(seconds=1)
        assert 40 <= len(connections) <= 62


async def test_batch_is_bounded_unless_a_single_row_is_larger(application: Application) -> None:
    sizes = [400_000, 400_000, 400_000, 5 << 20, 1, 2]
    application.send(*(bytes(size) for size in sizes))
    outbox = OutboxInApplication(application.engine, bytes(16), {})
    outbox.attach()
    batches = []
    for batch in range(1, 5):
        rows, more = outbox.take()
        batches.append([len(row.payload or b"") for row in rows])
        assert more == (batch < 4)
        outbox.finish(rows, [], batch)
    assert batches == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]
    assert outbox.take() == ([], False)
    outbox.close()


async def test_batch_has_a_bounded_number_of_topics(application: Application) -> None:
    with application.session() as cursor:
        for number in range(2 * MAX_TOPICS + 5):
            schedule(cursor, f"t{number}", b"first")
        for number in range(3):
            schedule(cursor, f"t{number}", b"second")
        cursor.connection.commit()
    outbox = OutboxInApplication(application.engine, bytes(16), {})
    outbox.attach()
    heights = []
    for batch in range(1, 4):
        rows, more = outbox.take()
        heights.append(len(rows))
        assert more == (batch < 3)
        outbox.finish(rows, [], batch)
    assert heights == [MAX_TOPICS, MAX_TOPICS, 8]
    outbox.close()


async def test_row_with_the_id_of_a_waiting_row_is_another_message(
    application: Application, mock_clock: MockClock
) -> None:
    """As after TRUNCATE, or a restore: ids of rows come again."""
    insert = "INSERT INTO escapement_outbox (id, topic, payload) VALUES (7, 't', %s)"
    config = BrokerConfig(auto_create_topics=False, seed=0)
    async with serving(application, config=config) as world, world.connect() as broker:
        application.run(insert, b"1")
        assert await moved(world) == []
        application.run(insert, b"2")
        assert await moved(world) == []
        assert application.left == 0
        await broker.admin("topics.create", topic="t")
        assert await moved(world) == [b"1", b"2"]


async def test_delay_counts_by_the_clock_of_the_database(application: Application) -> None:
    before = application.run("SELECT UTC_TIMESTAMP(3)")[0][0]
    application.send(b"", delay="3m")
    after = application.run("SELECT UTC_TIMESTAMP(3)")[0][0]
    due = application.run("SELECT due_at FROM escapement_outbox")[0][0]
    delay = timedelta(minutes=3)
    assert before + delay <= due <= after + delay
    application.send(b"", at=datetime(2030, 1, 1, 0, 0, 0, 123_001, tzinfo=UTC))
    due = application.run("SELECT MAX(due_at) FROM escapement_outbox")[0][0]
    assert due == datetime(2030, 1, 1, 0, 0, 0, 124_000)


async def test_message_with_a_known_dedup_key_is_not_stored_again(
    application: Application, mock_clock: MockClock
) -> None:
    """B3, also across outboxes, producers and restarts."""
    async with serving(application) as world, world.connect() as broker:
        producer = await broker.producer("t")
        await producer.send(b"sent", dedup="a")
        application.send(b"a again", dedup="a")
        application.send(b"b", dedup="b")
        application.send(b"b again", dedup="b")
        application.send(b"none")
        assert await moved(world) == [b"sent", b"b", b"none"]
        receipt = await producer.send(b"b a third time", dedup="b")
        assert receipt.duplicate
        application.send(b"b a fourth time", dedup="b")
        assert await moved(world) == [b"sent", b"b", b"none"]
        assert await world.server.services.inbox_relay.waiting(9) == []
        assert application.left == 0


async def test_dedup_keys_of_an_outbox_survive_a_crash(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        application.send(b"a", dedup="a")
        assert await moved(world) == [b"a"]
        await world.crash()
        await world.restart()
        application.send(b"a again", dedup="a")
        await world.clock.advance(minutes=5)
        assert await moved(world) == [b"a"]
        await world.clock.advance(minutes=6)
        application.send(b"after the window", dedup="a")
        assert await moved(world) == [b"a", b"after the window"]
        assert await world.server.services.inbox_relay.waiting(9) == []
