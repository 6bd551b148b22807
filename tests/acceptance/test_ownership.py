"""One broker owns a database at a time, across kills, hangs and restarts."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest
import trio

import escapement
import escapement.sync
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection, Signal
from escapement.protocol.limits import PROTOCOL_VERSION
from escapement.storage.engine.address import MysqlAddress
from support.processes.broker import (
    PATIENT,
    BrokerProcess,
    broker_process,
    until,
    until_it_takes_over,
)

SHORT_LEASE: Final[dict[str, Any]] = {"lease_ms": 1_500}
# Longer than the test timeout, so a test that waits for its end fails.
LONG_LEASE: Final[dict[str, Any]] = {"lease_ms": 600_000}
TIMEOUT_S: Final = 60


def connected(url: str) -> pymysql.connections.Connection[Any]:
    """Return a connection of the test's own."""
    to = MysqlAddress.parse(url)
    return pymysql.connect(
        host=to.host, port=to.port, user=to.user, password=to.password, database=to.database
    )


def log_rows(url: str) -> dict[int, int]:
    """Return the number of log rows that each epoch has written."""
    found: dict[int, int] = {}
    with connected(url) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SHOW TABLES LIKE 'log\\_1\\_%'")
            for (table,) in cursor.fetchall():
                cursor.execute(f"SELECT owner_epoch, COUNT(*) FROM {table} GROUP BY owner_epoch")
                for epoch, count in cursor.fetchall():
                    found[epoch] = found.get(epoch, 0) + count
    return found


@pytest.fixture
def second(tmp_path: Path, mysql_url: str) -> Iterator[BrokerProcess]:
    """A second broker on the same database, not started."""
    broker = BrokerProcess(tmp_path / "second", mysql_url, limits=SHORT_LEASE)
    yield broker
    broker.remove()


def test_a_killed_broker_takes_its_own_lease_back_at_once(tmp_path: Path, mysql_url: str) -> None:
    """B8: long before the lease of ten minutes expires."""
    with broker_process(tmp_path / "broker", mysql_url, limits=LONG_LEASE) as broker:
        for _ in range(2):
            broker.kill()
            broker.start()


async def test_second_process_stands_by_and_takes_over_after_a_clean_stop(
    tmp_path: Path, mysql_url: str
) -> None:
    """B8: it sends clients to the owner, and need not wait for the lease of ten minutes."""
    with (
        broker_process(tmp_path / "first", mysql_url, limits=LONG_LEASE) as first,
        broker_process(tmp_path / "second", mysql_url, limits=LONG_LEASE) as second,
    ):
        async with escapement.connect(second.url, settings=PATIENT) as client:
            assert client.name == f"127.0.0.1:{first.port}"
            producer = await client.producer("t")
            await client.admin("subscriptions.create", topic="t", subscription="s")
            await producer.send(b"before")
            assert first.stop() == 0
            await producer.send(b"after")
            async with client.consumer("t", "s") as inbox:
                received = [await anext(inbox), await anext(inbox)]
            # The second one may be in the timing wheel while the first is read from the index.
            assert {message.value for message in received} == {b"before", b"after"}
        assert second.stop() == 0


def test_sqlite_database_has_one_process(tmp_path: Path) -> None:
    """The second one, on a copy of the data directory with the same database, says so and ends."""
    with broker_process(tmp_path / "first") as first:
        (tmp_path / "second").mkdir()
        for file in first.data.glob("log.sqlite3*"):
            (tmp_path / "second" / file.name).symlink_to(file)
        second = BrokerProcess(tmp_path / "second")
        second.launch()
        try:
            assert second.process.wait(TIMEOUT_S) == 1
            assert f"127.0.0.1:{first.port}" in second.complaints()
            assert "only one broker can" in second.complaints()
            assert "Traceback" not in second.complaints()
        finally:
            second.remove()
        assert first.running


def test_a_data_directory_and_a_port_have_one_broker_each(tmp_path: Path) -> None:
    with broker_process(tmp_path / "first") as first:
        same_data = BrokerProcess(tmp_path / "first")
        same_data._complained = tmp_path / "same-data.err"
        same_port = BrokerProcess(tmp_path / "other")
        same_port.port = first.port
        said = first._said.read_bytes()
        for broker, word in ((same_data, str(first.process.pid)), (same_port, "in use")):
            broker.launch()
            assert broker.process.wait(TIMEOUT_S) == 1
            assert word in broker.complaints()
            assert "Traceback" not in broker.complaints()
        first._said.write_bytes(said)
        assert first.running


async def test_a_stale_broker_writes_nothing_and_stands_by(
    tmp_path: Path, mysql_url: str, second: BrokerProcess
) -> None:
    """Invariant 8: it hangs beyond its lease, another broker takes over, and it resumes."""
    with broker_process(tmp_path / "first", mysql_url, limits=SHORT_LEASE) as first:
        async with (
            trio.open_nursery() as nursery,
            escapement.connect(first.url, settings=PATIENT) as client,
        ):
            producer = await client.producer("t", send_timeout=(1, "s"))
            await client.admin("subscriptions.create", topic="t", subscription="s")
            await producer.send_many([b"first"] * 100)
            first.pause()
            outcome: list[escapement.EscapementError] = []

            async def publish_to_the_frozen_one() -> None:
                try:
                    await producer.send_many([b"stale"] * 100)
                except escapement.EscapementError as error:
                    outcome.append(error)

            nursery.start_soon(publish_to_the_frozen_one)
            await trio.sleep(0.1)
            written = log_rows(mysql_url)
            await until_it_takes_over(second)
            async with escapement.connect(second.url, settings=PATIENT) as other:
                own = await other.producer("t")
                await own.send_many([b"second"] * 100)
                first.resume()
                await until(lambda: "the broker of bundle 0 ends" in first.complaints())
                await own.send_many([b"second"] * 100)
                async with other.consumer("t", "s") as inbox:
                    got = [await anext(inbox) for _ in range(300)]
            (epoch,) = written
            after = log_rows(mysql_url)
            assert after[epoch] == written[epoch], "the stale broker has written"
            values = [message.value for message in got]
            assert values == [b"first"] * 100 + [b"second"] * 200
        (error,) = outcome
        # The error depends on how far the broker had stopped when the publish timed out.
        assert error.retryable


async def test_broker_that_is_stopped_inside_a_checkpoint_is_replaced(
    tmp_path: Path, mysql_url: str, second: BrokerProcess
) -> None:
    """B8: the transaction has the lease row locked, on a connection that cannot be killed."""
    with broker_process(tmp_path / "first", mysql_url, limits=SHORT_LEASE) as first:
        async with (
            escapement.connect(first.url, settings=PATIENT) as client,
            client.consumer("t", "s") as inbox,
        ):
            producer = await client.producer("t")
            await producer.send_many([b"x"] * 10)
            batch = await anext(inbox.batches())
            with connected(mysql_url) as blocker, blocker.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # commits go on
                for table in ("subscriptions", "journal"):
                    cursor.execute(f"SELECT * FROM {table} FOR UPDATE")
                await inbox.ack(batch.offsets)  # a checkpoint writes them into these tables
                await _until_waiting(cursor)
                first.pause()
        began_s = time.monotonic()
        await until_it_takes_over(second)
        # A lease, the silence of a connection, which is another one, and the start of a process.
        assert time.monotonic() - began_s < 15


async def _until_waiting(cursor: pymysql.cursors.Cursor) -> None:
    """Wait until another transaction waits for a row lock."""
    waiting = "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
    with trio.fail_after(TIMEOUT_S):
        while not cursor.execute(waiting):  # noqa: ASYNC110 (the condition is in the database)
            await trio.sleep(0.2)  # the server shows news only after 0.1 s without a question


def test_stopped_broker_that_goes_on_does_not_answer_a_read_from_before(
    tmp_path: Path, mysql_url: str, second: BrokerProcess
) -> None:
    """B8: it is stopped for longer than its lease. Its successor has created a topic meanwhile."""
    with broker_process(tmp_path / "first", mysql_url, limits=SHORT_LEASE) as first:
        with socket.create_connection(("127.0.0.1", first.port), timeout=TIMEOUT_S) as stream:
            client = Connection("client")
            hear(client, stream, wire.Hello(PROTOCOL_VERSION, "test", {}))
            listed = hear(client, stream, wire.Admin(1, "topics.list", {}))
            assert isinstance(listed, wire.AdminReply)
            first.pause()
            trio.run(until_it_takes_over, second)
            with escapement.sync.connect(second.url, settings=PATIENT) as other:
                other.admin("topics.create", topic="new")
            # The request waits in the socket, and is the first thing that the broker reads.
            stream.sendall(b"".join(client.send(wire.Admin(2, "topics.list", {}))))
            first.resume()
            said = hear(client, stream)
            assert isinstance(said, wire.Refused | wire.Goodbye)
            assert not isinstance(said, wire.Refused) or said.retryable


def hear(client: Connection, stream: socket.socket, *commands: wire.Command) -> wire.Command:
    """Send commands, and return the next command that the broker sends."""
    for command in commands:
        stream.sendall(b"".join(client.send(command)))
    while isinstance(event := client.next_event(), Signal):
        client.receive_data(stream.recv(65_536))
    return event
