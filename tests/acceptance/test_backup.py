"""Backups of a broker under load, restored after it was killed."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import pytest
import trio

import escapement
from escapement.cli.main import run
from escapement.storage.engine.address import MysqlAddress
from support.database.accounts import PASSWORD, account
from support.database.servers import SqlServer
from support.processes.broker import PATIENT, BrokerProcess, until
from support.processes.command_lines import TIMEOUT_S, process

GUIDES: Final = Path(__file__).parents[2] / "docs" / "guides"
# The options of the documented commands that name a server.
CONNECTION: Final = {"--host", "--user", "--password"}
BATCH: Final = 200
# Later than the restored broker needs to start, so that it is the one that delivers the messages.
LONG_DELAY: Final = timedelta(seconds=7)


class Load:
    """Producers and consumers of a broker, and what they know."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.confirmed: set[int] = set()
        self.acking: set[int] = set()  # acknowledgements were sent, and perhaps stored
        self.acked: set[int] = set()  # acknowledgements were confirmed

    async def publish(self) -> None:
        async with escapement.connect(self.broker.url, settings=PATIENT) as client:
            producer = await client.producer("t")
            delays = [timedelta(0), LONG_DELAY]
            while True:
                for delay in delays:
                    receipts = await producer.send_many(
                        [secrets.token_bytes(500) for _ in range(BATCH)], delay=delay
                    )
                    self.confirmed.update(receipts.offsets.tolist())

    async def consume(self) -> None:
        """Acknowledge two of three messages."""
        async with escapement.connect(self.broker.url, settings=PATIENT) as client:
            async with client.consumer("t", "s", permits=BATCH) as inbox:
                while (batch := await inbox.next_batch()) is not None:
                    offsets = batch.offsets[batch.offsets % 3 > 0]
                    self.acking.update(offsets.tolist())
                    await inbox.ack(offsets, durable=True)
                    self.acked.update(offsets.tolist())


async def back_up(
    broker: BrokerProcess, take: Callable[[], subprocess.CompletedProcess[str]]
) -> tuple[set[int], set[int]]:
    """Take a backup under load, and kill the broker.

    Returns:
      The messages that the backup must have as pending, and those that it must have as finished.
    """
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        await client.admin("subscriptions.create", topic="t", subscription="s")
        producer = await client.producer("t")
        # Any bytes, in a log row that is as large as a row gets.
        large = [secrets.token_bytes(1_000_000) for _ in range(7)]
        await producer.send_many(large, delay=LONG_DELAY)
    load = Load(broker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.publish)
        nursery.start_soon(load.consume)
        manifest = broker.index / "MANIFEST"
        await until(lambda: len(load.acked) > 20 * BATCH and manifest.exists())
        confirmed, acked = set(load.confirmed), set(load.acked)
        done = await trio.to_thread.run_sync(take)
        assert done.returncode == 0, done.stderr
        acking = set(load.acking)
        assert len(load.confirmed) > len(confirmed), "no load during the backup"
        # The index of the broker becomes newer than the backup.
        content = manifest.read_bytes()
        await until(lambda: manifest.read_bytes() != content and len(load.acked) > len(acking))
        nursery.cancel_scope.cancel()
    broker.kill()
    return confirmed - acking, acked


async def check_restored(broker: BrokerProcess, pending: set[int], finished: set[int]) -> None:
    """Receive all messages that must be pending: none early, and none that is finished."""
    got: set[int] = set()
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        with trio.fail_after(TIMEOUT_S):
            async with client.consumer("t", "s", permits=4 * BATCH) as inbox:
                while not pending <= got:
                    batch = await inbox.next_batch()
                    assert batch is not None
                    assert (batch.due_ms <= time.time_ns() // 1_000_000).all()
                    got.update(batch.offsets.tolist())
                    await inbox.ack(batch.offsets)
        assert not got & finished
        producer = await client.producer("t")
        await producer.send(b"the log goes on")


async def test_snapshot_of_a_loaded_broker_restores_what_it_had_confirmed(tmp_path: Path) -> None:
    """O9: SQLite, by `escapement backup`, into another directory."""
    broker, file = BrokerProcess(tmp_path / "first"), tmp_path / "snapshot"

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        with process(broker, *words, text=True) as running:
            out, err = running.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(words, running.returncode, out, err)

    second = BrokerProcess(tmp_path / "second")
    try:
        broker.start()
        pending, finished = await back_up(
            broker, lambda: command("backup", str(file), "--data", str(broker.data))
        )
        refused = command("restore", str(file), "--data", str(broker.data))
        assert refused.returncode == 1
        assert "has a log" in refused.stderr
        restored = command("restore", str(file), "--data", str(second.data))
        assert restored.returncode == 0, restored.stderr
        second.start()
        await check_restored(second, pending, finished)
    finally:
        broker.remove()
        second.remove()


def printed(broker: BrokerProcess, url: str, *words: str) -> list[str]:
    """Return the commands that `escapement backup` or `restore` prints for a log in MySQL."""
    with process(broker, *words, "--log", url, text=True) as running:
        _, said = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 1
    # A script gives the password in the environment.
    return re.findall(r"^  (mariadb.*)$", said.replace(" --password", ""), re.MULTILINE)


def documented(file: str, pattern: str) -> str:
    """Return the first group of a pattern in a guide."""
    text = (GUIDES / file).read_text().replace("\\\n", "")
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None, pattern
    return found[1]


def test_dump_and_restore_need_the_documented_rights_only(
    tmp_path: Path, mysql_server: SqlServer, mysql_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """O9: the dump as the user of the broker, the rest as the migrator."""
    file = tmp_path / "dump.sql"
    guide = "mysql-in-production.md"
    rights = {
        user: documented(guide, rf"^GRANT (.*) ON escapement\.\* TO {user};$")
        for user in ("escapement", "migrator")
    }
    name = urlsplit(mysql_url).path.removeprefix("/")
    assert run(["migrate", "--log", mysql_url, "--table-sets", "1"]) == 0
    with (
        account(mysql_server, mysql_url, rights["escapement"]) as broker,
        account(mysql_server, mysql_url, rights["migrator"]) as migrator,
    ):

        def execute(line: str, user: MysqlAddress) -> None:
            words = line.replace("escapement.", f"{name}.").split()
            where = [f"--host={user.host}", f"--port={user.port}", f"--user={user.user}"]
            given = [one for one in words[1:-1] if one.split("=")[0] not in CONNECTION]
            done = subprocess.run(
                [words[0], *where, *given, name],
                env=os.environ | {"MYSQL_PWD": user.password},
                input=file.read_bytes() if file.exists() else b"",
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr

        dump = documented("backup.md", r"^(mariadb-dump .*)$")
        assert run(["backup", "monday.sql", "--log", "mysql://escapement:s@db.example/escapement"])
        printed = re.findall(r"^  (mariadb.*)$", capfd.readouterr().err, re.MULTILINE)
        assert {*printed[0].split()} - {*dump.split()} == {"--port=3306"}
        execute(dump.replace("monday.sql", str(file)), broker)
        mysql_server.admin(f"DROP DATABASE `{name}`")
        mysql_server.admin(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        execute("mariadb escapement", migrator)
        url = f"mysql://{migrator.user}:{quote(PASSWORD, safe='')}@{migrator.host}:{migrator.port}"
        assert run(["migrate", "--log", f"{url}/{name}", "--table-sets", "1"]) == 0
        assert run(["migrate", "--log", mysql_url, "--table-sets", "1"]) == 0
        said = capfd.readouterr().out
        assert said.count("created the view") == 3
        assert "created the table" not in said
        assert said.endswith("The tables are up to date.\n")


@pytest.mark.parametrize("keeps_index", [True, False])
async def test_dump_of_a_loaded_broker_restores_what_it_had_confirmed(
    tmp_path: Path, mysql_server: SqlServer, mysql_url: str, keeps_index: bool
) -> None:
    """O9, invariant 7: MariaDB, by mariadb-dump; the old index is newer than the database."""
    broker, file = BrokerProcess(tmp_path / "first", mysql_url), tmp_path / "dump.sql"
    url = urlsplit(mysql_url)
    name = url.path.removeprefix("/")
    environment = os.environ | ({"MYSQL_PWD": url.password} if url.password else {})

    def execute(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line, shell=True, env=environment, capture_output=True, text=True, check=False
        )

    second = broker if keeps_index else BrokerProcess(tmp_path / "second", mysql_url)
    try:
        broker.start()
        (dump,) = printed(broker, mysql_url, "backup", str(file))
        pending, finished = await back_up(broker, lambda: execute(dump))
        mysql_server.admin(f"DROP DATABASE `{name}`")
        mysql_server.admin(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        load, release = printed(broker, mysql_url, "restore", str(file))
        for line in (load, release):
            done = execute(line)
            assert done.returncode == 0, done.stderr
        second.start()
        assert ("index.foreign" in second.complaints()) == keeps_index
        await check_restored(second, pending, finished)
    finally:
        broker.remove()
        second.remove()
