"""A simulated database server: a database behind a network that fails as the seed decides.

Every process has its own engine, and so its own way to the server. A step of a connection can fail
before it took effect, and a COMMIT also after it did. A connection can be lost, a transaction can
be aborted, and for some time the server can be out of reach, read-only, or slow. Committed rows are
never lost.

The database is SQLite, or a MySQL database whose calls never wait. The server has one write lock,
like SQLite. A transaction takes it before its first write, or before it locks a row. The tables
``leases`` and ``brokers`` have a lock each. Transactions that lock a row in share mode share the
lock of its table. So a transaction that has checked its lease, and has not yet written, overlaps
with others. Its reads see the rows that the others commit meanwhile. A transaction that waits for a
lock longer than ``lock_wait_s`` is aborted. A process that stops inside a transaction keeps its
locks until its connection is killed. Reads see committed rows.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from escapement.errors import OutcomeUnknown, StorageReadOnly, StorageUnavailable
from escapement.storage.engine.base import (
    Connection,
    Engine,
    Params,
    Result,
    Row,
    Step,
    TransactionAborted,
)
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.engine.sqlite import DIALECT, SqliteConnection
from simulation.calls import Locks, may_park, park

_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "ALTER", "DROP")
# Comments of the SQL that lock rows, in place of the words of a server.
_SHARE: Final = " /* FOR SHARE */"
_UPDATE: Final = " /* FOR UPDATE */"
_WITH_LOCKS: Final = re.compile(r"\b(?:FROM|INTO|UPDATE) (leases|brokers)\b")
_WRITE_LOCK: Final = "write"
_LONGEST_STEP_S: Final = 1.0


@dataclass
class Faults:
    """The probability of each fault of a step. Only the last occurs in a healthy database."""

    lost: float = 0.0  # the connection is lost before the step
    aborted: float = 0.0  # the transaction is aborted
    no_reply: float = 0.0  # COMMIT gets no reply; half of them took effect
    slow: float = 0.1  # the step takes a random time, if its call can wait


class Server:
    """The database server that all processes share."""

    def __init__(self, engine: Engine, now_ms: Callable[[], int], rng: random.Random) -> None:
        self.engine = engine
        self.now_ms = now_ms
        self.rng = rng
        self.locks = Locks()
        self.faults = Faults()
        self.read_only = False
        self.ids = itertools.count(1)
        self.connections: dict[int, SimulatedConnection] = {}
        self.counts = dict.fromkeys(("lost", "aborted", "no reply", "steps", "lock waits"), 0)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def heal(self) -> None:
        """End the faults that all processes see."""
        self.faults = Faults()
        self.read_only = False

    def kill(self, connection_ids: Sequence[int]) -> None:
        """Close connections, and roll back their transactions."""
        for id in connection_ids:
            if (connection := self.connections.get(id)) is not None:
                connection.lose()


class SimulatedEngine:
    """The way of one process to the server."""

    kind = "sqlite"
    is_shared: Final = True
    location: Final = "the simulated database"
    lock_wait_s: Final = 5
    max_lanes: Final = 2
    dialect = replace(DIALECT, now_ms="simulated_now_ms()", share_lock=_SHARE, update_lock=_UPDATE)

    def __init__(self, server: Server) -> None:
        self._server = server
        if server.engine.kind != "sqlite":
            self.kind, self.dialect = server.engine.kind, server.engine.dialect
        self.is_reachable = True
        self.failed_ms = 0  # when a call failed last
        self._open: set[SimulatedConnection] = set()

    def connect(self) -> Connection:
        if not self.is_reachable or self._server.chance(self._server.faults.lost):
            self.note_failure()
            raise StorageUnavailable("the server is out of reach, says the simulation")
        connection = SimulatedConnection(self._server, self)
        self._open.add(connection)
        return connection

    def limited(self, silence_s: float) -> SimulatedEngine:
        return self

    def check_fitness(self) -> None:
        self._server.engine.check_fitness()

    def kill(self, connection_ids: Sequence[int]) -> None:
        self._server.kill(connection_ids)

    def cut(self) -> None:
        """Lose all connections of this process; new ones fail until it is reachable again."""
        self.is_reachable = False
        for connection in sorted(self._open, key=lambda one: one.id):
            connection.lose()
        self._server.locks.wake()

    def note_failure(self) -> None:
        self.failed_ms = self._server.now_ms()

    def forget(self, connection: SimulatedConnection) -> None:
        self._open.discard(connection)

    def close(self) -> None:
        """Do nothing: the server outlives its users."""


class SimulatedConnection:
    """A connection to the server."""

    def __init__(self, server: Server, engine: SimulatedEngine) -> None:
        self._server = server
        self._engine = engine
        self._inner = server.engine.connect()
        if isinstance(self._inner, SqliteConnection):
            now_ms = server.now_ms
            self._inner._raw.create_function("simulated_now_ms", 0, lambda: now_ms())
        self.id = next(server.ids)
        server.connections[self.id] = self
        self._in_transaction = False
        self._begun = False  # whether SQLite is in a transaction

    @property
    def ended(self) -> bool:
        return self._inner.ended

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        self._step(sql)
        self._lock_for(sql)
        try:
            return self._inner.execute(sql, params, into)
        finally:
            if not self._in_transaction:
                self._server.locks.free(self)

    def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        self._step(sql)
        assert self._in_transaction, "execute_many outside a transaction"
        self._lock_for(sql)
        return self._inner.execute_many(sql, rows)

    def execute_all(self, steps: Sequence[Step]) -> list[Row]:
        self._check()
        assert self._in_transaction, "execute_all outside a transaction"
        for step in steps:
            self._step(step.sql)
            self._lock_for(step.sql)
        if not self._begun:  # there are only reads
            rows = [(sql, params) for sql, some in steps for params in some]
            return [row for sql, params in rows for row in self._inner.execute(sql, params).rows]
        return self._inner.execute_all(steps)

    def begin(self) -> None:
        assert not self._in_transaction, "begin inside a transaction"
        self._step("BEGIN")
        self._in_transaction = True
        if not may_park():  # no other call of the simulation runs meanwhile
            try:
                self._lock_all()
            except TransactionAborted:
                self._end_transaction()
                raise

    def snapshot(self) -> None:
        assert not self._in_transaction, "snapshot inside a transaction"
        self._step("SELECT")
        self._inner.snapshot()
        self._in_transaction = self._begun = True

    def commit(self) -> None:
        self._step("COMMIT")
        assert self._in_transaction, "commit without a transaction"
        lost = self._server.chance(self._server.faults.no_reply)
        if not lost or self._server.chance(0.5):
            if self._begun:
                self._inner.commit()
            self._end_transaction()
        if lost:
            self._server.counts["no reply"] += 1
            self.lose()
            self._engine.note_failure()
            raise OutcomeUnknown("the reply to COMMIT was lost, says the simulation")
        self._wait()

    def rollback(self) -> None:
        self._inner.rollback()
        self._end_transaction()

    def close(self) -> None:
        self.lose()

    def lose(self) -> None:
        """Close the connection, and roll back its transaction."""
        self._inner.close()
        self._end_transaction()
        self._server.connections.pop(self.id, None)
        self._engine.forget(self)

    def _end_transaction(self) -> None:
        self._in_transaction = self._begun = False
        self._server.locks.free(self)

    def _lock_for(self, sql: str) -> None:
        """Take the locks that a statement needs, or wait for them if the call can wait."""
        writes = not sql.lstrip().startswith("SELECT")  # or begins a savepoint
        locks = writes or _SHARE in sql or _UPDATE in sql
        if locks and (found := _WITH_LOCKS.search(sql)):
            self._lock(found[1], alone=_SHARE not in sql)
            locks = writes
        if locks:
            self._lock_all()

    def _lock_all(self) -> None:
        """Take the write lock, and let SQLite begin the transaction, if there is one."""
        if not self._begun:
            self._lock(_WRITE_LOCK, alone=True)
            if self._in_transaction:
                self._inner.begin()
                self._begun = True

    def _lock(self, name: str, *, alone: bool) -> None:
        locks = self._server.locks
        until_ms = self._server.now_ms() + 1000 * self._engine.lock_wait_s
        while not locks.take(name, self, alone=alone) and may_park():
            left_ms = until_ms - self._server.now_ms()
            if left_ms <= 0:
                self.rollback()
                self._engine.note_failure()
                raise TransactionAborted(f"the lock {name} is taken, says the simulation")
            self._server.counts["lock waits"] += 1
            locks.wait(left_ms / 1000)
            self._check()

    def _wait(self) -> None:
        if may_park() and self._server.chance(self._server.faults.slow):
            park(self._server.rng.uniform(0, _LONGEST_STEP_S))

    def _check(self) -> None:
        if self._inner.ended or not self._engine.is_reachable:
            self.lose()
            self._engine.note_failure()
            raise StorageUnavailable("the connection is lost, says the simulation")

    def _step(self, sql: str) -> None:
        """Fail before a step, or let time pass."""
        server = self._server
        server.counts["steps"] += 1
        self._check()
        self._wait()
        self._check()
        if server.chance(server.faults.lost):
            server.counts["lost"] += 1
            self.lose()
            self._engine.note_failure()
            raise StorageUnavailable("the connection was lost, says the simulation")
        if self._in_transaction and server.chance(server.faults.aborted):
            server.counts["aborted"] += 1
            self.rollback()
            self._engine.note_failure()
            raise TransactionAborted("a deadlock, says the simulation")
        if server.read_only and sql.lstrip().upper().startswith(_WRITES):
            raise StorageReadOnly("the server is read-only, says the simulation")
