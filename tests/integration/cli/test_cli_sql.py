"""`escapement sql`, and `escapement serve --outbox`."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import escapement
from escapement.cli.main import run
from escapement.storage.outbox.mapping_table import INSTALLED
from support.database.servers import MysqlServer
from support.outbox.existing_tables import EVENTS
from support.outbox.outboxes import Application
from support.processes.broker import broker_process


def test_outbox_is_installed_once(mysql_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    application = Application(mysql_url)
    assert run(["sql", "install", mysql_url]) == 0
    application.send(b"kept")
    before = application.run("SELECT identity FROM escapement_outbox_identity")
    assert run(["sql", "install", mysql_url]) == 0
    assert application.left == 1
    assert application.run("SELECT identity FROM escapement_outbox_identity") == before
    assert "is ready" in capsys.readouterr().out


def test_printed_sql_creates_the_outbox_in_every_mode(
    mysql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sql", "install", "--print"]) == 0
    application = Application(mysql_url)
    statements = [text for text in capsys.readouterr().out.split(";\n") if text.strip()]
    assert len(statements) == len(INSTALLED)
    with application.session() as cursor:
        cursor.execute("SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES'")
        for statement in statements:
            cursor.execute(statement)
        cursor.connection.commit()
    application.send(b"x")
    assert application.left == 1


def test_reset_gives_the_outbox_a_new_identity(mysql_url: str) -> None:
    application = Application(mysql_url)
    application.install()
    identity = "SELECT HEX(identity) FROM escapement_outbox_identity"
    before = application.run(identity)
    assert run(["sql", "reset", mysql_url, "--yes"]) == 0
    assert len(application.run(identity)) == 1
    assert application.run(identity) != before


def test_commands_without_a_database_say_what_to_give(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ESCAPEMENT_OUTBOX", raising=False)
    for command in (["sql", "install"], ["sql", "reset"], ["outbox", "list"]):
        assert run(command) == 2
        assert "ESCAPEMENT_OUTBOX has no URL. Write mysql://" in capsys.readouterr().err
    assert run(["sql", "install", "postgres://x/y"]) == 2
    monkeypatch.setenv("ESCAPEMENT_OUTBOX", "mysql://a:hidden@one/shop?x=1")
    capsys.readouterr()
    assert run(["sql", "install"]) == 2
    said = capsys.readouterr().err
    assert "Invalid value for the environment variable ESCAPEMENT_OUTBOX" in said
    assert "hidden" not in said


def test_database_and_password_may_come_from_the_environment(
    private_mysql: MysqlServer,
    mysql_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All commands for the database of an application find it in the same way."""
    application = Application(mysql_url)
    application.run(EVENTS)
    name = application.address.database
    private_mysql.admin("CREATE USER IF NOT EXISTS app@'127.0.0.1' IDENTIFIED BY 'p w'")
    private_mysql.admin(f"GRANT ALL ON {name}.* TO app@'127.0.0.1'")
    url = private_mysql.url(name, "app", "")
    map_events = ["--topic", "t", "--payload-column", "body", "--yes"]
    for database, table in ((url, [url, "events"]), (name, [f"{name}.events"])):
        for command in (
            ["sql", "install", database],
            ["sql", "reset", "--yes", database],
            ["outbox", "list", database],
            ["outbox", "add", *table, *map_events],
            ["outbox", "remove", *table],
            ["tables", "list", database],
        ):
            monkeypatch.setenv("ESCAPEMENT_OUTBOX", f"mysql://app@db.example/other {url}")
            monkeypatch.setenv("ESCAPEMENT_TABLES", url)
            monkeypatch.delenv("ESCAPEMENT_PASSWORD", raising=False)
            assert run(command) == 1, command
            assert "refuses this user" in capsys.readouterr().err
            monkeypatch.setenv("ESCAPEMENT_PASSWORD", "p w")
            assert run(command) == 0, command
    capsys.readouterr()


async def test_served_outboxes_show_no_password(
    private_mysql: MysqlServer, mysql_url: str, tmp_path: Path
) -> None:
    application = Application(mysql_url)
    application.install()
    private_mysql.admin("CREATE USER IF NOT EXISTS outbox@'127.0.0.1' IDENTIFIED BY 'hush, secret'")
    name = application.address.database
    private_mysql.admin(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO outbox@'127.0.0.1'")
    url = private_mysql.url(name, "outbox", "hush, secret")
    wrong = private_mysql.url(name, "outbox", "hush, wrong")
    options = ("--outbox", url, "--outbox", wrong, "--log-level", "debug")
    with broker_process(tmp_path / "data", None, *options) as process:
        before = application.run("SELECT UTC_TIMESTAMP(3)")[0][0]
        application.send(b"x", delay="500ms")
        async with escapement.connect(process.url) as broker:
            async with broker.consumer("t", "s", position="earliest") as consumer:
                with trio.fail_after(30):
                    message = await anext(aiter(consumer))
                await consumer.ack(message)
        after = application.run("SELECT UTC_TIMESTAMP(3)")[0][0]
        assert (after - before).total_seconds() >= 0.5
        assert message.payload == b"x"
        assert process.stop() == 0
        assert "hush" not in process.complaints()
        assert "refuses this user" in process.complaints()
