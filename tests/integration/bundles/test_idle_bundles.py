"""Many idle bundles cost a node little more than one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import trio

from escapement.storage.bundles import CATALOG, set_bundle_count
from escapement.storage.engine.open import open_engine
from escapement.storage.inbox import inbox
from escapement.testing.clock import START_MS, VirtualClock
from escapement.testing.world import arrived
from support.bundle_topics import topic_of_each_bundle
from support.storage.cluster import connected
from support.storage.commit_pipelines import FaultyEngine
from support.storage.inbox_entries import inbox_entry
from support.storage.running_nodes import Running, made
from support.storage.virtual_node import virtual_node

BUNDLES = 8
SECONDS = 60
# Each bundle asks every ten seconds whether deletions have left rows.
OWN_STEPS = SECONDS // 10


async def advance(clock: VirtualClock, seconds: int) -> None:
    for _ in range(2 * seconds):
        await clock.advance(ms=500)


async def test_idle_bundles_ask_the_database_together(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    steps: list[str] = []
    real, clock = open_engine(mysql_url, tmp_path), VirtualClock(START_MS)
    node = virtual_node(FaultyEngine(real, steps.append), tmp_path, clock)

    async def idle_minute() -> tuple[int, int]:
        """Return the database steps of a minute, and how many of them are COMMITs."""
        await advance(clock, 60)  # the first rounds of all work, which find nothing
        steps.clear()
        await advance(clock, SECONDS)
        return len(steps), steps.count("commit")

    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        of_one, commits_of_one = await idle_minute()
        set_bundle_count(real, BUNDLES)
        of_all, commits_of_all = await idle_minute()
        assert len(node.brokers) == BUNDLES
        node.stop()
    assert of_all <= of_one + (BUNDLES - 1) * OWN_STEPS
    assert commits_of_all == commits_of_one
    real.close()


async def test_broker_reads_the_tokens_once_when_it_starts(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    steps: list[str] = []
    real, clock = open_engine(mysql_url, tmp_path), VirtualClock(START_MS)
    node = virtual_node(FaultyEngine(real, steps.append), tmp_path, clock, bundles=BUNDLES)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        await advance(clock, 5)
        assert sum(" FROM tokens" in step for step in steps) == BUNDLES
        with closing(real.connect()) as connection:
            connection.execute(
                "UPDATE shared_numbers SET value = value + 1 WHERE name = ?", (CATALOG,)
            )
        await advance(clock, 2)
        assert sum(" FROM tokens" in step for step in steps) == 2 * BUNDLES
        node.stop()
    real.close()


async def test_entries_of_another_process_are_moved_within_two_seconds(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """The topic may be in any bundle. A node asks once for all of its bundles."""
    engine, clock = open_engine(mysql_url, tmp_path), VirtualClock(START_MS)
    topics = topic_of_each_bundle(3)
    async with trio.open_nursery() as nursery:
        running = Running(nursery, clock)
        await running.start("a:7650", made(engine, tmp_path / "a", "a", clock, 3))
        async with connected(running, "a:7650") as client:
            for topic in topics:
                await client.admin("subscriptions.create", topic=topic, subscription="s")
            await advance(clock, 10)
            for topic in topics:
                with closing(engine.connect()) as connection:
                    connection.begin()
                    entry = inbox_entry(f"public/default/{topic}", "x")
                    inbox.insert(engine, connection, [entry], clock.now_ms())
                    connection.commit()
                await advance(clock, 2)
                async with client.consumer(topic, "s") as consumer:
                    assert [one.payload for one in await arrived(consumer)] == [b"x"]
        await running.stop("a:7650")
    engine.close()
