"""Repair and rebuild of a database with several bundles, whose indexes are in one directory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shutil import rmtree

import pytest
import trio.testing

from escapement.broker.broker import BrokerConfig
from escapement.check.check import Check
from escapement.check.repair import repair
from escapement.doctor.finding import Severity
from escapement.errors import LeaseHeld
from escapement.pipeline.rebuild import DEFAULT_MEMORY_BYTES, rebuild_all
from escapement.storage.data_directory import DataDirectory, index_directory
from escapement.storage.engine.base import Engine
from escapement.storage.index.segments.manifest import MANIFEST_NAME
from escapement.storage.lease import Identity
from escapement.testing import World, arrived
from support.storage.bundle_brokers import BUNDLES, brokers, full, publish_everywhere

CONFIG = BrokerConfig(ack_wait_ms=10**9, table_parallelism=1, seed=0)
# The messages that a subscription has still to get: at once, and in an hour.
PENDING = [*range(4, 10), *range(10, 20)]


def indexes(data: Path) -> list[bool]:
    """Return whether each bundle has an index."""
    return [(index_directory(data, one) / MANIFEST_NAME).exists() for one in range(BUNDLES)]


def set_aside(data: Path) -> list[str]:
    (aside,) = data.glob("set-aside-*")
    left = [path for path in aside.rglob("*") if path.is_file() or not any(path.iterdir())]
    return sorted((str(path.relative_to(aside)) for path in left), reverse=True)


def bad(engine: Engine, data: Path) -> set[str]:
    return {one.check for one in Check(engine, data).run() if one.is_bad}


async def check_deliveries(worlds: list[World], topics: list[str]) -> None:
    for topic, world in zip(topics, worlds, strict=True):
        await world.restart()
        async with world.connect() as broker:
            await world.clock.advance(hours=2)
            async with broker.consumer(topic, "s", permits=100) as inbox:
                assert sorted(one.offset for one in await arrived(inbox)) == PENDING


async def test_repair_mends_each_bundle_and_deletes_only_spoilt_indexes(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """O7: a lost lease, a damaged index, a topic's end that is too low, and orphaned files."""
    async with brokers(engine, tmp_path, CONFIG) as worlds:
        topics = await publish_everywhere(worlds)
        assert (bad(engine, tmp_path), indexes(tmp_path)) == (set(), [True] * BUNDLES)
        with closing(engine.connect()) as connection:
            connection.execute("DELETE FROM leases WHERE bundle_id = 1")
            name = full(topics[2]).rpartition("/")[2]
            connection.execute("UPDATE topics SET next_offset = 5 WHERE name = ?", (name,))
        (segment,) = index_directory(tmp_path, 1).glob("*.segment")
        segment.write_bytes(segment.read_bytes()[:-1])
        orphans = [tmp_path / "index" / "99999999.segment", tmp_path / "index-02.rebuilding"]
        orphans[0].write_bytes(b"unfinished")
        orphans[1].mkdir()
        assert bad(engine, tmp_path) == {"lease", "index files", "topic end"}
        with DataDirectory.open(tmp_path) as directory:
            found = repair(engine, directory, worlds[0].clock, lambda text: None)
        mended = [one for one in found if one.remedy.startswith("Mended: ")]
        assert [one.text for one in mended if one.check == "lease"] == [
            "bundle 1: the lease was missing"
        ]
        kinds = {"lease", "index files", "topic end", "orphaned files"}
        assert {one.check for one in mended} == kinds
        assert {one.severity for one in found} <= {Severity.OK, Severity.NOTICE}
        assert indexes(tmp_path) == [True, False, False]
        assert set_aside(tmp_path) == ["index/99999999.segment", "index-02.rebuilding"]
        assert not any(path.exists() for path in orphans)
        assert bad(engine, tmp_path) == set()
        await check_deliveries(worlds, topics)


async def test_an_index_elsewhere_is_not_used_after_the_end_of_a_topic_was_raised(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """O7: the index of another node may lack the messages, and a repair cannot delete it."""
    async with brokers(engine, tmp_path / "node", CONFIG) as worlds:
        topics = await publish_everywhere(worlds)
        with closing(engine.connect()) as connection:
            connection.execute("UPDATE topics SET next_offset = 5")
        with DataDirectory.open(tmp_path / "other") as directory:
            repair(engine, directory, worlds[0].clock, lambda text: None)
        assert bad(engine, tmp_path / "node") == {"stale index"}
        await check_deliveries(worlds, topics)


async def test_rebuild_writes_the_index_of_each_bundle(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """P5: brokers use them, and the job is refused while a broker owns any of the bundles."""
    async with brokers(engine, tmp_path, CONFIG) as worlds:
        topics = await publish_everywhere(worlds)
        for bundle_id in range(BUNDLES):
            rmtree(index_directory(tmp_path, bundle_id))

        def rebuild() -> int:
            with DataDirectory.open(tmp_path) as directory:
                identity = Identity(directory.identity, "rebuild", directory.place)
                settings = (worlds[0].clock, DEFAULT_MEMORY_BYTES, lambda progress: None, None)
                bundles = range(BUNDLES)
                return rebuild_all(engine, identity, directory.index_of, bundles, *settings).pending

        await worlds[2].restart()
        with pytest.raises(LeaseHeld):
            rebuild()
        assert indexes(tmp_path)[:2] == [False] * 2
        await worlds[2].stop()
        assert rebuild() == BUNDLES * len(PENDING)
        assert (bad(engine, tmp_path), indexes(tmp_path)) == (set(), [True] * BUNDLES)
        kept = [next(index_directory(tmp_path, one).glob("*.segment")) for one in range(BUNDLES)]
        await check_deliveries(worlds, topics)
        assert all(path.exists() for path in kept)
