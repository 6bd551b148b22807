"""`escapement check --repair` on a stopped broker, and the broker that starts afterwards."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from trio.testing import MockClock

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.check.check import Check
from escapement.check.repair import repair
from escapement.doctor.finding import Finding, Severity
from escapement.errors import LeaseHeld
from escapement.storage import lease
from escapement.storage.data_directory import DataDirectory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index import DelayedIndex
from escapement.storage.index.segments.manifest import (
    Manifest,
    ManifestFile,
)
from escapement.storage.journal import journal
from escapement.storage.lease import Identity
from escapement.storage.log.generation import existing_tables
from escapement.testing import World, arrived

HOUR = timedelta(hours=1)
CONFIG = BrokerConfig(ack_wait_ms=10**9, table_parallelism=1, seed=0)
# The messages of the topic t: 0 to 29 are due at once, 30 to 59 in an hour.
ACKED, CANCELLED, MOVED = range(10), range(30, 35), range(35, 40)
DUE = list(range(10, 30))
DUE_IN_AN_HOUR = list(range(40, 60))
DUE_IN_TWO = list(MOVED)


@dataclass
class Stopped:
    """A broker that has stopped cleanly, with its database and its data directory."""

    world: World
    engine: Engine
    data: Path
    connection: Connection

    @property
    def index(self) -> Path:
        return self.data / "index"

    def log_table(self) -> str:
        (table,) = existing_tables(self.engine, self.connection)
        return table

    def check(self) -> list[Finding]:
        return [one for one in Check(self.engine, self.data).run() if one.is_bad]

    def repair(self) -> list[Finding]:
        """Repair the store, and return the findings with a remedy."""
        with DataDirectory.open(self.data) as directory:
            found = repair(self.engine, directory, self.world.clock, lambda text: None)
        return [one for one in found if one.remedy]

    def rewrite_manifest(self, change: Callable[[Manifest], Manifest]) -> None:
        def changed(manifest: Manifest | None) -> Manifest:
            assert manifest is not None
            return change(manifest)

        ManifestFile(self.index).update(changed, lambda: None)


def _prepare(data: Path) -> None:
    """Create a data directory with the identity of the broker of a ``World``."""
    data.mkdir()
    (data / "broker.id").write_text("0" * 32 + "\n")


@asynccontextmanager
async def stopped(engine: Engine, data: Path) -> AsyncIterator[Stopped]:
    """Run a broker with some history and stop it."""
    _prepare(data)
    # The checks use the clock of the database. Due times are rounded up to the next tick.
    begun = testing.start(config=CONFIG, engine=engine, start_ms=int(time.time()) * 1000)
    async with begun as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic="t", subscription="s")
            async with await broker.producer("t") as producer:
                await producer.send_many([b"%d" % n for n in range(30)])
                await producer.send_many([b"%d" % n for n in range(30, 60)], delay=HOUR)
            await broker.cancel(list(CANCELLED), topic="t")
            await broker.reschedule(list(MOVED), topic="t", delay=2 * HOUR)
            async with broker.consumer("t", "s", permits=1000) as consumer:
                await arrived(consumer)
                await consumer.ack(list(ACKED), durable=True)
        await world.stop()
        world.index_directory.rename(data / "index")
        world.index_directory.mkdir()  # the world deletes it at its end
        world.index_directory, own = data / "index", world.index_directory
        with closing(engine.connect()) as connection:
            yield Stopped(world, engine, data, connection)
        world.index_directory = own


async def deliveries(world: World) -> list[list[int]]:
    """Return the offsets that the subscription gets now, in an hour and in two hours."""
    await world.restart()
    found = []
    async with world.connect() as broker:
        for _ in range(3):
            async with broker.consumer("t", "s", permits=1000) as consumer:
                found.append(sorted(message.offset for message in await arrived(consumer)))
                await consumer.ack(found[-1], durable=True)
            await world.clock.advance(hours=1)
    await world.stop()
    return found


def spoil_a_block(store: Stopped) -> None:
    segment = max(store.index.glob("*.segment"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)


def lose_a_segment(store: Stopped) -> None:
    max(store.index.glob("*.segment")).unlink()


def spoil_the_manifest(store: Stopped) -> None:
    (store.index / "MANIFEST").write_bytes(b"escapement index manifest 1 00000000\n{}")


def empty_the_index(store: Stopped) -> None:
    """Let the manifest say that the index is whole, although it has no message."""
    store.rewrite_manifest(
        lambda manifest: Manifest(manifest.log_identity, manifest.positions, {}, manifest.lineage)
    )


def make_the_index_foreign(store: Stopped) -> None:
    store.rewrite_manifest(
        lambda manifest: Manifest("0" * 32, manifest.positions, manifest.segments, manifest.lineage)
    )


def lower_the_end_of_the_topic(store: Stopped) -> None:
    store.connection.execute("UPDATE topics SET next_offset = 30")


def lose_the_lease(store: Stopped) -> None:
    store.connection.execute("DELETE FROM leases")


def leave_files(store: Stopped) -> None:
    (store.index / "00000999.segment").write_bytes(b"unfinished")
    (store.data / "index.rebuilding").mkdir()


HARMS = {
    "index files": [spoil_a_block, lose_a_segment, spoil_the_manifest],
    "index": [empty_the_index],
    "stale index": [make_the_index_foreign],
    "topic end": [lower_the_end_of_the_topic],
    "lease": [lose_the_lease],
    "orphaned files": [leave_files],
}


@pytest.mark.parametrize(
    ("check", "harm"), [(check, harm) for check, harms in HARMS.items() for harm in harms]
)
async def test_repaired_broker_delivers_every_pending_message(
    mock_clock: MockClock,
    engine: Engine,
    tmp_path: Path,
    check: str,
    harm: Callable[[Stopped], None],
) -> None:
    """O7, invariant 7: none is delivered early, and no acknowledged or cancelled one at all."""
    async with stopped(engine, tmp_path / "store") as store:
        assert not store.check()
        harm(store)
        found = [one for one in Check(engine, store.data).run() if one.check == check]
        assert found, "the damage is named"
        assert found[0].severity is not Severity.OK
        mended = store.repair()
        assert check in {one.check for one in mended}
        assert {one.severity for one in mended} == {Severity.NOTICE}
        assert all(one.remedy.startswith("Mended: ") for one in mended), mended
        assert not store.check()
        assert await deliveries(store.world) == [DUE, DUE_IN_AN_HOUR, DUE_IN_TWO]


async def test_epoch_below_that_of_the_journal_is_raised(
    mock_clock: MockClock, engine: Engine, tmp_path: Path
) -> None:
    """O7: entries of the next broker would be replayed before older ones."""
    async with stopped(engine, tmp_path / "store") as store:
        await store.world.restart()
        async with store.world.connect() as broker:
            async with await broker.producer("t") as producer:
                await producer.send(b"60")
            await store.world.crash()
        epoch = journal.last_epoch(store.connection, 0)
        store.connection.execute("UPDATE leases SET epoch = 1")
        (found,) = store.check()
        assert f"the lease has epoch 1, but the journal has epoch {epoch} already" in found.text
        (mended,) = store.repair()
        assert mended.remedy == f"Mended: it has epoch {epoch} now."
        assert not store.check()
        assert await deliveries(store.world) == [[*DUE, 60], DUE_IN_AN_HOUR, DUE_IN_TWO]


async def test_index_beyond_the_end_of_the_log_is_deleted(
    mock_clock: MockClock, engine: Engine, tmp_path: Path
) -> None:
    """O7: the database was exchanged for an older state that the manifest still fits."""
    async with stopped(engine, tmp_path / "store") as store:
        table = store.log_table()
        store.connection.execute(f"DELETE FROM {table} WHERE base_offset < 0 OR base_offset = 30")
        store.connection.execute("DELETE FROM moves")
        store.connection.execute("DELETE FROM cursor_chunks WHERE subscription_id < 0")
        store.connection.execute("UPDATE topics SET next_offset = 30")
        (found,) = store.check()
        assert "t: the index has messages up to 30 offsets beyond the end of the log" in found.text
        (mended,) = store.repair()
        assert mended.remedy.startswith("Mended: the index was deleted.")
        assert await deliveries(store.world) == [DUE, [], []]


async def test_damaged_log_is_never_changed_and_its_index_is_kept(
    mock_clock: MockClock, engine: Engine, tmp_path: Path
) -> None:
    """O7: the index may have the only copy of a message."""
    async with stopped(engine, tmp_path / "store") as store:
        table = store.log_table()
        spoil = f"UPDATE {table} SET data = ? WHERE base_offset = 30"
        store.connection.execute(spoil, (b"spoilt",))
        spoil_a_block(store)
        rows = store.connection.execute(f"SELECT * FROM {table} ORDER BY base_offset").rows
        files = {path.name: path.read_bytes() for path in store.index.iterdir()}
        found = {one.check: one for one in store.repair()}
        assert {one.check for one in store.check()} == {"log rows", "index files"}
        assert "Restore the database from a backup" in found["log rows"].remedy
        assert "The index was kept" in found["index files"].remedy
        assert found["index files"].severity is Severity.ERROR
        assert store.connection.execute(f"SELECT * FROM {table} ORDER BY base_offset").rows == rows
        assert {path.name: path.read_bytes() for path in store.index.iterdir()} == files


async def test_repair_is_refused_while_a_broker_owns_the_log(
    mock_clock: MockClock, engine: Engine, tmp_path: Path
) -> None:
    """O7: the broker has another data directory. Nothing is changed."""
    async with stopped(engine, tmp_path / "store") as store:
        spoil_a_block(store)
        stranger = Identity("1" * 32, "stranger")
        held = lease.acquire(engine, stranger, 60_000, store.world.clock)
        with pytest.raises(LeaseHeld, match=r"broker 'stranger'.* Stop all brokers of this"):
            store.repair()
        assert {one.check for one in store.check()} == {"index files"}
        lease.release(engine, store.connection, held, clean=True)
        assert store.repair()
        DelayedIndex.open(store.index)
