"""The figures of a broker: its commits, its messages, and the size of its log."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import version

import trio.testing

from escapement import testing
from escapement.storage.engine.base import Engine
from escapement.storage.log.generation import existing_tables
from escapement.testing import arrived
from support.database.outages import Outage


def analyze(engine: Engine) -> None:
    """Update the statistics of MySQL, which it does itself a little later."""
    if engine.kind == "mysql":
        with closing(engine.connect()) as connection:
            for table in existing_tables(engine, connection):
                connection.execute(f"ANALYZE TABLE {table}")


async def test_two_readings_give_the_growth(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B14: on both databases. The size of the tables is read once a minute at most."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        started_at_ms = world.clock.now_ms()
        before = await broker.admin("broker.stats")
        assert (before["version"], before["started_at_ms"]) == (
            version("escapement"),
            started_at_ms,
        )
        assert (before["published"], before["log_bytes"], before["log_rows"]) == (0, 0, 0)
        assert before["log_disk_bytes"] > 0
        async with await broker.producer("t") as producer, broker.consumer("t", "s") as inbox:
            for _ in range(3):
                await producer.send_many([bytes(100_000)] * 10)
            await world.clock.advance(seconds=1)
            assert len(await arrived(inbox)) == 30
        now = await broker.admin("broker.stats")
        assert (now["published"], now["delivered"]) == (30, 30)
        assert now["commits"] >= before["commits"] + 3
        assert 0 <= now["commit_p50_us"] <= now["commit_p99_us"]
        assert now["log_bytes"] > 3_000_000
        assert now["log_disk_bytes"] == before["log_disk_bytes"], "the first reading"
        await world.clock.advance(minutes=1)
        await world.stop()  # SQLite writes its log into its file
        await world.restart()
        analyze(engine)
        async with world.connect() as again:
            last = await again.admin("broker.stats")
        assert last["log_bytes"] == now["log_bytes"]
        assert last["log_rows"] >= 1
        assert last["log_disk_bytes"] > before["log_disk_bytes"] + 2_000_000
        assert (last["published"], last["started_at_ms"]) == (0, started_at_ms + 61_000)


async def test_figures_are_told_while_the_database_is_away(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14, Q8: the last size of the log stands."""
    outage = Outage()
    async with testing.start(engine=outage.engine) as world, world.connect() as broker:
        before = await broker.admin("broker.stats")
        outage.unreachable()
        await world.clock.advance(minutes=1)
        now = await broker.admin("broker.stats")
        assert now["log_disk_bytes"] == before["log_disk_bytes"]
