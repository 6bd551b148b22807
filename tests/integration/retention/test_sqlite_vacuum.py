"""Free space of an SQLite database returns to the file system."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import trio

from escapement import testing
from escapement.storage.cleanup import sqlite_vacuum
from escapement.storage.engine.base import Connection
from escapement.storage.engine.sqlite import SqliteEngine
from support.faults.dying_brokers import finish
from support.storage.forgetting_brokers import PATIENT, a_day_later, begin, take


async def test_sqlite_file_shrinks_when_generations_are_deleted(
    mock_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """P11, Q7: the file shrinks although SQLite keeps free pages."""
    path = tmp_path / "log.sqlite3"
    async with testing.start(config=PATIENT, engine=SqliteEngine(path)) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            for number in range(20):
                kept = timedelta(days=1) if number == 10 else timedelta(0)
                await producer.send(b"%02d" % number + b"." * 1_000_000, delay=kept)
            assert len(await take(broker)) == 19
            await world.checkpoint()
            before_bytes = on_disk(path)
            await a_day_later(world)
            await finish(world, world.server.services.housekeeper.round)
            await world.clock.advance(days=1)
            assert [value[:2] for value in await take(broker)] == [b"10"]
    assert before_bytes > 15_000_000
    assert on_disk(path) < 8_000_000


def on_disk(path: Path) -> int:
    """Return the size of an SQLite database in bytes, with its write-ahead log."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def pages(connection: Connection) -> tuple[int, int]:
    """Return the number of pages of the file, and how many of them are free."""
    names = ("page_count", "freelist_count")
    count, free = (int(connection.execute(f"PRAGMA {name}").rows[0][0]) for name in names)
    return count, free


def test_each_step_returns_a_bounded_number_of_pages_until_a_spare_is_left(tmp_path: Path) -> None:
    """P11: free pages stay for new data, and the rows stay as they are."""
    engine = SqliteEngine(tmp_path / "log.sqlite3")
    assert sqlite_vacuum.keeps(engine)
    with closing(engine), closing(engine.connect()) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, data BLOB)")
        rows = [(number, bytes(10_000)) for number in range(1_000)]
        connection.begin()
        connection.execute_many("INSERT INTO t VALUES (?, ?)", rows)
        connection.commit()
        assert not sqlite_vacuum.give_back_step(connection), "no page is free"
        connection.execute("DELETE FROM t WHERE id % 10 <> 0")
        before, free = pages(connection)
        used = before - free
        assert free > 800
        returned, more = 0, True
        while more:
            connection.begin()
            more = sqlite_vacuum.give_back_step(connection)
            connection.commit()
            count, _ = pages(connection)
            assert 0 <= before - count - returned <= 64
            returned = before - count
        count, free = pages(connection)
        assert count == used + free, "a page is lost"
        assert free == 256 + used // 8
        kept = connection.execute("SELECT id, LENGTH(data) FROM t ORDER BY id").rows
        assert kept == [(number, 10_000) for number in range(0, 1_000, 10)]
