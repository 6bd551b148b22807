"""Kills of a broker while applications write to their outboxes in transactions.

Real processes, real servers. Writers commit and roll back transactions while the broker is killed
at random times. At the end the log has each committed row once, and no other. Each transaction also
cancels the reminder of the one before it, and sends another. At the end there is one for each key.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pymysql
import pytest
import trio

import escapement
from escapement.sql import cancel, schedule
from support.database.servers import SqlServer, private_server
from support.outbox.outboxes import Application
from support.processes.broker import PATIENT, BrokerProcess, broker_process

WRITERS: Final = 3
TOPICS: Final = 2
KILLS: Final = 5
SERVER_KILLS: Final = 4
TIMEOUT_S: Final = 60
REMINDERS: Final = "reminders"


@dataclass
class Writer:
    """Writes numbered rows with one key, in two sessions that take turns at random.

    It remembers the rows that it has committed, and those whose commit got no answer. ``reminders``
    has the reminder of the last committed transaction, and those of later ones without an answer.
    """

    key: str
    seed: int
    committed: list[bytes] = field(default_factory=list)
    doubtful: set[bytes] = field(default_factory=set)
    reminders: set[bytes] = field(default_factory=set)
    _number: int = 0

    def write(self, application: Application, stopped: threading.Event) -> None:
        rng = random.Random(self.seed)
        while not stopped.is_set():
            try:
                with application.session() as one, application.session() as other:
                    while not stopped.is_set():
                        self._write(rng.choice([one, other]), rng)
            except pymysql.err.MySQLError:
                time.sleep(0.05)  # the server is being restarted

    def _write(self, cursor: pymysql.cursors.Cursor, rng: random.Random) -> None:
        rows = []
        for _ in range(rng.randint(1, 6)):
            rows.append(f"{self.key} {self._number} {self._number % TOPICS}".encode())
            self._number += 1
            schedule(cursor, f"t{rows[-1][-1:].decode()}", rows[-1], key=self.key)
        reminder = f"{self._number}".encode()
        cancel(cursor, REMINDERS, key=self.key)
        schedule(cursor, REMINDERS, reminder, key=self.key, delay="9h")
        if rng.random() < 0.2:
            time.sleep(rng.random() / 50)
        if rng.random() < 0.3:
            cursor.connection.rollback()
            return
        self.doubtful.update(rows)
        self.reminders.add(reminder)
        cursor.connection.commit()
        self.reminders = {reminder}
        self.doubtful.difference_update(rows)
        self.committed += rows


@contextmanager
def writing(application: Application, writers: list[Writer]) -> Iterator[None]:
    """Let writers write until the ``with`` block ends."""
    stopped = threading.Event()
    threads = [
        threading.Thread(target=writer.write, args=(application, stopped)) for writer in writers
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


@pytest.fixture(params=["same server", "other server", "sqlite"])
def log_url(request: pytest.FixtureRequest, mysql_server: SqlServer) -> Iterator[str | None]:
    """The URL of the log: on the server of the application, on another one, or in SQLite."""
    if request.param == "sqlite":
        yield None
    elif request.param == "other server":
        with private_server() as other:
            yield other.url("escapement")
    else:
        name = f"escapement_log_{secrets.token_hex(6)}"
        yield mysql_server.url(name)
        mysql_server.admin(f"DROP DATABASE {name}")


async def test_killed_broker_moves_each_committed_row_once(
    log_url: str | None, mysql_url: str, tmp_path: Path
) -> None:
    """V7, N7."""
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    application = Application(mysql_url)
    application.install()
    writers = [Writer(f"w{n}", seed + n) for n in range(WRITERS)]
    with broker_process(tmp_path / "data", log_url, "--outbox", mysql_url) as process:
        with writing(application, writers):
            for _ in range(KILLS):
                await trio.sleep(0.1 + rng.random() / 2)
                process.kill()
                await trio.to_thread.run_sync(process.start)
        assert not any(writer.doubtful for writer in writers)
        await check(process, application, writers)


async def test_restarts_of_both_servers_move_each_committed_row_once(tmp_path: Path) -> None:
    """V7, N7: also if the server of the application is killed in the middle of a commit."""
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with private_server() as server:
        server.admin("CREATE DATABASE shop")
        application = Application(server.url("shop"))
        application.install()
        writers = [Writer(f"w{n}", seed + n) for n in range(WRITERS)]
        with broker_process(tmp_path / "data", None, "--outbox", application.url) as process:
            with writing(application, writers):
                for _ in range(SERVER_KILLS):
                    await trio.sleep(0.5 + rng.random())
                    server.kill()
                    if rng.random() < 0.5:
                        process.kill()
                        await trio.to_thread.run_sync(process.start)
                    await trio.to_thread.run_sync(server.start)
                await trio.sleep(1)
            await check(process, application, writers)


async def check(process: BrokerProcess, application: Application, writers: list[Writer]) -> None:
    """Check that the logs of the topics have exactly the committed rows, in order by key."""
    wanted: dict[tuple[int, str], list[bytes]] = defaultdict(list)
    for writer in writers:
        for row in writer.committed:
            wanted[int(row[-1:]), writer.key].append(row)
    assert sum(map(len, wanted.values())) > 100
    doubtful = {row for writer in writers for row in writer.doubtful}
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        with trio.fail_after(TIMEOUT_S):
            while application.left or await broker.admin("inbox.list"):  # noqa: ASYNC110
                await trio.sleep(0.05)
        pending = {one.key: one.payload async for one in broker.peek(REMINDERS)}
        assert len([one async for one in broker.peek(REMINDERS)]) == len(writers)
        for writer in writers:
            assert pending[writer.key] in writer.reminders
        for topic in range(TOPICS):
            found: dict[tuple[int, str], list[bytes]] = defaultdict(list)
            seen: set[bytes] = set()
            async for page in broker.read(f"t{topic}"):
                for message in page:
                    assert message.payload not in seen
                    seen.add(message.payload)
                    if message.payload not in doubtful:
                        found[topic, message.key].append(message.payload)
            assert found == {at: rows for at, rows in wanted.items() if at[0] == topic}
