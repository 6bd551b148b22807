"""Free space of an SQLite database returns to the file system."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import trio

from escapement import testing
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
