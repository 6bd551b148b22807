"""`escapement tables`: list and create message tables, and the guide about them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pymysql
import pytest

from escapement.cli.main import VISIBLE, run
from escapement.storage.engine.address import MysqlAddress
from support.code_blocks import DOCS, blocks
from support.database.message_tables import CURRENT, FIRST, named
from support.database.servers import MysqlServer, SqlServer
from support.processes.broker import broker_process
from support.tables.shops import Shop

GUIDE: Final = DOCS / "guides" / "message-tables.md"
# The database in the guide.
SHOP: Final = "mysql://app:secret@db.example/shop"
TIMEOUT_S: Final = 60
Say = Callable[..., str]
Sql = Callable[[str], tuple[Any, ...]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Return a function that runs a command and returns stdout, or stderr if it is to fail."""

    def run_command(*words: str, fails: int = 0) -> str:
        code = run(words)
        out, err = capsys.readouterr()
        err = err.removeprefix(f"{VISIBLE}\n")  # some users of the tests have a password
        assert code == fails, err
        assert (out if fails else err) == ""
        return err if fails else out

    return run_command


@pytest.fixture
def sql(mysql_url: str) -> Iterator[Sql]:
    """Return a function that runs a statement as an application does, with the usual SQL mode."""
    at = MysqlAddress.parse(mysql_url)
    application = pymysql.connect(
        host=at.host,
        port=at.port,
        user=at.user,
        password=at.password,
        database=at.database,
        autocommit=True,
        ssl_disabled=True,
    )
    with closing(application), application.cursor() as cursor:

        def run_statement(statement: str) -> tuple[Any, ...]:
            cursor.execute(statement)
            return tuple(cursor.fetchall())

        yield run_statement


def test_tables_are_listed_with_state_directives_and_warnings(
    say: Say, sql: Sql, mysql_url: str
) -> None:
    """V8: an operator sees which tables can be served, and why others cannot."""
    sql(CURRENT)
    sql(named(FIRST, "older"))
    sql("ALTER TABLE older DROP INDEX next_idx")
    sql("CREATE TABLE broken (id INT) COMMENT 'vitess_message,vt_ack_wait=30'")
    broken, current, older = json.loads(say("tables", "list", mysql_url, "-o", "json"))
    assert (broken["table"], broken["directives"], broken["edition"]) == ("broken", None, None)
    assert broken["state"].startswith("Table broken has no directives vt_purge_after, ")
    assert (current["table"], current["state"], current["edition"]) == (
        "my_message",
        "ok",
        "current",
    )
    assert current["directives"]["max_backoff_ms"] == 3_600_000
    assert list(current["further_columns"]) == ["tenant_id", "message"]
    assert current["warnings"] == []
    assert (older["state"], older["edition"]) == ("ok", "first")
    (warning,) = older["warnings"]
    assert warning.endswith("ADD INDEX `next_idx` (time_acked, time_next).")

    lines = say("tables", "list", mysql_url).splitlines()
    assert lines[0].split()[:2] == ["table", "edition"]
    # A long reason would pad every line of the table.
    assert lines[1].split() == ["broken", *"-" * 8, "rejected"]
    assert max(map(len, lines[:4])) < 160
    assert " ".join(lines[2].split()) == "my_message current 30s 30s 1h 1d 10 10000 30s ok"
    assert lines[4] == f"broken is rejected: {broken['state']}"
    assert lines[5] == f"Warning for older: {warning}"
    assert len(lines) == 6


def test_database_without_message_tables_has_an_empty_list(say: Say, mysql_url: str) -> None:
    assert json.loads(say("tables", "list", mysql_url, "-o", "json")) == []
    assert say("tables", "list", mysql_url) == "no message tables\n"


def test_broker_lists_the_tables_that_it_serves_with_their_state(
    say: Say, mysql_to_break: MysqlServer, tmp_path: Path
) -> None:
    """Without a URL, the command asks the broker."""
    server = mysql_to_break
    server.admin("CREATE DATABASE listed")
    shop = Shop(server.url("listed"))
    try:
        with broker_process(tmp_path / "data", None, "--tables", shop.url) as broker:
            at = ("--broker", f"127.0.0.1:{broker.port}")

            def listed_until(expected: str) -> list[str]:
                deadline_s = time.monotonic() + TIMEOUT_S
                while expected not in (said := say("tables", "list", *at)):
                    assert time.monotonic() < deadline_s, said
                return said.splitlines()

            assert say("tables", "list", *at) == "the broker serves no message tables\n"
            assert say("tables", "list", *at, "-o", "json") == "[]\n"
            shop.create()
            shop.run("CREATE TABLE broken (id INT) COMMENT 'vitess_message,vt_ack_wait=30'")
            listed_until("table://listed/mails")
            names, broken, mails, why = listed_until("table://listed/broken")
            assert names.split() == (
                ["table", "state", "consumers", "waiting", "in", "flight", "acknowledged"]
            )
            assert broken.split() == ["table://listed/broken", "rejected", "-", "-", "-", "-"]
            assert mails.split() == ["table://listed/mails", "ok", "0", "0", "0", "0"]
            assert why.startswith("table://listed/broken is rejected: Table broken has no ")
            found = json.loads(say("tables", "list", *at, "-o", "json"))
            assert [table["state"] for table in found] == [why.partition(": ")[2], "ok"]

            server.pause()
            *_, mails, _, why = listed_until("has not answered for")
            assert mails.split()[:2] == ["table://listed/mails", "waiting"]
            assert why.startswith("Messages wait: ")
            server.resume()
            listed_until("ok")
    finally:
        server.restore()
        server.admin("DROP DATABASE listed")


def test_created_table_is_listed(say: Say, sql: Sql, mysql_url: str) -> None:
    words = ["--ack-wait", "1m", "--max-backoff", "1h", "--purge-after", "7d"]
    words += ["--batch-size", "3", "--cache-size", "99", "--poller-interval", "500ms"]
    assert "created the message table mails in" in say(
        "tables", "create", mysql_url, "mails", *words
    )
    (mails,) = json.loads(say("tables", "list", mysql_url, "-o", "json"))
    assert (mails["state"], mails["warnings"]) == ("ok", [])
    assert mails["directives"] == {
        "ack_wait_ms": 60_000,
        "min_backoff_ms": 60_000,
        "max_backoff_ms": 3_600_000,
        "purge_after_ms": 7 * 86_400_000,
        "batch_size": 3,
        "cache_size": 99,
        "poll_interval_ms": 500,
        "message_cols": [],
        "key_column": None,
    }
    said = say("tables", "create", mysql_url, "mails", fails=1)
    assert said == "escapement: Table mails is a message table already. Nothing was changed.\n"
    sql("CREATE TABLE plain (x INT) COMMENT 'no message table'")
    said = say("tables", "create", mysql_url, "plain", fails=1)
    assert said.startswith("escapement: Table plain exists already. Choose another name, or make")
    assert said.count("\n") == 1
    sql("CREATE TABLE broken (x INT) COMMENT 'escapement_message,ack_wait=30'")
    said = say("tables", "create", mysql_url, "broken", fails=1)
    assert "Table broken exists already, and is rejected as a message table: " in said


def test_table_is_created_in_a_database_that_brokers_serve(
    say: Say, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V8: the URL of the database is the one that the broker is configured with."""
    database = MysqlAddress.parse(mysql_url).database
    monkeypatch.setenv("ESCAPEMENT_TABLES", f"mysql://app@db.example/other {mysql_url}")
    said = say("tables", "create", f"{database}.mails", "--ack-wait", "1m")
    assert "created the message table mails in" in said
    (mails,) = json.loads(say("tables", "list", mysql_url, "-o", "json"))
    assert (mails["state"], mails["directives"]["ack_wait_ms"]) == ("ok", 60_000)


def test_table_without_the_url_of_its_database_is_refused_with_both_forms(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = "Write escapement tables create mysql://USER:PASSWORD@HOST/shop mails, or write one URL"
    for urls, count in (
        (None, "no URL"),
        ("mysql://a:hidden@one/other", "no URL"),
        ("mysql://a:hidden@one/shop mysql://a:hidden@two/shop", "several URLs"),
    ):
        if urls is not None:
            monkeypatch.setenv("ESCAPEMENT_TABLES", urls)
        said = " ".join(say("tables", "create", "shop.mails", fails=2).split())
        assert f"ESCAPEMENT_TABLES has {count} of the database shop. {both}" in said
        assert "hidden" not in said
    for words in (["mails"], [SHOP], ["shop."], [SHOP, "mails", "texts"]):
        assert "Write the table like shop.my_message" in say("tables", "create", *words, fails=2)
    assert say("tables", "create", "shop.mails", "--print").startswith("CREATE TABLE `mails`")


@pytest.mark.parametrize("spelling", ["escapement", "vitess"])
def test_printed_statement_creates_the_table_in_a_migration(
    say: Say, sql: Sql, mysql_url: str, spelling: str
) -> None:
    shown = say("tables", "create", SHOP, "mails", "--spelling", spelling, "--print")
    assert "secret" not in shown
    sql(shown)
    (mails,) = json.loads(say("tables", "list", mysql_url, "-o", "json"))
    assert (mails["table"], mails["state"], mails["warnings"]) == ("mails", "ok", [])
    (row,) = sql("SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_NAME = 'mails'")
    assert row[0].startswith(f"{spelling}_message,")


def test_errors_are_one_line_that_says_what_to_do(say: Say, mysql_url: str) -> None:
    said = say("tables", "create", mysql_url, "my table", fails=1)
    assert "'my table' cannot be a topic name" in said
    said = say("tables", "create", mysql_url, "mails", "--max-backoff", "1s", fails=1)
    assert "max_backoff=1 of table mails is less than" in said
    missing = mysql_url.rpartition("/")[0] + "/escapement_missing"
    for command in (["list", missing], ["create", missing, "mails"]):
        said = say("tables", *command, fails=1)
        assert "escapement_missing" in said
        assert said.count("\n") == 1
    assert "ends with the database's name" in say("tables", "list", "mysql://host", fails=2)
    said = say("tables", "list", "postgres://app:hidden@host/shop", fails=2)
    assert "begins with mysql://" in said
    assert "hidden" not in said


def test_password_may_come_from_the_environment(
    say: Say, mysql_server: SqlServer, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = MysqlAddress.parse(mysql_url)
    user = f"app_{at.database}"[:32]
    mysql_server.admin(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'p w'")
    try:
        mysql_server.admin(f"GRANT ALL ON `{at.database}`.* TO '{user}'@'%'")
        place = urlsplit(mysql_url)
        url = place._replace(netloc=f"{user}@{at.host}:{at.port}").geturl()
        assert "refuses this user" in say("tables", "list", url, fails=1)
        monkeypatch.setenv("ESCAPEMENT_PASSWORD", "p w")
        assert say("tables", "list", url) == "no message tables\n"
    finally:
        mysql_server.admin(f"DROP USER '{user}'@'%'")


def test_index_that_cannot_be_checked_is_a_warning(
    say: Say, sql: Sql, mysql_server: SqlServer, mysql_url: str
) -> None:
    sql(CURRENT)
    sql("ALTER TABLE my_message DROP INDEX poller_idx")
    at = MysqlAddress.parse(mysql_url)
    user = f"dba_{at.database}"[:32]
    mysql_server.admin(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
    try:
        # The user may look at the columns, but not at the rows.
        mysql_server.admin(f"GRANT INSERT, UPDATE ON `{at.database}`.* TO '{user}'@'%'")
        place = urlsplit(mysql_url)
        url = place._replace(netloc=f"{user}:secret@{at.host}:{at.port}").geturl()
        (table,) = json.loads(say("tables", "list", url, "-o", "json"))
        assert table["state"] == "ok"
        (warning,) = table["warnings"]
        assert warning.startswith("The index cannot be checked: ")
    finally:
        mysql_server.admin(f"DROP USER '{user}'@'%'")


def test_commands_and_statements_of_the_guide_succeed(say: Say, sql: Sql, mysql_url: str) -> None:
    ran = 0
    sql(FIRST)
    for block in blocks(GUIDE):
        if block.kind == "shell":
            for words in block.commands():
                assert words[0] in ("escapement", "pip")
                # The other commands need a broker that serves the table.
                if SHOP in words and words[1] == "tables":
                    say(*(mysql_url if word == SHOP else word for word in words[1:]))
                    ran += 1
        elif (
            block.kind == "sql" and "rights" not in block.title
        ):  # users belong to the whole server
            for statement in block.text.split(";\n"):
                if statement.strip():
                    sql(statement)
                    ran += 1
    assert ran > 5
    listed = json.loads(say("tables", "list", mysql_url, "-o", "json"))
    assert {table["state"] for table in listed} == {"ok"}
