"""`escapement sql`, and `escapement serve --outbox`."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import escapement
from escapement.cli.main import run
from escapement.storage.outbox.mapping_table import INSTALLED
from support.database.servers import MysqlServer
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
    assert run(["sql", "install"]) == 1
    assert "give the URL" in capsys.readouterr().err
    assert run(["sql", "install", "postgres://x/y"]) == 2


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
