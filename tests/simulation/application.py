"""The database of an application: a real server behind faults, and the application itself.

The server is MariaDB or MySQL, because the tables of an application need it. Brokers reach it in
ways of their own, which fail as the seed decides. Each has true row locks, which its process keeps
while it is paused or waits. No statement waits for a lock, since nothing else can happen in real
time: it is aborted at once, as after a long wait.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final

import pymysql
from pymysql.connections import Connection as Wire

from escapement.broker.outbox import outbox_relays, relays
from escapement.broker.tables import claims, tables
from escapement.client.connection import link
from escapement.errors import OutcomeUnknown, StorageUnavailable
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Params, Result, TransactionAborted
from escapement.storage.engine.mysql.engine import MysqlConnection, MysqlEngine
from escapement.storage.engine.mysql.wire import dial
from escapement.storage.engine.result_buffer import Landing
from simulation.calls import Calls, may_park, park
from simulation.clocks import HOUR_S, TrueClock
from simulation.database import Faults
from stress.application import Application, Cursor, Session
from support.storage.commit_pipelines import FaultyEngine
from support.tables.shops import Shop, comment

# Its package has a function of that name, too.
_ACKNOWLEDGEMENT: Final = importlib.import_module("escapement.sql.acknowledgement")
_NO_WAIT: Final = "SET innodb_lock_wait_timeout = 0"
_LONGEST_STEP_S: Final = 1.0
# How long a step takes that is held.
_HOLD_S: Final = 60.0
# The longest pauses before the end of a transaction of the application. Rows of others become
# visible meanwhile.
_THOUGHTS_S: Final = (0.0, 1.0, 60.0, HOUR_S)
_DIRECTIVES: Final = comment(
    ack_wait=1800,
    max_backoff=7200,
    purge_after=100 * 86_400,  # the rules look at all rows
    poller_interval=3600,
    batch_size=5,
    cache_size=20,
    message_cols="tenant_id|epoch|time_next",
)


class _Connection(MysqlConnection):
    """A connection with the virtual time. Whatever ends it, its locks are free at once."""

    def __init__(self, wire: Wire, location: str, clock: TrueClock) -> None:
        super().__init__(wire, location)
        self._clock = clock
        self.execute(_NO_WAIT)

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        if "UTC_TIMESTAMP" in sql or "NOW()" in sql:
            self._wire.query(f"SET timestamp = {self._clock.now_ms() / 1000:.3f}")
        return super().execute(sql, params, into)

    def close(self) -> None:
        if self._wire.open:
            with contextlib.suppress(pymysql.err.MySQLError, OSError):
                self._wire.query("ROLLBACK")
                self._wire.query("DO RELEASE_ALL_LOCKS()")
        super().close()


class _Engine(MysqlEngine):
    def __init__(self, address: MysqlAddress, clock: TrueClock) -> None:
        super().__init__(address, creates=False)
        self._clock = clock

    def connect(self) -> MysqlConnection:
        wire = dial(self._address, self._address.database)
        return _Connection(wire, self.location, self._clock)

    def kill(self, connection_ids: Sequence[int]) -> None:
        """Kill connections, and wait until the server has freed their locks."""
        super().kill(connection_ids)
        ids = ", ".join(map(str, connection_ids))
        left = f"SELECT 1 FROM information_schema.PROCESSLIST WHERE ID IN ({ids})"
        with contextlib.closing(self.connect()) as connection:
            while connection_ids and connection.execute(left).rows:
                time.sleep(0.001)


class ApplicationServer:
    """The server, as brokers see it."""

    def __init__(self, address: MysqlAddress, clock: TrueClock, rng: random.Random) -> None:
        self.address = address
        self.engine = _Engine(address, clock)
        self.rng = rng
        self.faults = Faults()
        self.ways: list[Way] = []

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def heal(self) -> None:
        """End all faults."""
        self.faults = Faults()
        for way in self.ways:
            way.is_reachable, way.held = way.is_alive, ""


class Way:
    """The way of one process to the server. ``engine`` has its faults."""

    def __init__(self, server: ApplicationServer) -> None:
        self.engine = FaultyEngine(server.engine, self._before, self._after)
        self.is_alive = self.is_reachable = True
        self.held = ""  # the beginning of the next step to hold; "": none
        self.is_holding = False  # whether that step is in progress
        self._server = server
        server.ways.append(self)

    def end(self) -> None:
        """Let all steps fail, because the process is killed."""
        self.is_alive = self.is_reachable = False
        self._server.ways.remove(self)

    def _before(self, step: str) -> None:
        """Fail before a step, or let time pass."""
        server = self._server
        self._check()
        if self.held and step.startswith(self.held) and may_park():
            self.held, self.is_holding = "", True
            park(_HOLD_S)
            self.is_holding = False
        elif may_park() and server.chance(server.faults.slow):
            park(server.rng.uniform(0, _LONGEST_STEP_S))
        self._check()
        if server.chance(server.faults.lost):
            raise StorageUnavailable("the connection was lost, says the simulation")
        if step.startswith(("UPDATE", "DELETE")) and server.chance(server.faults.aborted):
            raise TransactionAborted("a deadlock, says the simulation")
        if step == "commit":
            self._lose_reply()

    def _after(self, step: str) -> None:
        self._lose_reply()

    def _lose_reply(self) -> None:
        """Lose the reply to a COMMIT, before it took effect or after that."""
        if self._server.chance(self._server.faults.no_reply / 2):
            raise OutcomeUnknown("the reply to COMMIT was lost, says the simulation")

    def _check(self) -> None:
        if not self.is_reachable:
            raise StorageUnavailable("the server is out of reach, says the simulation")


# The way of the process whose task runs.
WAY: ContextVar[Way] = ContextVar("WAY")


@contextlib.contextmanager
def reached_by_ways(clock: TrueClock) -> Iterator[None]:
    """Let brokers reach databases of applications by ``WAY`` inside the ``with`` block.

    Deliveries to the application have an age by the virtual clock.
    """

    def engine(address: MysqlAddress, creates: bool) -> FaultyEngine:
        return WAY.get().engine

    class Timer:
        monotonic = clock.now_s

    replaced: list[tuple[Any, str, Any]] = [
        (outbox_relays, "MysqlEngine", engine),
        (relays, "MysqlEngine", engine),
        (tables, "MysqlEngine", engine),
        (claims, "time", Timer),
        (_ACKNOWLEDGEMENT, "_CLOCK", clock),
        (link, "_CLOCK", clock),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, ours in replaced:
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for owner, name, usual in before:
            setattr(owner, name, usual)


class _Shop(Shop):
    """A database whose statements do not wait for locks."""

    def connect(self) -> pymysql.Connection[Cursor]:
        connection = super().connect()
        with connection.cursor() as cursor:
            cursor.execute(_NO_WAIT)
        return connection


class _Session(Session):
    def close(self) -> None:
        """Close the connection. The open transaction is rolled back before that."""
        if self._connection is not None:
            with contextlib.suppress(pymysql.err.MySQLError):
                self._connection.rollback()
        super().close()


class SimulatedApplication(Application):
    """An application whose transactions take virtual time."""

    def __init__(self, server: ApplicationServer, url: str) -> None:
        super().__init__(_Shop(url), _DIRECTIVES)
        self.server = server
        self._rng = server.rng

    async def transact(self, calls: Calls, work: Callable[[Cursor], Any], end: str) -> bool | None:
        """Do work in a transaction.

        Args:
          end: commit, rollback, or "no answer", after which it is committed or not.

        Returns:
          Whether it is committed; None: that is not known.

        Raises:
          AlreadyProcessed: as ``work`` does; the transaction is rolled back.
        """
        return await calls(self._transact, work, end)

    def _transact(self, work: Callable[[Cursor], Any], end: str) -> bool | None:
        def slow_work(cursor: Cursor) -> None:
            work(cursor)
            park(self._rng.uniform(0, self._rng.choice(_THOUGHTS_S)))

        commits = end == "commit" or (end == "no answer" and self._rng.random() < 0.5)
        session = _Session(self.shop)
        stored = session.transact(slow_work, commits=commits)
        session.close()
        return None if end == "no answer" else stored
