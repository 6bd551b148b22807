"""The job ``rebuild``: an index made from the log equals the index a broker would make."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.cli.main import run as command
from escapement.clock import SystemClock
from escapement.errors import (
    DataDirectoryInUse,
    LeaseHeld,
    NotFound,
    SchemaError,
    StorageUnavailable,
)
from escapement.pipeline.rebuild import RebuildConfig, rebuild, run
from escapement.pipeline.rebuilding import filling
from escapement.pipeline.rebuilding.filling import Progress
from escapement.storage.data_directory import DataDirectory
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex
from escapement.storage.lease import Identity
from escapement.storage.schema import migrate
from escapement.testing import World, arrived
from support.database.servers import SqlServer
from support.faults.dying_brokers import DiesAt, lose_index
from support.storage.commit_pipelines import FaultyEngine

HOUR = timedelta(hours=1)
TWO_WEEKS_MS = 14 * 86_400_000
CONFIG = BrokerConfig(ack_wait_ms=10**9, seed=0)
OWNER, STRANGER = Identity("0" * 32, "testing"), Identity("1" * 32, "stranger")


async def use_topic(broker: escapement.Broker, first: int) -> None:
    """Publish 60 messages, then cancel, reschedule, acknowledge and nack some of them."""
    for name in ("a", "b"):
        if not first:
            await broker.admin("subscriptions.create", topic="t", subscription=name)
    async with await broker.producer("t") as producer:
        await producer.send_many([b"%d" % n for n in range(first, first + 30)])
        await producer.send_many([b"%d" % n for n in range(first + 30, first + 60)], delay=HOUR)
    later = np.arange(first + 30, first + 60)
    await broker.cancel(later[:5], topic="t")
    await broker.reschedule(later[3:12], topic="t", delay=2 * HOUR)
    await broker.reschedule(later[8:14], topic="t", delay=3 * HOUR)
    for name, done in (("a", 12), ("b", 5)):
        async with broker.consumer("t", name, permits=1000) as consumer:
            offsets = [message.offset for message in await arrived(consumer)]
            await consumer.ack(offsets[:done], durable=True)
            await consumer.nack(offsets[done : done + 4])


async def deliveries(world: World) -> dict[str, list[list[int]]]:
    """Return the offsets that each subscription gets now and in each of the next hours."""
    found: dict[str, list[list[int]]] = {"a": [], "b": []}
    async with world.connect() as broker:
        for _ in range(5):
            for name, got in found.items():
                async with broker.consumer("t", name, permits=1000) as consumer:
                    messages = await arrived(consumer)
                    got.append(sorted(message.offset for message in messages))
                    await consumer.ack(got[-1], durable=True)
            await world.clock.advance(hours=1)
    return found


def keys_on_disk(directory: Path) -> list[tuple[int, int]]:
    """Return the keys ``(due_ms, offset)`` of an index of one topic that no broker uses."""
    index = DelayedIndex.open(directory)
    (topic_id,) = index.topics()
    due_ms, offsets = index.plan(topic_id, KEY_MIN, KEY_MAX, 10**6).read()
    return list(zip(due_ms.tolist(), offsets.tolist(), strict=True))


async def history(world: World, ended: str) -> None:
    """Use a topic before and after a checkpoint, then end the broker as ``ended`` says."""
    async with world.connect() as broker:
        await use_topic(broker, 0)
        await world.checkpoint()
        await use_topic(broker, 60)
        if ended == "crashed after a checkpoint":
            await world.checkpoint()
        if ended != "stopped":
            await world.crash()
    if ended == "stopped":
        await world.stop()


@pytest.mark.parametrize("ended", ["stopped", "crashed", "crashed after a checkpoint"])
async def test_rebuilt_index_delivers_the_same_as_the_brokers_own(
    mock_clock: MockClock, engine: Engine, tmp_path: Path, ended: str
) -> None:
    """P5, invariant 7: acknowledged, cancelled, moved and retried messages stay so."""
    async with testing.start(config=CONFIG) as twin:
        await history(twin, ended)
        lose_index(twin)
        await twin.restart()
        await twin.checkpoint()
        await twin.stop()
        own = keys_on_disk(twin.index_directory)
        await twin.restart()
        expected = await deliveries(twin)
    faulty, log_reads = FaultyEngine(engine), 0

    def count(step: str) -> None:
        nonlocal log_reads
        log_reads += "data FROM log_" in step

    async with testing.start(config=CONFIG, engine=faulty) as world:
        await history(world, ended)
        lose_index(world)
        done = rebuild(engine, OWNER, world.index_directory, world.clock)
        assert done.messages > done.pending == len(own)
        rebuilt = keys_on_disk(world.index_directory)
        assert [offset for _, offset in rebuilt] == [offset for _, offset in own]
        rebuild(engine, OWNER, world.index_directory, world.clock)
        assert keys_on_disk(world.index_directory) == rebuilt, (
            "a second rebuild gives the same index"
        )
        faulty.before = count
        await world.restart()
        # The broker reads the log only if there is a journal after the checkpoint.
        assert log_reads == 0 or ended == "crashed"
        faulty.before = lambda step: None
        assert await deliveries(world) == expected


@pytest.mark.parametrize(("before", "after"), [(1000, TWO_WEEKS_MS), (TWO_WEEKS_MS, 1000)])
async def test_rebuilt_index_works_with_any_granularity_before_and_after(
    mock_clock: MockClock, tmp_path: Path, before: int, after: int
) -> None:
    """P4, P5: the granularity at publishing differs from those at rebuild and after it."""
    engine = FaultyEngine(SqliteEngine(tmp_path / FILE_NAME))
    log_reads: list[str] = []

    async def change(world: World, granularity_ms: int) -> None:
        async with world.connect() as broker:
            await broker.admin(
                "namespaces.enable_delayed_message",
                namespace="public/default",
                granularity_ms=granularity_ms,
            )

    async with testing.start(config=CONFIG) as twin:
        await history(twin, "stopped")
        await twin.restart()
        expected = await deliveries(twin)
        assert sum(bool(got) for got in expected["a"]) == 4, "now, and in three of the next hours"
    async with testing.start(config=CONFIG, engine=engine) as world:
        await history(world, "stopped")
        await world.restart()
        await change(world, before)
        await world.stop()
        lose_index(world)
        rebuild(engine, OWNER, world.index_directory, world.clock)
        engine.before = lambda step: log_reads.append(step) if "data FROM log_" in step else None
        await world.restart()
        assert not log_reads, "the broker made its own index"
        await change(world, after)
        assert await deliveries(world) == expected
    engine.close()


async def test_rebuild_interrupted_at_any_step_leaves_the_index_unchanged(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """P5: the broker then keeps its index, or makes its own."""
    real = SqliteEngine(tmp_path / FILE_NAME)
    async with testing.start(config=CONFIG, engine=real) as world:
        await history(world, "crashed")
        before = sorted(path.name for path in world.index_directory.iterdir())
        steps = 0
        while True:
            faulty = FaultyEngine(real, before=DiesAt(steps + 1))
            try:
                rebuild(faulty, OWNER, world.index_directory, world.clock)
            except StorageUnavailable:
                assert sorted(path.name for path in world.index_directory.iterdir()) == before
                index = world.index_directory
                assert not index.with_name(f"{index.name}.rebuilding").exists()
            else:
                break
            steps += 1
        assert steps > 20
    real.close()


KILLED_HALF_WAY = """
import os, signal, sys
from pathlib import Path
from escapement.pipeline.rebuild import RebuildConfig, run
die = lambda progress: os.kill(os.getpid(), signal.SIGKILL)
run(None, RebuildConfig(Path(sys.argv[1]), memory_bytes=200_000, progress=die))
"""


def killed_half_way(directory: Path) -> int:
    """Run a rebuild that is killed half-way, and return the exit code of its process."""
    return subprocess.run(
        [sys.executable, "-c", KILLED_HALF_WAY, directory], check=False
    ).returncode


async def test_index_left_by_a_killed_rebuild_is_not_used(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """P5: brokers ignore its segments and manifest, and the next rebuild replaces them."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    (tmp_path / "broker.id").write_text(OWNER.owner_id)
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic="t", subscription="a")
            async with await broker.producer("t") as producer:
                for _ in range(20):
                    await producer.send_many([b"x" * 2000] * 50, delay=HOUR)
        await world.stop()
        assert killed_half_way(tmp_path) == -signal.SIGKILL
        assert list((tmp_path / "index.rebuilding").iterdir())
        assert not (tmp_path / "index").exists()
        # The lease belongs to this broker, so the broker does not wait for its expiry.
        await world.restart()
        await world.stop()
        assert run(None, RebuildConfig(tmp_path)).pending == 1000
        assert [offset for _, offset in keys_on_disk(tmp_path / "index")] == list(range(1000))
        assert not (tmp_path / "index.rebuilding").exists()
    engine.close()


async def test_memory_is_bounded_by_writing_and_merging_many_segments(
    mock_clock: MockClock, engine: Engine, tmp_path: Path
) -> None:
    """P5, invariant 9."""
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker, await broker.producer("t") as producer:
            for _ in range(40):
                await producer.send_many([b"x" * 2000] * 50, delay=HOUR)
        await world.stop()
        seen: list[int] = []

        def look(progress: Progress) -> None:
            seen.append(progress.messages)

        # The log is some forty times as large as the part in memory.
        rebuild(engine, OWNER, tmp_path / "index", world.clock, 200_000, look)
        assert [offset for _, offset in keys_on_disk(tmp_path / "index")] == list(range(2000))
        assert seen[-1] == 2000
        assert len(list((tmp_path / "index").glob("*.segment"))) <= 12


async def test_rebuild_uses_less_than_its_memory_if_a_dozen_segments_suffice(
    mock_clock: MockClock, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5, invariant 9: for any pending share of the log, even if it becomes known late."""
    monkeypatch.setattr(filling, "_LEAST_SHARE_BYTES", 20_000)
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker, await broker.producer("t") as producer:
            for number in range(80):
                delay = HOUR if number >= 40 or number % 4 == 0 else None
                await producer.send_many([b"x" * 2000] * 25, delay=delay)
        await world.stop()
        done = rebuild(engine, OWNER, tmp_path / "index", world.clock)
    assert (done.messages, done.pending) == (2000, 1250)
    assert len(keys_on_disk(tmp_path / "index")) == 1250
    assert 6 <= len(list((tmp_path / "index").glob("*.segment"))) <= 12


async def test_read_ahead_buffers_are_consumed_before_they_are_reused(
    mock_clock: MockClock, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: even if the log is much larger than the read-ahead."""
    monkeypatch.setattr(filling, "_STEP_BYTES", 250_000)
    monkeypatch.setattr(filling, "_LANDING_BYTES", 280_000)
    monkeypatch.setattr(filling, "_AHEAD", 3)
    payloads = [b"%06d" % n * 150 for n in range(3000)]
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker, await broker.producer("t") as producer:
            for low in range(0, 3000, 100):
                await producer.send_many(payloads[low : low + 100], delay=HOUR)
        await world.stop()
        rebuild(engine, OWNER, tmp_path / "index", world.clock)
    index = DelayedIndex.open(tmp_path / "index")
    (topic_id,) = index.topics()
    keys = index.plan(topic_id, KEY_MIN, KEY_MAX, 10**6).read()
    assert keys[1].tolist() == list(range(3000))
    assert index.fetch(topic_id, *keys).read().payloads.to_list() == payloads


async def test_rebuild_excludes_other_writers(
    mock_clock: MockClock, engine: Engine, tmp_path: Path
) -> None:
    """P5, invariant 8: a running broker keeps the rebuild out and is not disturbed."""
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker, await broker.producer("t") as producer:
            await producer.send(b"pending", delay=HOUR)
            with pytest.raises(
                LeaseHeld, match=r"testing.* Stop all brokers of this database first"
            ):
                rebuild(engine, STRANGER, tmp_path / "index", world.clock)
            await producer.send(b"goes on", delay=HOUR)
        await world.stop()

        refused = 0

        def start_another(progress: Progress) -> None:
            nonlocal refused
            with pytest.raises(LeaseHeld, match="rebuild"):
                rebuild(engine, OWNER, tmp_path / "other", world.clock)
            refused += 1

        job = Identity("1" * 32, "rebuild")
        done = rebuild(engine, job, tmp_path / "index", world.clock, progress=start_another)
        assert (done.messages, done.pending) == (2, 2)
        assert refused
        # The lease was released, so the next broker does not wait.
        await world.restart()
    (tmp_path / FILE_NAME).touch()
    with DataDirectory.open(tmp_path), pytest.raises(DataDirectoryInUse):
        run(None, RebuildConfig(tmp_path))


def test_rebuild_without_a_log_is_refused(engine: Engine, tmp_path: Path) -> None:
    """P5."""
    with pytest.raises(NotFound, match="there is no log at"):
        run(None, RebuildConfig(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    clock = SystemClock()
    with pytest.raises(SchemaError, match="no log in this database"):
        rebuild(engine, OWNER, tmp_path / "index", clock)
    migrate(engine)
    with pytest.raises(NotFound, match="The database has no log yet"):
        rebuild(engine, OWNER, tmp_path / "index", clock)
    assert not (tmp_path / "index").exists()


def test_password_is_read_from_the_environment_unless_the_url_has_one(
    mysql_server: SqlServer, mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: as in the other jobs."""
    to = MysqlAddress.parse(mysql_url)
    mysql_server.admin("CREATE USER rebuilder@'%' IDENTIFIED BY 'right'")
    try:
        mysql_server.admin(f"GRANT SELECT ON {to.database}.* TO rebuilder@'%'")
        for user, variable in (("rebuilder", "right"), ("rebuilder:right", "wrong")):
            monkeypatch.setenv("ESCAPEMENT_PASSWORD", variable)
            url = f"mysql://{user}@{to.host}:{to.port}/{to.database}"
            with pytest.raises(SchemaError, match="no log in this database"):
                run(None, RebuildConfig(tmp_path, url))
    finally:
        mysql_server.admin("DROP USER rebuilder@'%'")


def on_a_terminal(*words: str) -> tuple[str, str]:
    """Run a pipeline command, and return its standard output and its output on a terminal."""
    terminal, its_stderr = pty.openpty()
    command = [sys.executable, "-m", "escapement", "pipeline", *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=its_stderr, check=True, timeout=60
    )
    os.close(its_stderr)
    with os.fdopen(terminal, "rb", buffering=0) as shared:
        return done.stdout.decode(), shared.read(65536).decode()


async def test_command_shows_its_progress_on_a_terminal(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """P5: progress is one line, which is cleared at the end."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    async with testing.start(config=CONFIG, engine=engine) as world:
        await history(world, "stopped")
    said, told = await trio.to_thread.run_sync(on_a_terminal, "rebuild", "--data", str(tmp_path))
    assert "messages read," in told
    assert told.endswith("\r\x1b[K")
    assert "\n" not in told
    assert "messages read," in said


async def test_command_rebuilds_and_reports_the_number_of_messages(
    mock_clock: MockClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P5."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    async with testing.start(config=CONFIG, engine=engine) as world:
        await history(world, "stopped")
    assert command(["pipeline", "rebuild", "--data", str(tmp_path)]) == 0
    assert "messages read," in capsys.readouterr().out
    keys = keys_on_disk(tmp_path / "index")
    assert keys
    # With a local master, the local engine does the rebuild.
    assert command(["pipeline", "rebuild", "--data", str(tmp_path), "--master", "local[2]"]) == 0
    assert keys_on_disk(tmp_path / "index") == keys
