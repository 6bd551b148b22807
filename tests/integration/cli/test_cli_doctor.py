"""`escapement doctor` on SQLite, on a good server, and on servers with bad settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from escapement.cli.main import run
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.outbox.ack_table import CREATE_ACKS
from escapement.storage.outbox.tables import CREATE
from support.database.accounts import account
from support.database.servers import MysqlServer, SqlServer, private_server
from support.outbox.outboxes import Application
from support.processes.broker import broker_process
from support.tables.shops import BY_DAY

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


def url_of(address: MysqlAddress) -> str:
    where = f"{address.host}:{address.port}/{address.database}"
    return f"mysql://{address.user}:{quote(address.password, safe='')}@{where}"


@pytest.fixture
def diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that returns the exit code, and the bad findings of the database."""

    def diagnosed(*options: str) -> tuple[int, list[dict[str, str]]]:
        data = tmp_path / "data"
        capsys.readouterr()
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
    with account(mysql_server, mysql_url, "ALL") as address:
        before = mysql_server.admin(f"SHOW TABLES FROM {address.database}")
        assert diagnose("--log", url_of(address), "--tables", url_of(address))[1] == []
        assert mysql_server.admin(f"SHOW TABLES FROM {address.database}") == before


def test_running_broker_can_be_diagnosed(
    diagnose: Any, tmp_path: Path, mysql_server: SqlServer, mysql_url: str
) -> None:
    with account(mysql_server, mysql_url, "ALL") as address:
        with broker_process(tmp_path / "data", url_of(address)):
            assert diagnose("--log", url_of(address))[1] == []


def test_settings_that_can_lose_commits_are_named_with_what_to_do(
    diagnose: Any, unsafe_server: MysqlServer
) -> None:
    """O7"""
    code, found = diagnose("--log", unsafe_server.url("unsafe"))
    assert code == 1
    texts = [one["text"] for one in found]
    assert any("innodb_flush_log_at_trx_commit is 0" in text for text in texts)
    assert any("sync_binlog is 0" in text for text in texts)
    assert [one["remedy"] for one in found if "is 0" in one["text"]] == ["Set it to 1."] * 2


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


@pytest.mark.parametrize("purpose", ["--log", "--outbox", "--tables"])
def test_missing_rights_are_named_with_grants_that_are_enough(
    diagnose: Any, mysql_server: SqlServer, mysql_url: str, purpose: str
) -> None:
    """O7: each GRANT of the answer names the tables that need it, and no more."""
    name = MysqlAddress.parse(mysql_url).database
    application = Application(mysql_url)
    for statement in (*CREATE, CREATE_ACKS, BY_DAY):
        application.run(statement)
    options = ("--binlog",) if purpose == "--tables" else ()
    with account(mysql_server, mysql_url, "SELECT") as address:
        code, found = diagnose(purpose, url_of(address), *options)
        assert code == 1
        said = " ".join(one["remedy"] for one in found)
        for part in {
            "--log": (f"GRANT INSERT, UPDATE, DELETE ON `{name}`.* TO",),
            "--outbox": (
                f"GRANT DELETE ON `{name}`.`escapement_outbox` TO",
                f"GRANT INSERT ON `{name}`.`escapement_outbox_refused` TO",
                f"GRANT UPDATE ON `{name}`.`escapement_outbox_identity` TO",
                f"GRANT UPDATE, DELETE ON `{name}`.`escapement_acks` TO",
            ),
            "--tables": (
                f"GRANT UPDATE, DELETE ON `{name}`.`mails` TO '",
                f"GRANT ALTER, DROP ON `{name}`.`mails` TO",
                f"GRANT LOCK TABLES ON `{name}`.* TO",
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO",
            ),
        }[purpose]:
            assert part in said
        grants = [one["remedy"] for one in found if one["remedy"].startswith("GRANT")]
        for grant in grants:
            mysql_server.admin(grant.removesuffix(";"))
        if purpose == "--log":
            (missing,) = diagnose(purpose, url_of(address))[1]
            assert "escapement migrate" in missing["remedy"]
            assert run(["migrate", "--log", mysql_url, "--table-sets", "1"]) == 0
            (few,) = diagnose(purpose, url_of(address))[1]
            assert "1 table sets are free: the log needs 3" in few["text"]
            assert "escapement migrate --bundles 1 --table-parallelism 4" in few["remedy"]
            assert run(["migrate", "--log", mysql_url, "--bundles", "1"]) == 0
        assert diagnose(purpose, url_of(address), *options)[1] == []


def test_rights_for_all_databases_are_a_warning(
    diagnose: Any, mysql_server: SqlServer, mysql_url: str
) -> None:
    """O7"""
    with account(mysql_server, mysql_url, "ALL", "SUPER ON *.*") as address:
        (found,) = diagnose("--log", url_of(address))[1]
    assert found["severity"] == "warning"
    assert "has SUPER for all databases of the server" in found["text"]
    (found,) = diagnose("--log", mysql_url)[1]
    assert "has all rights for all databases" in found["text"]
    assert "SELECT, INSERT, UPDATE, DELETE ON" in found["remedy"]


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


@pytest.mark.parametrize("engine", ["sqlite", "mysql"])
def test_running_broker_finds_what_is_wrong_with_its_surroundings(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], unsafe_server: MysqlServer
) -> None:
    """O7, B14"""
    data, url = tmp_path / "data", unsafe_server.url("unsafe") if engine == "mysql" else None
    data.mkdir(mode=0o757)
    data.chmod(0o757)
    with broker_process(data, url) as broker:
        capsys.readouterr()
        at = ("admin", "broker", "findings", "--broker", f"127.0.0.1:{broker.port}")
        assert run([*at, "-o", "json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["node"] == f"127.0.0.1:{broker.port}"
        found = {(one["level"], one["check"], one["remedy"]) for one in answer["findings"]}
        assert ("warning", "permissions", f"Run chmod o-w {data}.") in found
        assert (("warning", "log unsafe", "Set it to 1.") in found) is (engine == "mysql")
        assert run([*at]) == 0
        assert "chmod o-w" in capsys.readouterr().out.replace("\n", " ")
