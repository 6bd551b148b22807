"""Kills of a broker while applications write to outboxes in tables of their own.

Real processes, a real server. One table's rows are deleted when they are moved, the other's get
another value in a column. The tables are mapped while the broker runs.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

import escapement
from escapement.cli.main import run
from support.outbox.existing_tables import EVENTS
from support.outbox.outboxes import Application
from support.processes.broker import PATIENT, broker_process

KILLS: Final = 6
TIMEOUT_S: Final = 60
TABLES: Final = {"deleted": "delete", "kept": "sent=1"}
KEYS: Final = ("a", "b")


class Writer:
    """Writes numbered rows of each key to both tables, and remembers the committed ones."""

    def __init__(self, key: str, seed: int) -> None:
        self.key = key
        self.committed: dict[str, list[bytes]] = {table: [] for table in TABLES}
        self._rng = random.Random(seed)

    def write(self, application: Application, stopped: threading.Event) -> None:
        number = 0
        with application.session() as cursor:
            while not stopped.is_set():
                table = self._rng.choice(list(TABLES))
                rows = [
                    f"{table} {self.key} {number + at}" for at in range(self._rng.randint(1, 5))
                ]
                number += len(rows)
                for row in rows:
                    values = (self.key, row)
                    cursor.execute(f"INSERT INTO {table} (k, body) VALUES (%s, %s)", values)
                if self._rng.random() < 0.2:
                    time.sleep(self._rng.random() / 50)
                if self._rng.random() < 0.3:
                    cursor.connection.rollback()
                else:
                    cursor.connection.commit()
                    self.committed[table] += [row.encode() for row in rows]


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


def waiting(application: Application) -> int:
    """Return the number of committed rows that are not done."""
    return sum(
        int(application.run(f"SELECT COUNT(*) FROM {table} WHERE sent = 0")[0][0])
        for table in TABLES
    )


async def test_killed_broker_moves_each_committed_row_of_mapped_tables_once(
    mysql_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """N7."""
    seed = secrets.randbelow(1 << 32)
    with capsys.disabled():
        print(f"seed {seed}")
    rng = random.Random(seed)
    application = Application(mysql_url)
    for table in TABLES:
        application.run(EVENTS.replace("TABLE events", f"TABLE {table}"))
    writers = [Writer(key, seed + at) for at, key in enumerate(KEYS)]
    with broker_process(tmp_path / "data", None, "--outbox", mysql_url) as process:
        for table, done in TABLES.items():
            add = ["outbox", "add", mysql_url, table, "--topic", table, "--key-column", "k"]
            assert run([*add, "--payload-column", "body", "--done", done]) == 0
        with writing(application, writers):
            for _ in range(KILLS):
                await trio.sleep(0.1 + rng.random())
                process.kill()
                await trio.to_thread.run_sync(process.start)
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            with trio.fail_after(TIMEOUT_S):
                while waiting(application) or await broker.admin("inbox.list"):  # noqa: ASYNC110
                    await trio.sleep(0.05)
            for table in TABLES:
                found: dict[str, list[bytes]] = {key: [] for key in KEYS}
                async for page in broker.read(table):
                    for message in page:
                        found[message.key].append(message.payload)
                assert found == {writer.key: writer.committed[table] for writer in writers}
                assert sum(map(len, found.values())) > 100
    stayed = application.run("SELECT COUNT(*) FROM kept")[0][0]
    assert stayed == sum(len(writer.committed["kept"]) for writer in writers)
