"""Refusals of the database: the broker waits for some, and exits with a clear error for others.

Nothing confirmed is lost either way. ``test_outage.py`` has the tests of a database that is killed,
frozen or read-only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest
import trio

import escapement
from escapement.storage.engine.address import MysqlAddress
from support.database.servers import MysqlServer, private_server
from support.processes.broker import PATIENT, BrokerProcess, broker_process, until

LIMITS: Final[dict[str, Any]] = {"lease_ms": 3_000, "checkpoint_interval_s": 0.5}
USER: Final = "somebody"
TIMEOUT_S: Final = 60
BATCH: Final = [bytes(20_000)] * 20
# All tables are in two files of fixed size. The server chooses the size of the first.
FULL: Final = ("--innodb-file-per-table=0", "--innodb-data-file-path=ibdata1:12M;ibdata2:16M")
WITH_ROOM: Final = f"{FULL[1]};ibdata3:12M:autoextend"
# Each row fills half a page.
ROWS: Final = ", ".join(["(REPEAT('.', 7000))"] * 20)


@pytest.fixture
def url(mysql_to_break: MysqlServer) -> Iterator[str]:
    """A database on a server that tests may break, with a user that they may lock out."""
    name = f"escapement_refused_{uuid.uuid4().hex[:8]}"
    mysql_to_break.admin(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    mysql_to_break.admin(f"DROP USER IF EXISTS {USER}@'%'")
    mysql_to_break.admin(f"CREATE USER {USER}@'%' IDENTIFIED BY 'secret'")
    mysql_to_break.admin(f"GRANT ALL ON {name}.* TO {USER}@'%'")
    yield mysql_to_break.url(name, USER, "secret")
    mysql_to_break.admin(f"DROP USER {USER}@'%'")
    mysql_to_break.admin(f"DROP DATABASE {name}")


def cut_off(server: MysqlServer, spared: int = 0) -> None:
    """Kill the connections of the user except one. Some may have closed already."""
    mine = f"user = '{USER}' AND id <> {spared}"
    asked = f"SELECT id FROM information_schema.processlist WHERE {mine}"
    for (id,) in server.admin(asked):
        with suppress(Exception):
            server.admin(f"KILL {id}")


@dataclass
class Traffic:
    """The confirmed messages, and the messages that a consumer received."""

    batch: list[bytes] = field(default_factory=BATCH.copy)
    confirmed: set[int] = field(default_factory=set)
    got: set[int] = field(default_factory=set)

    async def publish(self, producer: escapement.Producer) -> None:
        receipts = await producer.send_many(self.batch)
        self.confirmed |= set(receipts.offsets.tolist())

    async def go_on(self, producer: escapement.Producer) -> None:
        """Publish forever, and ignore errors."""
        while True:
            with suppress(escapement.EscapementError):
                await self.publish(producer)

    async def refusal(self, producer: escapement.Producer) -> escapement.EscapementError:
        """Publish until the broker refuses, and return its error. Timeouts do not count."""
        with trio.fail_after(TIMEOUT_S):
            while True:
                try:
                    await self.publish(producer)
                except escapement.Disconnected:
                    continue
                except escapement.EscapementError as error:
                    return error

    async def receive_all(self, client: escapement.Broker) -> None:
        """Receive all confirmed messages."""
        async with client.consumer("t", "s", permits=10_000) as inbox:
            with trio.fail_after(TIMEOUT_S):
                while not self.got >= self.confirmed:
                    batch = await inbox.next_batch()
                    assert batch is not None
                    self.got |= set(batch.offsets.tolist())
                    await batch.ack(durable=True)


async def check_broker_recovers(
    broker: BrokerProcess, break_it: Any, mend_it: Any, says: str, traffic: Traffic | None = None
) -> None:
    """Check that the broker refuses with the database's error, and recovers with the database."""
    traffic, process = traffic or Traffic(), broker.process
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        await client.admin("subscriptions.create", topic="t", subscription="s")
        producer = await client.producer("t", send_timeout="2s")
        await traffic.publish(producer)
        break_it()
        error = await traffic.refusal(producer)
        assert error.retryable
        assert says in str(error)
        mend_it()
        patient = await client.producer("t", send_timeout="60s")
        await traffic.publish(patient)
        await traffic.receive_all(client)
    assert broker.running
    assert broker.process is process
    assert says in broker.complaints()


@pytest.mark.long
async def test_broker_waits_while_the_disk_of_the_database_is_full(tmp_path: Path) -> None:
    """Q8, invariant 1: the database has no space for another row until an operator adds some."""
    with private_server(*FULL) as server:
        server.admin("CREATE DATABASE full CHARACTER SET utf8mb4")
        server.admin("CREATE TABLE full.filler (id INT AUTO_INCREMENT PRIMARY KEY, data BLOB)")

        def fill() -> None:
            """Fill the last page, with rows that fit into one page, as the broker's rows do.

            InnoDB needs free space to roll back a longer row. MariaDB tries for five seconds, and
            then aborts.
            """
            with suppress(pymysql.err.OperationalError):  # the table is full
                while True:
                    server.admin("INSERT INTO full.filler (data) VALUES " + ROWS)

        def make_room() -> None:
            server.stop()
            server.restart_with(FULL[0], WITH_ROOM)

        small = Traffic([b"."] * 20)
        with broker_process(tmp_path / "broker", server.url("full"), limits=LIMITS) as broker:
            await check_broker_recovers(broker, fill, make_room, "is full (1114)", small)


async def test_broker_waits_for_free_database_connections(
    tmp_path: Path, mysql_to_break: MysqlServer, url: str
) -> None:
    """Q8: the broker loses its connections, and another client has all that are allowed."""

    def limit(most: int) -> None:
        mysql_to_break.admin(f"ALTER USER {USER}@'%' WITH MAX_USER_CONNECTIONS {most}")

    to = MysqlAddress.parse(url)
    whose = {"user": to.user, "password": to.password, "ssl_disabled": True}
    with ExitStack() as held:

        def break_it() -> None:
            # The limit counts only connections opened after it is set, so another client opens one.
            limit(1)
            other = pymysql.connect(host=to.host, port=to.port, **whose)
            held.enter_context(closing(other))
            cut_off(mysql_to_break, spared=other.thread_id())

        with broker_process(tmp_path / "broker", url, limits=LIMITS) as broker:
            says = "max_user_connections"
            await check_broker_recovers(broker, break_it, lambda: limit(0), says)


@pytest.mark.parametrize(
    ("break_it", "mend_it", "says"),
    [
        (
            f"ALTER USER {USER}@'%' IDENTIFIED BY 'another'",
            f"ALTER USER {USER}@'%' IDENTIFIED BY 'secret'",
            "the server refuses this user; check user, password and host",
        ),
        (
            "SET GLOBAL max_allowed_packet = 65536",
            f"SET GLOBAL max_allowed_packet = {64 << 20}",
            "larger than the server's max_allowed_packet of 65536; raise that",
        ),
    ],
    ids=["password", "packet"],
)
async def test_error_that_an_operator_must_fix_ends_the_broker_with_its_reason(
    tmp_path: Path, mysql_to_break: MysqlServer, url: str, break_it: str, mend_it: str, says: str
) -> None:
    """Q8, invariant 1: the rule "anything else". Nothing confirmed is lost after the next start."""
    traffic = Traffic()
    with broker_process(tmp_path / "broker", url, limits=LIMITS) as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
            producer = await client.producer("t", send_timeout="2s")
            await traffic.publish(producer)
            mysql_to_break.admin(break_it)
            try:
                cut_off(mysql_to_break)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(traffic.go_on, producer)
                    await until(lambda: not broker.running, TIMEOUT_S)
                    nursery.cancel_scope.cancel()
            finally:
                mysql_to_break.admin(mend_it)
            assert broker.process.returncode == 1
            assert broker.complaints().splitlines()[-1].startswith("error: ")
            assert says in broker.complaints().splitlines()[-1]
            broker.start()
            await traffic.receive_all(client)
