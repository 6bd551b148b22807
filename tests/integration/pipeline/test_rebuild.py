"""The job `rebuild`: an index made from the log is the one that the broker would have made."""

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
from support.commit_pipelines import FaultyEngine
from support.database_servers import SqlServer
from support.dying_brokers import DiesAt, lose_index

HOUR = timedelta(hours=1)
TWO_WEEKS_MS = 14 * 86_400_000
CONFIG = BrokerConfig(ack_wait_ms=10**9, seed=0)
OWNER, STRANGER = Identity("0" * 32, "testing"), Identity("1" * 32, "stranger")


async def live(broker: escapement.Broker, first: int) -> None:
    """Publish 60 messages for two subscriptions, and do to them whatever can be done."""
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
        async with broker.consumer("t", name, permits=1000) as inbox:
            offsets = [message.offset for message in await arrived(inbox)]
            await inbox.ack(offsets[:done], durable=True)
            await inbox.nack(offsets[done : done + 4])


async def deliveries(world: World) -> dict[str, list[list[int]]]:
    """Which offsets each subscription gets now, and in each of the hours to come."""
    found: dict[str, list[list[int]]] = {"a": [], "b": []}
    async with world.connect() as broker:
        for _ in range(5):
            for name, got in found.items():
                async with broker.consumer("t", name, permits=1000) as inbox:
                    messages = await arrived(inbox)
                    got.append(sorted(message.offset for message in messages))
                    await inbox.ack(got[-1], durable=True)
            await world.clock.advance(hours=1)
    return found


def keys_on_disk(directory: Path) -> list[tuple[int, int]]:
    """The keys ``(due_ms, offset)`` in an index of one topic that no broker uses."""
    index = DelayedIndex.open(directory)
    (topic_id,) = index.topics()
    due_ms, offsets = index.plan(topic_id, KEY_MIN, KEY_MAX, 10**6).read()
    return list(zip(due_ms.tolist(), offsets.tolist(), strict=True))


async def history(world: World, ended: str) -> None:
    """Two rounds of a life with a checkpoint between them, and its end."""
    async with world.connect() as broker:
        await live(broker, 0)
        await world.checkpoint()
        await live(broker, 60)
        if ended == "crashed behind a checkpoint":
            await world.checkpoint()
        if ended != "stopped":
            await world.crash()
    if ended == "stopped":
        await world.stop()


@pytest.mark.parametrize("ended", ["stopped", "crashed", "crashed behind a checkpoint"])
async def test_a_rebuilt_index_delivers_what_the_brokers_own_would(
    mock_clock: MockClock, engine: Engine, tmp_path: Path, ended: str
) -> None:
    """P5, invariant 7: what was acknowledged, cancelled, moved and tried is so."""
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
        assert keys_on_disk(world.index_directory) == rebuilt, "repeated it is the same"
        faulty.before = count
        await world.restart()
        # Where there is no journal behind the checkpoint, nothing says when a message moved.
        assert log_reads == 0 or ended == "crashed"
        faulty.before = lambda step: None
        assert await deliveries(world) == expected


@pytest.mark.parametrize(("before", "after"), [(1000, TWO_WEEKS_MS), (TWO_WEEKS_MS, 1000)])
async def test_a_rebuilt_index_is_delivered_whatever_the_granularity_is_and_becomes(
    mock_clock: MockClock, tmp_path: Path, before: int, after: int
) -> None:
    """P4, P5: the broker takes it over under one that it was not published with."""
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
        assert sum(bool(got) for got in expected["a"]) == 4, "at once, and in three hours"
    async with testing.start(config=CONFIG, engine=engine) as world:
        await history(world, "stopped")
        await world.restart()
        await change(world, before)
        await world.stop()
        lose_index(world)
        rebuild(engine, OWNER, world.index_directory, world.clock)
        engine.before = lambda step: log_reads.append(step) if "data FROM log_" in step else None
        await world.restart()
        assert not log_reads, "it made its own"
        await change(world, after)
        assert await deliveries(world) == expected
    engine.close()


async def test_interrupted_at_any_step_it_leaves_the_index_as_it_was(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """P5: and the broker makes its own, or keeps the one it has."""
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
    """What became of a process that did the job."""
    return subprocess.run(
        [sys.executable, "-c", KILLED_HALF_WAY, directory], check=False
    ).returncode


async def test_what_a_killed_job_left_is_used_by_nobody(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """P5: segments and a manifest are there, and are no broker's index; the next job goes on."""
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
        # The lease is this broker's own, so it need not wait for its end.
        await world.restart()
        await world.stop()
        assert run(None, RebuildConfig(tmp_path)).pending == 1000
        assert [offset for _, offset in keys_on_disk(tmp_path / "index")] == list(range(1000))
        assert not (tmp_path / "index.rebuilding").exists()
    engine.close()


async def test_memory_is_bounded_by_writing_many_segments_which_are_merged(
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

        # Some forty times as much as is in memory at once.
        rebuild(engine, OWNER, tmp_path / "index", world.clock, 200_000, look)
        assert [offset for _, offset in keys_on_disk(tmp_path / "index")] == list(range(2000))
        assert seen[-1] == 2000
        assert len(list((tmp_path / "index").glob("*.segment"))) <= 12


async def test_less_memory_is_used_than_is_given_as_long_as_a_dozen_segments_do(
    mock_clock: MockClock, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5, invariant 9: whatever part of the log is pending, be it seen late."""
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


async def test_what_is_read_ahead_is_taken_before_its_memory_is_used_again(
    mock_clock: MockClock, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: however much more there is than is read ahead."""
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


async def test_nobody_else_writes_while_it_runs(
    mock_clock: MockClock, engine: Engine, tmp_path: Path
) -> None:
    """P5, invariant 8: a broker that is alive is not disturbed, and keeps others out."""
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker, await broker.producer("t") as producer:
            await producer.send(b"pending", delay=HOUR)
            with pytest.raises(LeaseHeld, match="testing"):
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
        # The lease was given back: whoever comes next need not wait.
        await world.restart()
    (tmp_path / FILE_NAME).touch()
    with DataDirectory.open(tmp_path), pytest.raises(DataDirectoryInUse):
        run(None, RebuildConfig(tmp_path))


def test_where_it_cannot_be_done_it_is_said(engine: Engine, tmp_path: Path) -> None:
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


def test_a_password_comes_from_the_environment_unless_the_url_has_one(
    mysql_server: SqlServer, mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: as for the other jobs."""
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
    """What a job's command says, and what it tells where its standard error is a terminal."""
    terminal, its_stderr = pty.openpty()
    command = [sys.executable, "-m", "escapement", "pipeline", *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=its_stderr, check=True, timeout=60
    )
    os.close(its_stderr)
    with os.fdopen(terminal, "rb", buffering=0) as shared:
        return done.stdout.decode(), shared.read(65536).decode()


async def test_on_a_terminal_the_command_says_how_far_it_is(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """P5: in one line, which is empty again when it has ended."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    async with testing.start(config=CONFIG, engine=engine) as world:
        await history(world, "stopped")
    said, told = await trio.to_thread.run_sync(on_a_terminal, "rebuild", "--data", str(tmp_path))
    assert "messages read," in told
    assert told.endswith("\r\x1b[K")
    assert "\n" not in told
    assert "messages read," in said


async def test_the_command_rebuilds_and_says_how_much(
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
    # A master that is no cluster leaves it to the local engine.
    assert command(["pipeline", "rebuild", "--data", str(tmp_path), "--master", "local[2]"]) == 0
    assert keys_on_disk(tmp_path / "index") == keys
