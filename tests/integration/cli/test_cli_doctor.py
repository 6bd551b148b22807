"""`escapement doctor` on SQLite, on a good server, and on servers with bad settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escapement.cli.main import run
from escapement.storage.engine.address import MysqlAddress
from support.database.servers import MysqlServer, SqlServer, private_server
from support.processes.broker import broker_process

SECRET = "s3cr3t-and-never-shown"


@pytest.fixture(scope="module")
def unsafe_server() -> Iterator[MysqlServer]:
    """A server that keeps a binary log, and waits for the disk for neither of its logs."""
    with private_server(
        *("--log-bin", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=0"),
        "--innodb-flush-log-at-trx-commit=0",
    ) as server:
        server.admin("CREATE DATABASE unsafe")
        yield server


@pytest.fixture
def diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that returns the exit code, and the bad findings of the database."""

    def diagnosed(*options: str) -> tuple[int, list[dict[str, str]]]:
        data = tmp_path / "data"
        code = run(["doctor", "--data", str(data), "-o", "json", *options])
        captured = capsys.readouterr()
        assert SECRET not in captured.out + captured.err
        found = json.loads(captured.out)
        assert all(one["remedy"] for one in found if one["severity"] == "error")
        return code, [
            one
            for one in found
            if one["severity"] in ("warning", "error")
            and one["check"].split()[0] in ("log", "tables", "outbox")
        ]

    return diagnosed


def test_good_server_has_no_problem_and_stays_unchanged(
    diagnose: Any, mysql_server: SqlServer, mysql_url: str
) -> None:
    """O7"""
    database = MysqlAddress.parse(mysql_url).database
    before = mysql_server.admin(f"SHOW TABLES FROM {database}")
    assert diagnose("--log", mysql_url, "--tables", mysql_url)[1] == []
    assert mysql_server.admin(f"SHOW TABLES FROM {database}") == before


def test_running_broker_can_be_diagnosed(diagnose: Any, tmp_path: Path, mysql_url: str) -> None:
    with broker_process(tmp_path / "data", mysql_url):
        assert diagnose("--log", mysql_url)[1] == []


def test_settings_that_can_lose_commits_are_named_with_what_to_do(
    diagnose: Any, unsafe_server: MysqlServer
) -> None:
    """O7"""
    code, found = diagnose("--log", unsafe_server.url("unsafe"))
    assert code == 1
    texts = [one["text"] for one in found]
    assert any("innodb_flush_log_at_trx_commit is 0" in text for text in texts)
    assert any("sync_binlog is 0" in text for text in texts)
    assert {one["remedy"] for one in found} == {"Set it to 1."}


def test_server_on_which_a_broker_does_not_start_is_an_error(
    diagnose: Any, unsafe_server: MysqlServer
) -> None:
    unsafe_server.admin("CREATE TABLE unsafe.old (id INT) ENGINE=MyISAM")
    unsafe_server.admin("SET GLOBAL read_only = 1, GLOBAL max_allowed_packet = 1048576")
    try:
        _, found = diagnose("--log", unsafe_server.url("unsafe"))
    finally:
        unsafe_server.admin("SET GLOBAL read_only = 0, GLOBAL max_allowed_packet = 16777216")
        unsafe_server.admin("DROP TABLE unsafe.old")
    errors = [one["text"] for one in found if one["severity"] == "error"]
    for part in ("read_only is ON", "max_allowed_packet is 1048576", "the table old uses MyISAM"):
        assert any(part in text for text in errors), part


def test_database_that_cannot_be_reached_is_an_error_without_its_password(diagnose: Any) -> None:
    url = f"mysql://broker:{SECRET}@127.0.0.1:1/escapement"
    code, found = diagnose("--log", url)
    assert code == 1
    assert [one["severity"] for one in found] == ["error"]


def test_missing_database_is_reported_and_not_created(
    diagnose: Any, mysql_server: SqlServer
) -> None:
    _, found = diagnose("--log", mysql_server.url("never_created"))
    assert [one["severity"] for one in found] == ["error"]
    assert not mysql_server.admin("SHOW DATABASES LIKE 'never_created'")


def test_table_output_names_problems_and_settings_come_from_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "escapement.toml"
    file.write_text(f'data = "/dev/shm/none"\nlog_password = "{SECRET}"')
    file.chmod(0o644)
    assert run(["doctor", "--config", str(file)]) == 1
    out = capsys.readouterr().out
    assert "/dev/shm is in memory (tmpfs): all messages are lost" in out
    assert f"chmod o-r {file}" in out
    assert "problems found" in out
    assert SECRET not in out
