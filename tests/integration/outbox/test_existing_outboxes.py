"""Tables that applications have already, served as outboxes by a whole broker."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
import trio

from escapement.storage.outbox.application import OutboxInApplication
from escapement.storage.outbox.mapping import OutboxMapping
from escapement.storage.outbox.mapping_table import checked
from escapement.storage.outbox.statements import MAX_ROWS_UNSIZED
from support.outbox import existing_tables as tables
from support.outbox.existing_tables import DELETED, KEPT, WAITING, mapped, profile, unmapped
from support.outbox.outboxes import Application, moved, serving
from support.storage.commit_pipelines import FaultyEngine

MockClock = trio.testing.MockClock
INSERT = "INSERT INTO events (k, body) VALUES (%s, %s)"


@pytest.fixture(params=[DELETED, KEPT], ids=["deleted", "kept"])
def events(request: pytest.FixtureRequest, application: Application) -> OutboxMapping:
    """Return the mapping of the table ``events``, which exists."""
    application.run(tables.EVENTS)
    mapped(application, request.param)
    mapping: OutboxMapping = request.param
    return mapping


# -- order, transactions and locks -----------------------------------------------


async def test_mapped_row_that_commits_after_a_later_row_was_moved_is_moved_too(
    events: OutboxMapping, application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        with application.session() as early, application.session() as late:
            early.execute(INSERT, (None, "early"))
            late.execute(INSERT, (None, "late"))
            late.connection.commit()
            assert await moved(world) == [b"late"]
            early.connection.commit()
        assert await moved(world) == [b"late", b"early"]
        assert application.run(WAITING) == ((0,),)


async def test_mapped_rows_of_a_key_keep_their_order_when_another_session_locks_one(
    events: OutboxMapping, application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        with application.session() as holder:
            for key, body in (("a", "a1"), ("b", "b1"), ("a", "a2")):
                application.run(INSERT, key, body)
            holder.execute("SELECT * FROM events WHERE body = 'a1' FOR UPDATE")
            holder.connection.rollback()
            holder.execute("SELECT * FROM events WHERE id = 1 FOR UPDATE")
            assert await moved(world) == [b"b1"]
            application.run(INSERT, "a", "a3")
            assert await moved(world) == [b"b1"]
        assert await moved(world) == [b"b1", b"a1", b"a2", b"a3"]


async def test_open_transactions_and_the_relay_of_a_mapped_table_do_not_wait_for_each_other(
    events: OutboxMapping, application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        with application.session() as open:
            open.execute("SET innodb_lock_wait_timeout = 1")
            open.execute(INSERT, (None, "open"))
            application.run(INSERT, None, "1")
            assert await moved(world) == [b"1"]
            open.execute(INSERT, (None, "open too"))
            open.connection.commit()
        assert await moved(world) == [b"1", b"open", b"open too"]


async def test_rows_are_moved_in_the_order_of_the_order_column(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(
        "CREATE TABLE letters (id CHAR(36) PRIMARY KEY, at DATETIME(6) NOT NULL,"
        " body TEXT NOT NULL, INDEX (at))"
    )
    mapping = OutboxMapping("letters", topic="t", payload_column="body", order_column="at")
    mapped(application, mapping)
    bodies = [f"{number}" for number in range(40)]
    with application.session() as cursor:
        for number, body in enumerate(bodies):
            cursor.execute(
                "INSERT INTO letters VALUES (UUID(), '2030-01-01' + INTERVAL %s SECOND, %s)",
                (number, body),
            )
        cursor.connection.commit()
    async with serving(application) as world:
        assert await moved(world) == [body.encode() for body in bodies]


# -- rows that stay ------------------------------------------------------------------


async def test_row_that_the_application_makes_done_is_not_moved_and_may_wait_again(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(tables.EVENTS)
    mapped(application, KEPT)
    application.run("INSERT INTO events (body, sent) VALUES ('done before', 1), ('new', 0)")
    async with serving(application) as world:
        assert await moved(world) == [b"new"]
        application.run("UPDATE events SET sent = 0 WHERE body = 'done before'")
        assert await moved(world) == [b"new", b"done before"]
        assert application.run(WAITING) == ((0,),)


async def test_done_row_gets_the_time_and_rows_with_null_wait(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(
        "CREATE TABLE mails (id INT AUTO_INCREMENT PRIMARY KEY, body TEXT NOT NULL,"
        " sent_at DATETIME(3) NULL, INDEX (sent_at, id))"
    )
    mapping = OutboxMapping(
        "mails", topic="t", payload_column="body", done_column="sent_at", done_value="now"
    )
    mapped(application, mapping)
    application.run("INSERT INTO mails (body, sent_at) VALUES ('old', '2020-01-01'), ('new', NULL)")
    async with serving(application) as world:
        before = application.run("SELECT UTC_TIMESTAMP(3)")[0][0]
        assert await moved(world) == [b"new"]
        sent_at = application.run("SELECT sent_at FROM mails WHERE body = 'new'")[0][0]
        assert before <= sent_at <= application.run("SELECT UTC_TIMESTAMP(3)")[0][0]


@pytest.mark.parametrize(
    ("type", "done", "pending", "waits"),
    [
        ("BIT(1) NOT NULL DEFAULT b'0'", "1", None, "b'0'"),
        ("ENUM('NEW', 'SENT') DEFAULT 'NEW'", "SENT", None, "'NEW'"),
        (
            "VARCHAR(20) CHARACTER SET latin1 DEFAULT 'it''s n\u00e9w'",
            "s\\ent",
            None,
            "'it''s néw'",
        ),
        ("TIMESTAMP(3) NULL DEFAULT NULL", "now", None, "NULL"),
        ("CHAR(1) NULL", "Y", None, "NULL"),
        ("INT NOT NULL", "-1", "0", "0"),
        ("INT NULL DEFAULT 7", "0", "NULL", "NULL"),
        ("DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP", "now", "1970-01-01", "'1970-01-01'"),
    ],
)
async def test_done_column_may_have_any_type(
    type: str,
    done: str,
    pending: str | None,
    waits: str,
    application: Application,
    mock_clock: MockClock,
) -> None:
    application.run(
        f"CREATE TABLE events (id INT UNSIGNED PRIMARY KEY, body TEXT, done {type}, INDEX (done))"
    )
    mapping = OutboxMapping(
        "events",
        topic="t",
        payload_column="body",
        done_column="done",
        done_value=done,
        pending_value=pending,
    )
    mapped(application, mapping)
    application.run(f"INSERT INTO events VALUES (1, 'a', {waits}), (2, 'b', {waits})")
    async with serving(application) as world:
        assert await moved(world) == [b"a", b"b"]
        assert await moved(world) == [b"a", b"b"]
    if done != "now":
        values = application.run("SELECT CAST(done AS CHAR), HEX(done) FROM events")
        assert {str(text) for text, _ in values} <= {done, "\x01"}


@pytest.mark.parametrize("type", ["TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT UNSIGNED"])
async def test_id_may_be_unique_without_being_the_primary_key(
    type: str, application: Application, mock_clock: MockClock
) -> None:
    application.run(
        f"CREATE TABLE events (seq {type} AUTO_INCREMENT PRIMARY KEY, id BINARY(16) NOT NULL,"
        " body TEXT, sent_s INT, UNIQUE (id))"
    )
    mapping = OutboxMapping("events", topic="t", payload_column="body", order_column="seq")
    mapped(application, mapping)
    insert = "INSERT INTO events (id, body) VALUES (%s, %s)"
    async with serving(application) as world:
        with application.session() as early:
            early.execute(insert, (uuid4().bytes, "early"))
            for body in ("1", "2", "3"):
                application.run(insert, uuid4().bytes, body)
            assert await moved(world) == [b"1", b"2", b"3"]
            early.connection.commit()
        assert await moved(world) == [b"1", b"2", b"3", b"early"]
        assert application.run("SELECT COUNT(*) FROM events") == ((0,),)


def test_look_at_a_table_without_sizes_has_fewer_rows(
    events: OutboxMapping, application: Application
) -> None:
    with application.session() as cursor:
        cursor.executemany("INSERT INTO events (body) VALUES (%s)", [("b",)] * 600)
        cursor.connection.commit()
    outbox = OutboxInApplication(application.engine, bytes(16), {}, events)
    outbox.attach()
    heights = []
    for batch in (1, 2):
        rows, more = outbox.take()
        heights.append((len(rows), more))
        outbox.finish(rows, [], batch)
    assert heights == [(MAX_ROWS_UNSIZED, True), (600 - MAX_ROWS_UNSIZED, False)]
    outbox.close()


async def test_id_that_is_too_large_is_named(
    application: Application, mock_clock: MockClock
) -> None:
    application.run("CREATE TABLE events (id BIGINT UNSIGNED PRIMARY KEY, body TEXT)")
    mapped(application, OutboxMapping("events", topic="t", payload_column="body"))
    async with serving(application) as world:
        application.run(f"INSERT INTO events VALUES ({2**63}, 'large')")
        assert await moved(world) == []
        (waiting,) = world.server.stats()["outboxes_waiting"]
        assert f"row {2**63} has a larger id" in waiting
        application.run(f"UPDATE events SET id = {2**63 - 1}")
        assert await moved(world) == [b"large"]


def test_row_that_becomes_done_during_a_look_is_not_moved(application: Application) -> None:
    application.run(tables.EVENTS)
    mapped(application, KEPT)
    for key, body in (("a", "done meanwhile"), ("b", "b"), ("a", "a")):
        application.run(INSERT, key, body)
    sessions = ["UPDATE events SET sent = 1 WHERE id = 1"]

    def before(step: str) -> None:
        if step.startswith("SELECT") and "FOR UPDATE" in step and "events" in step and sessions:
            application.run(sessions.pop())

    outbox = OutboxInApplication(FaultyEngine(application.engine, before), bytes(16), {}, KEPT)
    outbox.attach()
    rows, _ = outbox.take()
    assert [row.payload for row in rows] == [b"b"]
    outbox.finish(rows, [], 1)
    rows, _ = outbox.take()
    assert [row.payload for row in rows] == [b"a"]
    outbox.close()


@pytest.mark.parametrize("waiting", [1, 5_000])
def test_look_reads_no_rows_that_are_done(waiting: int, application: Application) -> None:
    application.run(tables.EVENTS)
    mapped(application, KEPT)
    with application.session() as cursor:
        insert = "INSERT INTO events (body, sent) VALUES (%s, %s)"
        cursor.executemany(insert, [("done", 1)] * 5_000)
        cursor.executemany(insert, [("waits", 0)] * waiting)
        cursor.connection.commit()
    connection = application.engine.connect()
    look = checked(connection, KEPT)
    connection.execute("FLUSH STATUS")
    found = [row[0] for row in connection.execute(look.look, (look.look_rows,)).rows]
    read = connection.execute("SHOW SESSION STATUS LIKE 'Handler_read%'").rows
    connection.close()
    assert len(found) == min(waiting, look.look_rows)
    assert found == sorted(found)
    assert sum(int(count) for _, count in read) < len(found) + 20


# -- rows that are refused -----------------------------------------------------------


async def test_refused_rows_of_a_mapped_table_are_kept_whole(
    events: OutboxMapping, application: Application, mock_clock: MockClock
) -> None:
    application.run("ALTER TABLE events MODIFY k TEXT")
    async with serving(application) as world:
        application.run(INSERT, "k" * 1025, "refused")
        application.run(INSERT, None, "good")
        assert await moved(world) == [b"good"]
        ((name, id, payload, reason, row),) = application.run(
            "SELECT outbox, id, payload, reason, row_json FROM escapement_outbox_refused"
        )
        assert (name, id, payload) == ("events", "1", b"refused")
        assert reason == "key has more than 1024 characters"
        assert json.loads(row) == {"id": 1, "k": "k" * 1025, "sent": 0}
        assert application.run(WAITING) == ((0,),)
        assert world.server.stats()["outbox_refused"] == 1


async def test_refused_row_with_a_binary_id_keeps_it(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(tables.DEBEZIUM.replace("CHAR(36)", "BINARY(16)"))
    mapped(application, profile("debezium", "outbox"))
    id = uuid4()
    async with serving(application) as world:
        application.run("INSERT INTO outbox VALUES (%s, 'no topic', 'k', 'T', NULL)", id.bytes)
        assert await moved(world) == []
        kept = application.run("SELECT id, row_json FROM escapement_outbox_refused")
        assert kept[0][0] == id.hex
        assert json.loads(kept[0][1])["aggregatetype"] == "no topic"
        assert application.run("SELECT COUNT(*) FROM outbox") == ((0,),)


@pytest.mark.parametrize("done_column", [None, "sent"])
async def test_row_that_cannot_be_kept_whole_stays_in_its_table(
    done_column: str | None, application: Application, mock_clock: MockClock
) -> None:
    """In base64, the bytes of the row are larger than a packet of the server."""
    application.run(
        "CREATE TABLE files (id INT PRIMARY KEY, bytes LONGBLOB, sent INT DEFAULT 0, INDEX (sent))"
    )
    mapping = OutboxMapping("files", topic="t", done_column=done_column, done_value="1")
    mapped(application, mapping)
    (packet_bytes,) = application.run("SELECT @@max_allowed_packet")[0]
    async with serving(application) as world:
        application.run(
            "INSERT INTO files (id, bytes) VALUES (1, REPEAT('x', %s))", packet_bytes * 7 // 8
        )
        assert await moved(world) == []
        assert application.run("SELECT id, sent FROM files") == ((1, int(bool(done_column))),)
        if done_column is None:
            (waiting,) = world.server.stats()["outboxes_waiting"]
            assert "escapement_outbox_refused does not take row 1" in waiting
            application.run("UPDATE files SET bytes = 'small'")
            (message,) = await moved(world)
            assert json.loads(message)["bytes"] == "c21hbGw="


# -- mappings come and go ------------------------------------------------------------


async def test_broker_follows_mappings_while_it_runs(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(tables.EVENTS)
    async with serving(application) as world:
        application.run(INSERT, None, "1")
        assert await moved(world) == []
        mapped(application, DELETED)
        assert await moved(world) == [b"1"]
        unmapped(application, "events")
        await world.clock.advance(seconds=10)
        application.run(INSERT, None, "2")
        assert await moved(world) == [b"1"]
        mapped(application, KEPT)
        assert await moved(world) == [b"1", b"2"]
        application.send(b"ours")
        assert await moved(world) == [b"1", b"2", b"ours"]
        stats = world.server.stats()
        assert (stats["outbox_moved"], stats["outboxes_waiting"]) == (3, [])
        assert application.run("SELECT body, sent FROM events") == (("2", 1),)


async def test_tables_whose_names_differ_in_case_are_two_outboxes(
    application: Application, mock_clock: MockClock
) -> None:
    application.run("CREATE TABLE mails (id INT PRIMARY KEY, body TEXT, sent INT)")
    application.run("CREATE TABLE Mails (number INT PRIMARY KEY, text TEXT)")
    mapped(application, OutboxMapping("mails", topic="t", payload_column="body"))
    other = OutboxMapping("Mails", id_column="number", topic="t", payload_column="text")
    mapped(application, other)
    async with serving(application) as world:
        application.run("INSERT INTO mails VALUES (1, 'of mails', 0)")
        assert await moved(world) == [b"of mails"]
        application.run("INSERT INTO Mails VALUES (1, 'of Mails')")
        assert await moved(world) == [b"of mails", b"of Mails"]


async def test_table_that_no_longer_fits_waits_with_the_reason_and_others_do_not(
    events: OutboxMapping, application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world:
        application.run(INSERT, None, "1")
        assert await moved(world) == [b"1"]
        application.run("ALTER TABLE events RENAME COLUMN body TO text")
        application.run("INSERT INTO events (text) VALUES ('2')")
        application.send(b"ours")
        await moved(world)  # the relay notices the change, and reads the shape again later
        (waiting,) = world.server.stats()["outboxes_waiting"]
        assert waiting.startswith(f"{application.engine.location}, table events: Unknown column")
        assert await moved(world) == [b"1", b"ours"]
        (waiting,) = world.server.stats()["outboxes_waiting"]
        assert "table events has no column body; name another with --payload-column" in waiting
        application.run("ALTER TABLE events RENAME COLUMN text TO body")
        assert await moved(world) == [b"1", b"ours", b"2"]


@pytest.mark.parametrize("text", ['{"colour": "red"}', '{"topic": 1}', "[]", "{"])
async def test_mapping_of_another_version_is_named_and_not_served(
    text: str, application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    application.run(tables.EVENTS)
    application.run("INSERT INTO escapement_outbox_mapping VALUES ('events', %s, NOW())", text)
    async with serving(application) as world:
        application.send(b"ours")
        assert await moved(world) == [b"ours"]
        await world.clock.advance(seconds=60)
    assert caplog.text.count("the mapping of table events cannot be read") == 1
