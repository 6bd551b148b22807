"""`escapement outbox`: add, list and remove."""

from __future__ import annotations

import io
import json

import pytest

from escapement.cli.main import run
from escapement.storage.outbox.mapping import OutboxMapping
from escapement.storage.outbox.mapping_table import MAX_OUTBOXES
from support.outbox import existing_tables as tables
from support.outbox.existing_tables import mapped
from support.outbox.outboxes import Application

TABLES = """
    SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() ORDER BY 1
"""
OPTIONS = ("--topic", "t", "--payload-column", "body")


@pytest.fixture
def events(mysql_url: str) -> Application:
    """Return the database of an application with the table ``events``, and no table of ours."""
    application = Application(mysql_url)
    application.run(tables.EVENTS)
    return application


def test_check_shows_the_first_rows_as_messages_and_changes_nothing(
    mysql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    application = Application(mysql_url)
    application.run(tables.DEBEZIUM)
    for number in range(7):
        application.run(
            "INSERT INTO outbox VALUES (%s, %s, 'order-7', 'OrderCreated', %s)",
            f"id-{number}",
            "no topic" if number == 1 else "Order",
            '{"text": "é' + 90 * "x" + '"}',
        )
    add = ["outbox", "add", mysql_url, "outbox", "--profile", "debezium", "--topic-prefix", "a/b/"]
    assert run([*add, "--check"]) == 0
    shown = capsys.readouterr()
    assert "give --order-column" in shown.err
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    for line in (
        "topic column aggregatetype",
        "header columns id=id, type=type",
        "done delete",
        "rows that wait 7",
        "row id-0",
        "topic a/b/Order",
        "key order-7",
        'headers {"id": "id-0", "type": "OrderCreated"}',
        'payload {"text": "é' + 49 * "x" + "…",
    ):
        assert line in lines
    assert lines.count("topic a/b/Order") == 4
    (refusal,) = [line for line in lines if line.startswith("Row 'id-1' would be refused: ")]
    assert "'no topic' cannot be a topic name" in refusal
    assert application.run(TABLES) == (("outbox",),)


def test_outboxes_are_added_listed_and_removed(
    events: Application, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["outbox", "list", events.url]) == 0
    assert capsys.readouterr().out == "no mapped tables\n"
    events.run("INSERT INTO events (body) VALUES ('a'), ('b')")
    add = ["outbox", "add", events.url, "events", *OPTIONS, "--done", "sent=1"]
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run(add) == 130
    assert "Send 2 rows of table events?" in capsys.readouterr().out
    assert events.run(TABLES) == (("events",),)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(add) == 2
    assert "To go on, add --yes." in capsys.readouterr().err
    assert run([*add, "--yes"]) == 0
    assert "within ten seconds" in capsys.readouterr().out
    identity = events.run("SELECT identity FROM escapement_outbox_identity WHERE outbox = 'events'")
    assert run([*add, "--yes"]) == 0
    capsys.readouterr()
    assert run(["outbox", "list", events.url, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["mapping"] == {
        "topic": "t",
        "payload_column": "body",
        "done_column": "sent",
        "done_value": "1",
    }
    del found["mapping"]
    assert found == {
        "table": "events",
        "topic": "t",
        "done": "sent=1",
        "waiting": 2,
        "state": "ok",
    }
    assert run(["outbox", "add", events.url, "events", *OPTIONS, "--yes"]) == 1
    assert "has another mapping; use `escapement outbox remove`" in capsys.readouterr().err
    events.run("ALTER TABLE events DROP COLUMN body")
    assert run(["outbox", "list", events.url]) == 0
    assert "no column body" in capsys.readouterr().out
    assert run(["outbox", "remove", events.url, "events"]) == 0
    assert run(["outbox", "remove", events.url, "events"]) == 1
    assert "is not mapped" in capsys.readouterr().err
    kept = events.run("SELECT identity FROM escapement_outbox_identity WHERE outbox = 'events'")
    assert kept == identity


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--payload-column", "body"), "give either --topic"),
        ((*OPTIONS, "--topic-column", "k"), "give either --topic"),
        (("--topic", "no topic", "--payload-column", "body"), "topic name"),
        (("--topic", "t"), "give --payload-column or --row-as-json"),
        ((*OPTIONS, "--row-as-json"), "give either --payload-column or --row-as-json"),
        (("--topic", "t", "--payload-column", "text"), "name another with --payload-column: id, k"),
        ((*OPTIONS, "--id-column", "k"), "NOT NULL"),
        ((*OPTIONS, "--id-column", ""), "--id-column must not be empty"),
        ((*OPTIONS, "--id-column", "sent"), "CREATE UNIQUE INDEX events_sent ON `events` (`sent`)"),
        ((*OPTIONS, "--order-column", "body"), "CREATE INDEX events_waiting ON `events` (`body`)"),
        ((*OPTIONS, "--due-column", "body"), "--due-column needs one of DATETIME, TIMESTAMP"),
        ((*OPTIONS, "--due-column", "k", "--due-unit", "ms"), "needs one of BIGINT"),
        ((*OPTIONS, "--priority-column", "k"), "--priority-column needs one of"),
        ((*OPTIONS, "--headers-column", "sent"), "--headers-column needs one of"),
        ((*OPTIONS, "--header", "name=colour"), "name another with --header"),
        ((*OPTIONS, "--key-header", "k"), "--key-header needs --headers-column"),
        ((*OPTIONS, "--done", "sent"), "--done must be delete or COLUMN=VALUE"),
        ((*OPTIONS, "--done", "k=1"), "(`k`, `id`)"),
        ((*OPTIONS, "--done", "sent=0"), "has 0 in rows that wait and in rows that are done"),
        ((*OPTIONS, "--done", "sent=maybe"), "give a number"),
        ((*OPTIONS, "--done", "body=x"), "has no default; give the value of rows that wait"),
        ((*OPTIONS, "--done", "k=null"), "must differ"),
        ((*OPTIONS, "--done", "id=0"), "cannot be changed"),
        ((*OPTIONS, "--pending", "0"), "--pending needs --done"),
        ((*OPTIONS, "--not-null-column", "colour"), "name another with --not-null-column"),
    ],
)
def test_mapping_that_does_not_fit_is_refused_with_what_to_do(
    options: tuple[str, ...],
    error: str,
    events: Application,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["outbox", "add", events.url, "events", *options, "--yes"]) == 1
    assert error in capsys.readouterr().err
    assert events.run(TABLES) == (("events",),)


def test_statement_of_a_refusal_makes_the_table_fit(
    mysql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    application = Application(mysql_url)
    application.run(tables.WATERMILL_QUEUE)
    add = ["outbox", "add", mysql_url, "watermill_orders", "--profile", "watermill"]
    add += ["--topic", "orders", "--done", "acked=1"]
    assert run(add) == 1
    _, _, statement = capsys.readouterr().err.partition("create one: ")
    application.run(statement)
    assert run(add) == 0


def test_tables_that_cannot_be_outboxes_are_refused(
    events: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    events.run("CREATE VIEW a_view AS SELECT * FROM events")
    events.run("CREATE TABLE elsewhere (id INT PRIMARY KEY, body TEXT) ENGINE=MyISAM")
    for table, error in (
        ("none", "table none does not exist"),
        ("a_view", "must be an InnoDB table, and is a view"),
        ("elsewhere", "must be an InnoDB table"),
        ("escapement_outbox", "a table of escapement itself"),
    ):
        assert run(["outbox", "add", events.url, table, *OPTIONS]) == 1
        assert error in capsys.readouterr().err


def test_number_of_mapped_tables_is_bounded(
    events: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(MAX_OUTBOXES - 1):
        events.run(f"CREATE TABLE events{number} LIKE events")
    for number in range(1, MAX_OUTBOXES - 1):
        mapped(events, OutboxMapping(f"events{number}", topic="t", payload_column="body"))
    assert run(["outbox", "add", events.url, "events", *OPTIONS]) == 0
    assert run(["outbox", "add", events.url, "events0", *OPTIONS]) == 1
    assert "at most 63 mapped tables" in capsys.readouterr().err


def test_options_override_the_columns_of_a_profile(
    mysql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    application = Application(mysql_url)
    application.run(tables.EVENTUATE)
    options = ["--topic", "t", "--key-column", "message_partition", "--headers-column", ""]
    options += ["--done", "delete", "--due-column", "creation_time", "--due-unit", "ms"]
    options += ["--header", "ID=id", "--header", "destination", "--dedup-column", "id"]
    assert run(["outbox", "add", mysql_url, "message", "--profile", "eventuate", *options]) == 0
    capsys.readouterr()
    assert run(["outbox", "list", mysql_url, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["mapping"] == {
        "topic": "t",
        "key_column": "message_partition",
        "payload_column": "payload",
        "header_columns": [["ID", "id"], ["destination", "destination"]],
        "due_column": "creation_time",
        "due_unit": "ms",
        "dedup_column": "id",
    }
