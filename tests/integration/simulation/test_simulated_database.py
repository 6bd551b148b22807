"""The simulated database lets transactions overlap, as row locks do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from escapement.storage import schema
from escapement.storage.engine.base import Connection, TransactionAborted
from escapement.storage.engine.sqlite import SqliteEngine
from simulation.calls import Calls, Threads, park
from simulation.clocks import TrueClock
from simulation.database import Faults, Server, SimulatedEngine

RAISE = "UPDATE leases SET epoch = epoch + 1"
CHECK = f"SELECT epoch FROM leases WHERE bundle_id = 0{SimulatedEngine.dialect.share_lock}"
CHANGE = "UPDATE table_sets SET table_count = table_count + 1"
LOOK = "SELECT table_count FROM table_sets"


class Database:
    """A simulated database with a lease and one other row, and a process that uses it."""

    def __init__(self, path: Path, clock: trio.testing.MockClock) -> None:
        self.threads = Threads()
        self.server = Server(SqliteEngine(path), TrueClock(clock).now_ms, random.Random(0))
        self._calls = Calls(self.threads, random.Random(0), self.server.locks)
        self._calls.slow_share = 1.0
        self.server.faults = Faults(slow=0.0)
        engine = SimulatedEngine(self.server)
        schema.migrate(engine)
        engine.connect().execute("INSERT INTO table_sets (id, table_count) VALUES (1, 1)")

    async def at(self, second: float, work: Callable[[Connection], None]) -> None:
        """Call ``work`` with a connection of its own, a little after ``second``."""
        await trio.sleep(second)
        await self._calls(lambda: work(SimulatedEngine(self.server).connect()))


@pytest.fixture
def database(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> Iterator[Database]:
    database = Database(tmp_path / "log.sqlite3", autojump_clock)
    yield database
    database.threads.close()
    database.server.engine.close()


async def test_transaction_sees_what_others_commit_until_its_first_write(
    database: Database, autojump_clock: trio.testing.MockClock
) -> None:
    seen: list[int] = []

    def look(connection: Connection) -> None:
        connection.begin()
        connection.execute(CHECK)
        seen.extend(connection.execute(LOOK).rows[0])
        park(2)
        seen.extend(connection.execute(LOOK).rows[0])
        connection.execute(CHANGE)
        park(2)
        seen.extend(connection.execute(LOOK).rows[0])
        connection.commit()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.at, 0, look)
        nursery.start_soon(database.at, 1, lambda connection: connection.execute(CHANGE))
        nursery.start_soon(database.at, 3, lambda connection: connection.execute(CHANGE))
    assert seen == [1, 2, 3]
    assert SimulatedEngine(database.server).connect().execute(LOOK).rows == [(4,)]


async def test_take_over_waits_for_transactions_that_have_checked_the_lease(
    database: Database, autojump_clock: trio.testing.MockClock
) -> None:
    order: list[str] = []

    def write(connection: Connection) -> None:
        connection.begin()
        connection.execute(CHECK)
        park(2)
        connection.execute(CHANGE)
        connection.commit()
        order.append("written")

    def take(connection: Connection) -> None:
        connection.execute(RAISE)
        order.append("taken")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.at, 0, write)
        nursery.start_soon(database.at, 0.5, write)
        nursery.start_soon(database.at, 1, take)
    assert order == ["written", "written", "taken"]


async def test_wait_for_a_lock_ends_and_rolls_back(
    database: Database, autojump_clock: trio.testing.MockClock
) -> None:
    def hang(connection: Connection) -> None:
        connection.begin()
        connection.execute(CHECK)
        park(2 * SimulatedEngine.lock_wait_s)
        connection.rollback()

    def take(connection: Connection) -> None:
        connection.begin()
        with pytest.raises(TransactionAborted, match="leases"):
            connection.execute(RAISE)
        connection.begin()  # it is rolled back
        connection.rollback()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.at, 0, hang)
        nursery.start_soon(database.at, 1, take)
    assert database.server.locks.are_free
