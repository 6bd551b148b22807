"""A damaged or missing delayed index: the broker rebuilds it from the log by itself."""

from __future__ import annotations

import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio

import escapement
from support.database.servers import MysqlServer
from support.faults.damaged_bytes import scramble
from support.processes.broker import PATIENT, BrokerProcess, broker_process, until

COUNT: Final = 6_000
SEGMENTS: Final = "*.segment"
# Frequent checkpoints write segments soon, and no cache hides damage to them.
LIMITS: Final[dict[str, Any]] = {"checkpoint_interval_s": 0.2, "index_cache_bytes": 0}
TIMEOUT_S: Final = 60
REPAIR: Final = "rebuilding the delayed index"
REPAIR_WAITS: Final = "the start of bundle 0 waits for the database"


def payloads(count: int) -> list[bytes]:
    return [number.to_bytes(4, "little") + bytes(96) for number in range(count)]


async def prepare(broker: BrokerProcess, delay_ms: int) -> np.ndarray:
    """Publish ``COUNT`` messages, half of them delayed. Return the acknowledged offsets."""
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        await client.admin("subscriptions.create", topic="t", subscription="s")
        producer = await client.producer("t")
        delays = np.where(np.arange(COUNT) % 2, delay_ms, 0)
        receipts = await producer.send_many(payloads(COUNT), delay=delays)
        acked = receipts.offsets[: COUNT // 10]
        async with client.consumer("t", "s", permits=1) as inbox:
            await inbox.ack(acked, durable=True)
    manifest = broker.index / "MANIFEST"
    await until(lambda: manifest.exists() and ".segment" in manifest.read_text())
    return acked


async def take(inbox: escapement.Inbox, want: set[int]) -> None:
    """Receive the offsets of ``want``. No other message may arrive, and none early."""
    got: set[int] = set()
    with trio.move_on_after(TIMEOUT_S):
        while got != want:
            batch = await inbox.next_batch()
            assert batch is not None
            assert (batch.due_ms <= time.time_ns() // 1_000_000).all()
            for offset, payload in zip(batch.offsets.tolist(), batch.values(), strict=True):
                assert int.from_bytes(payload[:4], "little") == offset
            got.update(batch.offsets.tolist())
            await inbox.ack(batch.offsets)
    assert got == want, f"{len(want - got)} of {len(want)} are lost, {len(got - want)} unwanted"


def flip_a_byte_in_the_middle(index: Path) -> None:
    for path in index.glob(SEGMENTS):
        size = path.stat().st_size
        if not size:
            continue  # the broker is still writing it
        with path.open("r+b") as file:
            file.seek(size // 3)
            byte = file.read(1)
            file.seek(size // 3)
            file.write(bytes([byte[0] ^ 0x40]))


def cut_off_the_end(index: Path) -> None:
    for path in index.glob(SEGMENTS):
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size * 2 // 3)


def lose_the_segments(index: Path) -> None:
    for path in index.glob(SEGMENTS):
        path.unlink()


def scribble_over_the_manifest(index: Path) -> None:
    (index / "MANIFEST").write_bytes(b"escapement index manifest 1 00000000\n{}")


def lose_the_manifest(index: Path) -> None:
    (index / "MANIFEST").unlink()


@contextmanager
def database_of_its_own(server: MysqlServer) -> Iterator[str]:
    server.admin("CREATE DATABASE repaired CHARACTER SET utf8mb4")
    yield server.url("repaired")
    server.restore()
    server.admin("DROP DATABASE repaired")


async def kill_the_database_in_a_repair(broker: BrokerProcess, server: MysqlServer) -> None:
    """Damage the index, and kill the database when the broker begins to rebuild it."""
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        producer = await client.producer("other")
        async with client.consumer("other", "s"):
            for _ in range(50):  # the broker may finish its rebuild before the kill
                # The broker reads this message from a segment and finds the damage.
                await producer.send(b"", delay=timedelta(milliseconds=500))
                repairs = broker.complaints().count(REPAIR)
                while broker.complaints().count(REPAIR) == repairs:
                    scramble(broker.index)
                    await trio.lowlevel.checkpoint()
                server.kill()
                with trio.move_on_after(1):
                    await until(lambda: REPAIR_WAITS in broker.complaints())
                    return
                server.start()
    raise AssertionError("no kill of the database met a repair")


async def test_index_rebuild_waits_for_the_end_of_a_database_outage(
    tmp_path: Path, mysql_to_break: MysqlServer
) -> None:
    """Q8, P5: the same process continues when the database is back, and loses nothing."""
    with (
        database_of_its_own(mysql_to_break) as url,
        broker_process(tmp_path / "broker", url, limits=LIMITS) as broker,
    ):
        acked = await prepare(broker, delay_ms=1_000)
        pid = broker.process.pid
        await kill_the_database_in_a_repair(broker, mysql_to_break)
        assert broker.running
        mysql_to_break.start()
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            async with client.consumer("t", "s", permits=COUNT) as inbox:
                await take(inbox, set(range(COUNT)) - set(acked.tolist()))
        assert broker.process.pid == pid
        assert broker.stop() == 0


async def test_broker_stops_while_its_repair_waits_for_the_database(
    tmp_path: Path, mysql_to_break: MysqlServer
) -> None:
    """Q8: SIGTERM ends the wait for an unreachable database."""
    with (
        database_of_its_own(mysql_to_break) as url,
        broker_process(tmp_path / "broker", url, limits=LIMITS) as broker,
    ):
        await kill_the_database_in_a_repair(broker, mysql_to_break)
        assert broker.stop() == 0
        assert "Traceback" not in broker.complaints()


async def test_full_disk_ends_the_broker_with_the_name_of_the_file(
    tmp_path: Path, mysql_url: str
) -> None:
    """The rule "the disk of the index: full": after a restart with free space, nothing is lost."""
    with broker_process(tmp_path / "broker", mysql_url, limits=LIMITS) as broker:
        acked = await prepare(broker, delay_ms=2_000)
        before = {path.name for path in broker.index.iterdir()}
        pid, limit = broker.process.pid, resource.RLIMIT_FSIZE
        _, hard = resource.prlimit(pid, limit)
        resource.prlimit(pid, limit, (100_000, hard))  # the system refuses longer files
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            producer = await client.producer("t")
            more = await producer.send_many(
                payloads(2 * COUNT)[COUNT:], delay=timedelta(milliseconds=10)
            )
        await until(lambda: not broker.running)
        assert broker.process.returncode == 1
        said = broker.complaints()
        assert re.search(r"error: storage.*\.segment cannot be written: .*disk full", said), said
        assert "Traceback" not in said
        assert {path.name for path in broker.index.iterdir()} <= before
        broker.start()
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            want = set(range(COUNT)) - set(acked.tolist()) | set(more.offsets.tolist())
            async with client.consumer("t", "s", permits=COUNT) as inbox:
                await take(inbox, want)


DAMAGES: Final = (
    flip_a_byte_in_the_middle,
    cut_off_the_end,
    lose_the_segments,
    scribble_over_the_manifest,
    lose_the_manifest,
    shutil.rmtree,
)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_between_two_runs_loses_nothing(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """V2, P5, invariants 4 and 7: for each kind of damage to the files."""
    with broker_process(tmp_path / "broker", limits=LIMITS) as broker:
        acked = await prepare(broker, delay_ms=1_000)
        broker.kill()
        damage(broker.index)
        broker.start()
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            async with client.consumer("t", "s", permits=COUNT) as inbox:
                await take(inbox, set(range(COUNT)) - set(acked.tolist()))
        assert "Traceback" not in broker.complaints()


async def test_an_index_is_rebuilt_from_mysql(tmp_path: Path, mysql_url: str) -> None:
    """V2, P5: from a log on MySQL."""
    with broker_process(tmp_path / "broker", mysql_url, limits=LIMITS) as broker:
        acked = await prepare(broker, delay_ms=1_000)
        broker.kill()
        shutil.rmtree(broker.index)
        broker.start()
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            async with client.consumer("t", "s", permits=COUNT) as inbox:
                await take(inbox, set(range(COUNT)) - set(acked.tolist()))


async def test_a_segment_damaged_under_a_running_broker_is_rebuilt(tmp_path: Path) -> None:
    """Invariant 4: the same process continues on the same port, and clients reconnect."""
    with broker_process(tmp_path / "broker", limits=LIMITS) as broker:
        acked = await prepare(broker, delay_ms=1_500)
        pid = broker.process.pid
        flip_a_byte_in_the_middle(broker.index)
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            async with client.consumer("t", "s", permits=COUNT) as inbox:
                await take(inbox, set(range(COUNT)) - set(acked.tolist()))
        assert broker.running
        assert broker.process.pid == pid
        assert "rebuilding the delayed index" in broker.complaints()
        assert broker.stop() == 0
