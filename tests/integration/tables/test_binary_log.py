"""The reader of the binary log, with real servers of its own, because it needs their settings."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest
import trio

import escapement.sync
from escapement import sql
from escapement.broker.binary_logs import BinaryLogs
from escapement.errors import StorageUnavailable
from escapement.storage import binary_log
from escapement.storage.binary_log import BinaryLog
from escapement.storage.engine.mysql.wire import TlsIfOffered
from support.database.servers import MysqlServer, private_server
from support.processes.broker import broker_process
from support.tables.shops import Shop, comment

OPTIONS = ("--log-bin", "--server-id=1", "--binlog-format=ROW")
TIMEOUT_S = 60
# Far longer than a reader needs, and far shorter than a poll that finds a row by chance.
SOON_S = 0.2


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    with private_server(*OPTIONS) as server:
        server.admin("CREATE DATABASE shop")
        server.admin("CREATE DATABASE other")
        for database in ("shop", "other"):
            server.admin(f"CREATE TABLE {database}.t (id INT PRIMARY KEY AUTO_INCREMENT, v TEXT)")
        yield server


@contextmanager
def reading(log: BinaryLog) -> Iterator[queue.Queue[object]]:
    """Read a log in a thread. Provides a queue of its reports, and at last its error."""
    found: queue.Queue[object] = queue.Queue()

    def read() -> None:
        try:
            log.read(lambda *where: found.put(where))
        except StorageUnavailable as error:
            found.put(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        log.close()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def streams(server: MysqlServer) -> set[int]:
    """Return the connections to which the server sends its binary log.

    It notices the end of a connection only when it sends something.
    """
    rows = server.admin("SELECT ID, COMMAND FROM information_schema.PROCESSLIST")
    return {id for id, command in rows if command.startswith("Binlog Dump")}


def another_stream(server: MysqlServer, before: set[int]) -> int:
    """Wait until there is another stream than ``before``, and return it."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (new := streams(server) - before):
        assert time.monotonic() < deadline_s, "no reader came"
        time.sleep(0.01)
    return new.pop()


def insert(server: MysqlServer, table: str) -> None:
    server.admin(f"INSERT INTO {table} (v) VALUES ('x')")


def test_reader_reports_inserts_of_its_databases_from_now_on(server: MysqlServer) -> None:
    """V9."""
    shop = Shop(server.url("shop"))
    insert(server, "shop.t")
    before = streams(server)
    with reading(BinaryLog(shop.address, ["shop"])) as found:
        another_stream(server, before)
        insert(server, "other.t")
        server.admin("UPDATE shop.t SET v = 'y'")
        server.admin("DELETE FROM shop.t")
        with shop.session() as cursor:
            cursor.execute("INSERT INTO t (v) VALUES ('rolled back')")
            cursor.connection.rollback()
        assert found.empty()
        insert(server, "shop.t")
        assert found.get(timeout=TIMEOUT_S) == ("shop", "t")
        server.admin("ALTER TABLE shop.t ADD COLUMN w JSON")
        insert(server, "shop.t")
        server.admin("FLUSH BINARY LOGS")
        insert(server, "shop.t")
        for _ in range(2):
            assert found.get(timeout=TIMEOUT_S) == ("shop", "t")
        assert found.empty()


def test_end_of_the_connection_does_not_end_the_reader(server: MysqlServer) -> None:
    before = streams(server)
    with reading(BinaryLog(Shop(server.url("shop")).address, ["shop"])) as found:
        first = another_stream(server, before)
        server.admin(f"KILL CONNECTION {first}")
        another_stream(server, before | {first})
        insert(server, "shop.t")
        assert found.get(timeout=TIMEOUT_S) == ("shop", "t")


@pytest.mark.parametrize(
    ("names", "wrong", "needed"),
    [
        (["binlog_format"], "MIXED", "ROW"),
        (["log_bin_compress", "binlog_transaction_compression"], "ON", "OFF"),  # MariaDB, MySQL
    ],
)
def test_error_names_the_setting_by_which_inserts_cannot_be_recognised(
    server: MysqlServer, names: list[str], wrong: str, needed: str
) -> None:
    known = [name for name in names if server.admin(f"SHOW GLOBAL VARIABLES LIKE '{name}'")]
    (name,) = known
    before = server.admin(f"SELECT @@GLOBAL.{name}")[0][0]
    server.admin(f"SET GLOBAL {name} = '{wrong}'")
    try:
        with reading(BinaryLog(Shop(server.url("shop")).address, ["shop"])) as found:
            error = str(found.get(timeout=TIMEOUT_S))
    finally:
        server.admin(f"SET GLOBAL {name} = {before!r}")
    assert f"{name} is not {needed}; SET GLOBAL {name} = " in error


def test_error_names_a_missing_right(server: MysqlServer) -> None:
    server.admin("CREATE USER guest IDENTIFIED BY 'secret'")
    server.admin("GRANT SELECT ON shop.* TO guest")
    address = Shop(server.url("shop", "guest", "secret")).address
    with reading(BinaryLog(address, ["shop"])) as found:
        error = str(found.get(timeout=TIMEOUT_S))
    assert "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO guest" in error


async def test_error_switches_the_reader_off_with_one_warning(
    server: MysqlServer,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reader tries again each minute, and closing it takes no time."""
    address = replace(Shop(server.url("shop")).address, user="nobody")
    logs = BinaryLogs([address], [])
    with caplog.at_level(logging.WARNING):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(logs.run)
            mock_clock.autojump_threshold = 0.5
            await trio.sleep(200)
            nursery.cancel_scope.cancel()
    (record,) = caplog.records
    assert record.message.startswith("new rows wait for polls; no binary log: mysql://nobody@")
    assert "refuses this user" in record.message


async def test_log_says_that_the_reader_works_again(
    server: MysqlServer,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.admin("CREATE USER later IDENTIFIED BY 'secret'")
    address = Shop(server.url("shop", "later", "secret")).address
    before = streams(server)
    logs = BinaryLogs([address], [])
    with caplog.at_level(logging.INFO):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(logs.run)
            mock_clock.autojump_threshold = 0.5
            await trio.sleep(50)
            assert "no binary log" in caplog.text
            server.admin("GRANT SELECT ON shop.* TO later")
            server.admin("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO later")
            await trio.sleep(20)
            await trio.to_thread.run_sync(another_stream, server, before)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
    ours = [record for record in caplog.records if record.name == "escapement.broker.binary_logs"]
    assert [record.levelname for record in ours] == ["WARNING", "INFO"]
    assert ours[1].message.startswith("the binary log of mysql://later@")
    assert ours[1].message.endswith(" is read again")


async def test_reader_uses_the_user_that_may_read_the_binary_log(
    server: MysqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.admin("CREATE USER plain IDENTIFIED BY 'secret'")
    server.admin("GRANT SELECT ON shop.* TO plain")
    plain = Shop(server.url("shop", "plain", "secret")).address
    events = {("shop", "t"): trio.Event(), ("other", "t"): trio.Event()}
    before = await trio.to_thread.run_sync(streams, server)
    logs = BinaryLogs(
        [plain, Shop(server.url("other")).address], [lambda *where: events[where].set()]
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        await trio.to_thread.run_sync(another_stream, server, before)
        insert(server, "shop.t")
        insert(server, "other.t")
        with trio.fail_after(TIMEOUT_S):
            for event in events.values():
                await event.wait()
        nursery.cancel_scope.cancel()
    assert "no binary log" not in caplog.text


def test_connection_that_is_opened_while_the_reader_is_closed_is_closed_too(
    server: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that opens it is abandoned, and nothing else would end it."""
    log = BinaryLog(Shop(server.url("shop")).address, ["shop"])
    opened: list[TlsIfOffered] = []

    class Slow(TlsIfOffered):
        def connect(self, sock: socket.socket | None = None) -> None:
            super().connect(sock)
            opened.append(self)
            log.close()

    monkeypatch.setattr(binary_log, "TlsIfOffered", Slow)
    with pytest.raises(StorageUnavailable, match="the reader was closed"):
        log.read(lambda *where: None)
    (wire,) = opened
    with pytest.raises(pymysql.err.OperationalError):
        wire.ping(reconnect=False)


def test_row_is_delivered_soon_after_its_commit_although_polls_are_rare(
    server: MysqlServer, tmp_path: Path
) -> None:
    """V9: any writer's commit is a hint, to a message table and to an outbox."""
    shop = Shop(server.url("shop"))
    shop.install()
    topic = shop.create(comment=comment(poller_interval=600))
    options = ("--tables", shop.url, "--outbox", shop.url, "--binlog")
    before = streams(server)
    with broker_process(tmp_path / "data", None, *options) as process:
        with escapement.sync.connect(process.url) as broker:
            with broker.consumer(topic, "table") as rows, broker.consumer("t", "s") as messages:
                another_stream(server, before)
                waits_s = []
                for _ in range(3):
                    time.sleep(1.5)  # the pause between polls grows with this time
                    shop.insert(message="1")
                    began_s = time.monotonic()
                    assert rows.receive(timeout_s=TIMEOUT_S) is not None
                    waits_s.append(time.monotonic() - began_s)
                assert min(waits_s) < SOON_S
                with shop.session() as cursor:
                    sql.schedule(cursor, "t", b"2")
                    cursor.connection.commit()
                assert messages.receive(timeout_s=TIMEOUT_S) is not None
