"""Tables that applications have already, served as outboxes by a whole broker."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest
import trio

from escapement.clock import moment
from escapement.storage.outbox.application import OutboxInApplication
from escapement.storage.outbox.mapping import OutboxMapping
from escapement.storage.outbox.mapping_table import checked
from escapement.storage.outbox.statements import MAX_ROWS_UNSIZED
from escapement.testing import World, arrived
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


async def received(world: World, topic: str) -> list[tuple[bytes, str | None, dict[str, object]]]:
    """Let the relay take its turn, and return payload, key and properties of the messages."""
    await moved(world, topic)
    async with world.connect() as broker:
        async with broker.consumer(topic, "s", position="earliest") as consumer:
            return [(one.payload, one.key, dict(one.properties)) for one in await arrived(consumer)]


# -- the tables of other projects ------------------------------------------------


@pytest.mark.parametrize(
    "type", ["CHAR(36)", "BINARY(16)", "VARCHAR(36)", "UUID", "BIGINT AUTO_INCREMENT"]
)
async def test_debezium_table_is_moved(
    type: str, application: Application, mock_clock: MockClock
) -> None:
    application.run(tables.DEBEZIUM.replace("CHAR(36)", type))
    mapped(application, profile("debezium", "outbox", topic_prefix="shop/eu/"))
    id = uuid4()
    value = {"B": id.bytes, "C": str(id), "V": str(id), "U": str(id)}[type[0]]
    shown = str(id) if type[0] != "B" else id.hex
    if type.startswith("BIGINT"):
        value, shown = 17, "17"
    async with serving(application) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="shop/eu")
        application.run(
            "INSERT INTO outbox VALUES (%s, 'Order', 'é-7', 'OrderCreated', %s)",
            value,
            '{"n": 7}',
        )
        (message,) = await received(world, "shop/eu/Order")
        assert message == (b'{"n": 7}', "é-7", {"id": shown, "type": "OrderCreated"})
        assert application.run("SELECT COUNT(*) FROM outbox") == ((0,),)


@pytest.mark.parametrize("ddl", [tables.EVENTUATE, tables.EVENTUATE_DBID])
async def test_eventuate_table_is_moved_and_its_rows_stay(
    ddl: str, application: Application, mock_clock: MockClock
) -> None:
    application.run(ddl)
    id_column = "dbid" if ddl == tables.EVENTUATE_DBID else "id"
    mapped(application, profile("eventuate", "message", id_column=id_column))
    headers = {"ID": "m1", "PARTITION_ID": "order-7", "DESTINATION": "example.Order"}
    async with serving(application) as world:
        for id in ("0000017c-1", "0000017c-2"):
            application.run(
                "INSERT INTO message (id, destination, headers, payload) VALUES (%s, %s, %s, %s)",
                id,
                "example.Order",
                json.dumps(headers),
                f"{id}é",
            )
        found = await received(world, "example.Order")
        assert found == [
            ("0000017c-1é".encode(), "order-7", headers),
            ("0000017c-2é".encode(), "order-7", headers),
        ]
        assert application.run("SELECT published, COUNT(*) FROM message GROUP BY 1") == ((1, 2),)


@pytest.mark.parametrize("queue", [False, True])
async def test_watermill_table_is_moved(
    queue: bool, application: Application, mock_clock: MockClock
) -> None:
    mapping = profile("watermill", "watermill_orders", topic="orders")
    application.run(tables.WATERMILL_QUEUE if queue else tables.WATERMILL)
    if queue:
        mapping = profile(
            "watermill", "watermill_orders", topic="orders", done_column="acked", done_value="true"
        )
        application.run("CREATE INDEX waiting ON watermill_orders (acked, `offset`)")
    mapped(application, mapping)
    insert = "INSERT INTO watermill_orders (uuid, payload, metadata) VALUES (%s, %s, %s)"
    async with serving(application) as world:
        application.run(insert, "u-1", '{"n":1}', '{"name":"OrderPlaced"}')
        application.run(insert, "u-2", None, None)
        assert await received(world, "orders") == [
            (b'{"n":1}', None, {"name": "OrderPlaced", "_watermill_message_uuid": "u-1"}),
            (b"", None, {"_watermill_message_uuid": "u-2"}),
        ]
        left = application.run("SELECT COUNT(*) FROM watermill_orders")[0][0]
        assert left == (2 if queue else 0)
        if queue:
            assert application.run("SELECT SUM(acked) FROM watermill_orders")[0][0] == 2


async def test_masstransit_table_is_moved_when_due_without_rows_of_a_consumer_outbox(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(tables.MASSTRANSIT)
    mapped(application, profile("masstransit", "OutboxMessage", topic="t"))
    insert = (
        "INSERT INTO `OutboxMessage` (`EnqueueTime`, `SentTime`, `Headers`, `OutboxId`,"
        " `InboxMessageId`, `MessageId`, `ContentType`, `MessageType`, `Body`)"
        " VALUES (%s, UTC_TIMESTAMP(6), %s, %s, %s, %s, 'application/json', 'urn', %s)"
    )
    id = str(uuid4())
    async with serving(application) as world, world.connect() as broker:
        due = moment(world.clock.now_ms()) + timedelta(days=1, microseconds=1)
        application.run(insert, due, '{"MT-Activity-Id":"a"}', id, None, id, "later")
        application.run(insert, None, None, id, None, id, "now")
        application.run(insert, None, None, None, id, id, "of a consumer")
        assert await moved(world) == [b"later", b"now"]
        assert application.run("SELECT `Body` FROM `OutboxMessage`") == (("of a consumer",),)
        async with broker.consumer("t", "s", position="earliest") as consumer:
            (first,) = await arrived(consumer)
            assert first.payload == b"now"
            await consumer.ack(first)
            await world.clock.advance(days=1)
            (second,) = await arrived(consumer)
        assert second.payload == b"later"
        assert second.properties == {
            "MT-Activity-Id": "a",
            "MessageId": id,
            "ContentType": "application/json",
        }


async def test_whole_row_becomes_a_json_object(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(
        "CREATE TABLE rows_of_all_types (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(9)"
        " CHARACTER SET latin1, bytes BLOB, fixed BINARY(2), yes BIT(1), at DATETIME(3),"
        " price DECIMAL(9,2), nothing INT, document JSON, due_ns BIGINT, dedup INT, prio TINYINT)"
    )
    mapping = OutboxMapping(
        "rows_of_all_types",
        topic="t",
        due_column="due_ns",
        due_unit="ns",
        dedup_column="dedup",
        priority_column="prio",
    )
    mapped(application, mapping)
    async with serving(application) as world, world.connect() as broker:
        due_ns = (world.clock.now_ms() + 3_600_000) * 1_000_000 - 1
        for id in (2**63 - 1, 2**63 - 2):
            application.run(
                "INSERT INTO rows_of_all_types VALUES (%s, 'é\"', %s, %s, b'1',"
                " '2030-01-02 03:04:05.678', 1.50, NULL, '{\"a\": [1]}', %s, 5, 7)",
                id,
                bytes(range(60)),
                b"\xfe\x01",
                due_ns,
            )
        async with broker.consumer("t", "s", position="earliest") as consumer:
            await moved(world)
            await world.clock.advance(ms=3_600_000 - 10_000 - 10)
            assert await arrived(consumer) == []
            await world.clock.advance(ms=20)
            (message,) = await arrived(consumer)  # the other has the same dedup key
        assert message.priority == 7
        assert moment(message.due_ms) == moment(-(-due_ns // 1_000_000))
        read = json.loads(message.payload)
        assert read.pop("id") == 2**63 - 2
        assert read == {
            "name": 'é"',
            "bytes": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1"
            "Njc4OTo7",
            "fixed": "fe01",
            "yes": 1,
            "at": "2030-01-02 03:04:05.678",
            "price": 1.5,
            "nothing": None,
            "document": {"a": [1]},
            "due_ns": due_ns,
            "dedup": 5,
            "prio": 7,
        }


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
    found = [row[0] for row in connection.execute(look.look).rows]
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
