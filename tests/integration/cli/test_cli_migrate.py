"""`escapement migrate`, and a broker that then has four rights only."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

import escapement
from escapement.cli.main import run
from escapement.storage.engine.address import MysqlAddress
from support.database.accounts import FOUR_RIGHTS, PASSWORD, account
from support.database.servers import SqlServer
from support.outbox.outboxes import Application
from support.processes.broker import broker_process


def url_of(address: MysqlAddress) -> str:
    return f"mysql://{address.user}@{address.host}:{address.port}/{address.database}"


def schema_of(server: SqlServer, url: str) -> set[tuple[str, str]]:
    """Return the name and the type of each table and view."""
    name = MysqlAddress.parse(url).database
    return set(server.admin(f"SHOW FULL TABLES FROM {name}"))


async def test_broker_with_four_rights_works_after_migrate(
    mysql_server: SqlServer,
    mysql_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """O7: the broker creates, alters and drops no table, and misses no right."""
    monkeypatch.setenv("ESCAPEMENT_LOG_PASSWORD", PASSWORD)
    with account(mysql_server, mysql_url, FOUR_RIGHTS) as address:
        assert run(["migrate", "--log", url_of(address)]) == 1
        said = capsys.readouterr().err
        assert "CREATE command denied" in said
        assert "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, CREATE VIEW" in said
        assert PASSWORD not in said
        monkeypatch.delenv("ESCAPEMENT_LOG_PASSWORD")
        assert run(["migrate", "--log", mysql_url, "--table-sets", "3"]) == 0
        out = capsys.readouterr().out
        assert "created the table leases" in out
        assert "created the view escapement_topics" in out
        assert "created the table log_set_3_3" in out
        before = schema_of(mysql_server, mysql_url)
        password = tmp_path / "password"
        password.write_text(PASSWORD)
        options = ("--log-password-file", str(password))
        with broker_process(tmp_path / "data", url_of(address), *options) as process:
            async with escapement.connect(process.url) as broker:
                async with broker.consumer("t", "s") as consumer:
                    producer = await broker.producer("t")
                    await producer.send_many([b"%d" % n for n in range(100)], delay="50ms")
                    with trio.fail_after(30):
                        for _ in range(100):
                            await consumer.ack(await anext(aiter(consumer)))
            # Beside the running broker, and again although nothing is to be done.
            for sets, result in (("4", "created the table log_set_4_0"), ("4", "up to date")):
                assert run(["migrate", "--log", mysql_url, "--table-sets", sets]) == 0
                assert result in capsys.readouterr().out
            assert process.stop() == 0
            complaints = process.complaints()
        assert "WARNING" not in complaints
        assert PASSWORD not in complaints
        added = {(f"log_set_4_{shard}", "BASE TABLE") for shard in range(4)}
        assert schema_of(mysql_server, mysql_url) == before | added
        # The check knows the sets, those in use and the free ones.
        monkeypatch.setenv("ESCAPEMENT_LOG_PASSWORD", PASSWORD)
        checked = ["check", "--data", str(tmp_path / "data"), "--log", url_of(address)]
        assert run(checked) == 0, capsys.readouterr().out


def test_dry_run_prints_the_sql_and_changes_nothing(
    mysql_server: SqlServer, mysql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--log", mysql_url, "--table-sets", "1", "--table-parallelism", "2"]
    assert run(["migrate", *options, "--dry-run"]) == 0
    sql = capsys.readouterr().out
    assert not schema_of(mysql_server, mysql_url)
    with Application(mysql_url).session() as cursor:  # an administrator runs the SQL instead
        for statement in sql.split(";\n")[:-1]:
            cursor.execute(statement)
        cursor.connection.commit()
    assert run(["migrate", *options]) == 0
    assert capsys.readouterr().out == "The tables are up to date.\n"


def test_two_migrations_at_once_do_the_work_once(mysql_server: SqlServer, mysql_url: str) -> None:
    codes: list[int] = []
    migration = ["migrate", "--log", mysql_url, "--table-sets", "3", "--table-parallelism", "1"]
    threads = [threading.Thread(target=lambda: codes.append(run(migration))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0, 0]
    name = MysqlAddress.parse(mysql_url).database
    assert mysql_server.admin(f"SELECT COUNT(*) FROM {name}.table_sets") == ((3,),)


def test_log_in_sqlite_needs_no_migrate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ESCAPEMENT_LOG", raising=False)
    assert run(["migrate"]) == 2
    assert "set ESCAPEMENT_LOG: the URL of the log in MySQL" in capsys.readouterr().err
