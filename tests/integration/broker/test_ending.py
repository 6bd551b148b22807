"""The end of a broker that sessions still use."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio.testing

from escapement import testing
from escapement.broker import server
from escapement.broker.broker import Broker, BrokerConfig
from escapement.broker.server import ServerConfig, serve
from escapement.client.settings import Settings
from escapement.errors import IndexDamaged
from escapement.storage.engine.base import Connection
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from support.faults.held_calls import Held, uncached
from support.storage.commit_pipelines import FaultyConnection, FaultyEngine

READ = "LogReader._read_due"  # reads a page of a topic for a session
HASTY = Settings(heartbeat_s=None, close_timeout_s=0)


class CountingEngine(FaultyEngine):
    """An engine that tracks its open connections."""

    def __init__(self) -> None:
        super().__init__(SqliteEngine.in_memory())
        self.open: set[FaultyConnection] = set()

    def connect(self) -> Connection:
        connection = CountedConnection(self, self._engine.connect())
        self.open.add(connection)
        return connection


class CountedConnection(FaultyConnection):
    def __init__(self, engine: CountingEngine, connection: Connection) -> None:
        super().__init__(engine, connection)
        self._all_open = engine.open

    def close(self) -> None:
        self._all_open.discard(self)
        super().close()


async def test_connections_stay_open_until_the_calls_of_sessions_end(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P6: a read in a thread keeps its connection open, and opens no other one later."""
    held, engine = Held(), CountingEngine()
    async with testing.start(engine=engine, run=held) as world:

        async def read() -> None:
            async with world.connect(settings=HASTY) as broker:
                async for _ in broker.read("x"):
                    raise AssertionError("a read succeeded after the broker ended")

        async with world.connect(settings=HASTY) as broker:
            await (await broker.producer("x")).send(b"there")
        async with trio.open_nursery() as nursery:
            with held.hold(READ):
                nursery.start_soon(read)
                await held.reached()
                nursery.start_soon(world.crash)
                await trio.testing.wait_all_tasks_blocked()
                assert engine.open
            await trio.testing.wait_all_tasks_blocked()
            assert engine.open == set()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("finder", ["delivery", "request"])
async def test_damaged_index_is_discarded_before_the_broker_ends(
    finder: str, mock_clock: trio.testing.MockClock
) -> None:
    """P5: the next start must not read it again, however this process ends.

    A client whose request finds the damage gets no error, and waits for the next start.
    """
    answers: list[object] = []
    left: list[Path] = [Path("segment")]

    async def damage(world: testing.World) -> None:
        async with world.connect(settings=HASTY) as broker:
            producer = await broker.producer("x")
            async with broker.consumer("x", "s"):
                await producer.send(b"later", delay=(1, "hours"))
                await world.checkpoint()
                (segment,) = world.index_directory.glob("*.segment")
                segment.write_bytes(bytes(segment.stat().st_size))
                if finder == "delivery":
                    await world.clock.advance(hours=2)
                else:
                    answers.extend([one async for one in broker.peek("x")])

    async def live() -> None:
        async with testing.start(config=uncached(BrokerConfig(seed=0))) as world:
            try:
                await damage(world)
            finally:
                left[:] = world.index_directory.iterdir()

    with pytest.raises(IndexDamaged):
        await live()
    assert left == []
    assert answers == []


@pytest.fixture
def survivor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let neither a SIGTERM nor the server's last resort end the process of the tests."""
    monkeypatch.setattr(server, "_leave", lambda: None)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


async def test_server_stops_although_the_index_is_found_damaged(
    survivor: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: the next start rebuilds the index; the server forgets no SIGTERM."""
    starts: list[str] = []

    async def find_damage(broker: Broker) -> None:
        raise IndexDamaged("found by the last checkpoint")

    def ready(at: str) -> None:
        starts.append(at)
        if len(starts) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Broker, "_wind_down", find_damage)
    with trio.fail_after(30):
        await serve(ServerConfig(tmp_path, port=0), ready)
    assert len(starts) == 1
    assert list((tmp_path / "index").iterdir()) == []


def test_close_waits_for_a_call_in_another_thread(tmp_path: Path) -> None:
    """P6: otherwise SQLite frees memory that the other thread reads, and the process crashes."""
    connection = SqliteEngine(tmp_path / FILE_NAME).connect()
    inside = threading.Event()
    connection._raw.create_function("began", 0, inside.set)
    count = 300_000
    rows = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        " SELECT i FROM n WHERE i > 1 OR began() IS NULL"
    )
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(connection.execute(rows, (count,)).rows))
    reader.start()
    assert inside.wait(60)
    connection.close()
    reader.join(60)
    assert len(found) == count
