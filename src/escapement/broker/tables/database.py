"""Serves the message tables of one database of an application.

Tasks: the pump, the claims and the row writer, and one that polls, discovers and purges tables. If
the database fails, no message of its tables is sent for a moment, and everything that waits to be
written is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, NamedTuple, TypeVar

import numpy as np
import trio

from escapement.broker.delivery.pump import Pump
from escapement.broker.limits import BrokerLimits
from escapement.broker.metering.totals import Totals
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.tables.claim import Claim
from escapement.broker.tables.claims import Claims
from escapement.broker.tables.connections import Connections
from escapement.broker.tables.listed_table import ListedTable
from escapement.broker.tables.purging import Purging
from escapement.broker.tables.row_writer import RowWriter
from escapement.broker.tables.served_table import ServedTable
from escapement.broker.tables.table_index import TableIndex
from escapement.broker.tables.trouble import Pause, Problems, Work, divided
from escapement.broker.tables.unsendable_rows import UnsendableRows
from escapement.broker.topic.topic import Topic
from escapement.broker.topic.window_budget import WindowBudget
from escapement.clock import Clock
from escapement.errors import (
    EscapementError,
    InvalidRequest,
    NotFound,
    StorageError,
    StorageUnavailable,
    TableRejected,
)
from escapement.event_log import EventLog
from escapement.field import Field
from escapement.names import TableName
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.mysql.errors import waits_for_lock
from escapement.tables.discovery import Discovery, MessageTables
from escapement.tables.poll import Polled, Target, index_warning, poll
from escapement.tables.row_ids import RowIds
from escapement.tables.row_statements import values_of

T = TypeVar("T")

_log = EventLog(__name__)

# The offsets of rows begin with the epoch of the lease, so each broker has its own. A broker can
# have this many bits of rows of each table.
_OFFSET_BITS: Final = 40
# How often to look for created, altered and dropped tables.
_LOOK_S: Final = 1.0
# How often to read the definitions of all tables, even if none seems to be altered.
_FULL_LOOK_S: Final = 10.0
# After a table could not be polled alone, no other such table is tried for this time, nor for this
# many times as long as that took. On MySQL, a poll of a locked table takes a second.
_ALONE_S: Final = 0.5
_SLOW_FAILURE: Final = 4
# The pause after polls or discovery have failed.
_FAILED_S: Final = 0.25
# A database that does not answer for this time is shown as a problem.
_SILENT_S: Final = 2.0
# The most problems of tables that are shown for the whole database.
_MOST_PROBLEMS: Final = 10
# How long a request to acknowledge rows waits. A client waits for 30 s, and learns the reason so.
_ACK_S: Final = 20.0
# How long a stop of the broker waits until everything is written.
_STOP_S: Final = 2.0


class Delivery(NamedTuple):
    """The parts of the broker that deliver messages.

    Attributes:
      make_pump: makes a pump, given the order of delivery, the runner of its blocking calls, and
        a function that returns whether messages may be sent now.
      look_at: called with a topic that may have work.
      unschedule: called with the id of a topic that is gone.
      holds_lease: returns whether the broker holds its lease.
      totals: the counters of the whole broker.
    """

    make_pump: Callable[[TableIndex, Run, Callable[[], bool]], Pump]
    look_at: Callable[[Topic], None]
    unschedule: Callable[[int], None]
    holds_lease: Callable[[], bool]
    totals: Totals


class Database:
    """The message tables of one database.

    Args:
      engine: the database.
      log: the id of the broker's log.
      lease_epoch: the epoch of the lease that the broker works under.
      next_id: returns an id for another topic.
    """

    def __init__(
        self,
        engine: Engine,
        database: str,
        log: str,
        lease_epoch: int,
        next_id: Callable[[], int],
        delivery: Delivery,
        limits: BrokerLimits,
        rng: np.random.Generator,
        clock: Clock,
        run: Run,
    ) -> None:
        self.database = database
        self.has_looked = trio.Event()  # set when the tables are known
        self._engine = engine
        self._lease_epoch = lease_epoch
        self._next_id = next_id
        self._delivery = delivery
        self._limits = limits
        self._rng = rng
        self._clock = clock
        self._run = run
        self._budget = WindowBudget(limits.window_messages)
        self._tables: dict[str, ServedTable] = {}
        self._by_id: dict[int, ServedTable] = {}
        self._rejected: dict[str, str] = {}
        self._connections = Connections(engine, database, log, delivery.holds_lease)
        self._claims = Claims(
            self._connections.claims,
            run,
            lambda id: self._by_id[id],
            self._claimed,
            lambda error, table: self._failed("claim", error, table),
        )
        self._problems = Problems(database, trio.current_time)
        self._unsendable = UnsendableRows(self._problems)
        self._pause = Pause()
        self._asked_s = inf  # since when a poll, look or purge waits for its answer
        self._discovery = Discovery()
        self._found: MessageTables | None = None
        self._look_s = 0.0  # when to look for tables next
        self._full_look_s = 0.0  # from when on a look reads all definitions
        self._purging = Purging(self.location, self._ask)
        self._poll = 0  # the number of the last poll
        self._alone_s = 0.0  # not before this time is a table that cannot be polled tried again
        self._soon = trio.Event()
        self.index = TableIndex(lambda id: self._by_id[id].cached, self._claims.begin)
        self.pump = delivery.make_pump(self.index, self._claims.wait, self._may_dispatch)
        self.writer = RowWriter(
            clock,
            self._write,
            run,
            partial(self._failed, "write"),
            self._works,
            self._changed,
            lambda: self._poll,
            limits.unwritten_acks,
        )

    @property
    def location(self) -> str:
        return self._engine.location

    @property
    def pause(self) -> StorageError | None:
        """Why no message is sent for a moment; None if deliveries do not pause."""
        return self._pause.cause

    @property
    def problems(self) -> list[str]:
        """Why messages wait: the problem of the whole database, or those of some tables."""
        problem = self._problem_of("")
        if problem is not None:
            return [f"{self.location}: {problem}"]
        return [
            f"{self.location}, table {table}: {self._problem_of(table)}"
            for table in self._problems.tables[:_MOST_PROBLEMS]
        ]

    # -- finding -----------------------------------------------------------------------

    def topics(self) -> Sequence[Topic]:
        """Return the topics of all tables that are served."""
        return [table.topic for table in self._tables.values()]

    def topic(self, id: int) -> Topic | None:
        """Return the topic with this id; None if there is none."""
        table = self._by_id.get(id)
        return None if table is None else table.topic

    def fields(self, id: int) -> tuple[Field, ...] | None:
        """Return the fields of the rows of the topic with this id; None if there is none."""
        table = self._by_id.get(id)
        return None if table is None else table.statements.fields

    def find(self, name: TableName) -> ServedTable:
        """Return a table.

        Raises:
          NotFound: if the database has no such message table.
          TableRejected: if it has one that cannot be served.
          StorageUnavailable: if the database could not be asked yet.
        """
        table = self._tables.get(name.name)
        if table is not None:
            return table
        if name.name in self._rejected:
            raise TableRejected(self._rejected[name.name])
        if self._found is None:
            problem = self._problem_of("") or "the tables are not known yet"
            raise StorageUnavailable(f"{self.location}: {problem}")
        raise NotFound(
            f"{self.location} has no message table {name.name}; `escapement tables list` shows all"
        )

    def listed(self) -> list[ListedTable]:
        """Return the state of each table, as plain values."""
        rows: list[ListedTable] = [
            {
                "table": TableName.of(self.database, name).full,
                "state": self._problem_of(name) or "ok",
                "consumers": len(table.subscription.consumers),
                "waiting": table.waiting,
                "in_flight": len(table.subscription.in_flight),
                "acknowledged": table.subscription.counts.acknowledged,
            }
            for name, table in self._tables.items()
        ]
        rows += [
            {"table": f"table://{self.database}/{name}", "state": reason}
            for name, reason in self._rejected.items()
        ]
        return sorted(rows, key=lambda row: str(row["table"]))

    def hasten(self, table: ServedTable) -> None:
        """Poll a table now, because it has room for messages, or a consumer for them."""
        table.pace.hasten(trio.current_time())
        self._soon.set()

    def hint(self, name: str) -> None:
        """Poll a table soon, because rows were inserted; do nothing for an unknown table."""
        table = self._tables.get(name)
        if table is not None and table.is_used:
            table.pace.hint(trio.current_time())
            self._soon.set()

    async def acknowledge(self, table: ServedTable, given: Sequence[object]) -> int:
        """Acknowledge rows by their ids; return how many were not acknowledged before.

        Raises:
          InvalidRequest: if a value cannot be an id of the table.
          StorageUnavailable: if the database does not accept the acknowledgements, or not in time.
            They still wait, so they may take effect.
        """
        try:
            ids = list(dict.fromkeys(table.statements.ids.read(one) for one in given))
        except ValueError as error:
            raise InvalidRequest(f"ids of {table.topic.name.full}: {error}") from None
        total, waiting, ended = 0, 2, trio.Event()

        def done(count: int) -> None:
            nonlocal total, waiting
            total, waiting = total + count, waiting - 1
            if not waiting:
                ended.set()

        offsets = table.cached.offsets_of(ids)
        here = offsets >= 0
        table.subscription.acknowledge(offsets[here], done)
        left = [ids[at] for at in np.flatnonzero(~here).tolist()]
        self.writer.acknowledge(table, left, done)
        self.pump.wake_subscription(table.topic, table.subscription)
        with trio.move_on_after(_ACK_S):
            await self.writer.written(ended)
            return total
        reason = self._problem_of(table.topic.name.name) or "other sessions have locked rows"
        raise StorageUnavailable(
            f"{self.location}: the rows are not acknowledged after {_ACK_S:g} s, because {reason}."
            " They may still be acknowledged."
        )

    # -- the tasks -----------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the tables until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pump.run)
            nursery.start_soon(self._claims.run)
            nursery.start_soon(self.writer.run)
            nursery.start_soon(self._watch)

    async def stop(self, now_ms: int) -> None:
        """Give all messages back, and wait a while until that is written."""
        for table in self._tables.values():
            table.subscription.stop(now_ms)
        with trio.move_on_after(_STOP_S):
            await self.writer.drained()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    async def _watch(self) -> None:
        while True:
            self._soon = trio.Event()
            failed = True
            with suppress(StorageError):
                await self._turn()
                failed = False
            self.has_looked.set()
            with trio.move_on_after(_FAILED_S if failed else self._wait_s()):
                await self._soon.wait()

    async def _turn(self) -> None:
        """Look for tables and poll, as far as it is time to."""
        now_s = trio.current_time()
        if self._pause.has_passed(now_s):
            self._wake_all()
        self._problems.forget_claims()
        if not self.writer.waiting:
            self._problems.end_all("write", ())
        if now_s >= self._look_s:
            await self._look()
        await self._poll_due()
        await self._poll_failing()
        if now_s >= self._purging.next_s:
            await self._purge()

    def _wait_s(self) -> float:
        """Return how long to wait until there is something to do."""
        due_s = [
            max(table.pace.next_s, self._alone_s if table.pace.is_failing else 0.0)
            for table in self._tables.values()
            if table.is_used and not table.is_cramped
        ]
        if self._pause.cause is not None:
            due_s.append(self._pause.ends_s)
        return max(min([self._look_s, self._purging.next_s, *due_s]) - trio.current_time(), 0.0)

    # -- discovery -------------------------------------------------------------------------

    async def _look(self) -> None:
        in_full = trio.current_time() >= self._full_look_s
        try:
            with self._problems.trying("look"):
                if self._found is None:  # before a table is known and other tasks use it
                    await self._ask(lambda connection: self._connections.open())
                found = await self._ask(partial(self._discovery.look, in_full=in_full))
        finally:
            self._look_s = trio.current_time() + _LOOK_S
        if in_full:
            self._full_look_s = trio.current_time() + _FULL_LOOK_S
        self._problems.unused([name for name, one in self._tables.items() if not one.is_used])
        if in_full:
            self._forget_gone()
        if found is self._found:
            return
        before, self._found = self._found, found
        now_ms = self._clock.now_ms()
        self._reject({name: one.reason for name, one in found.rejected.items()})
        for name, known in list(self._tables.items()):
            table = found.good.get(name)
            if table is None or not known.statements.ids.has_form_of(RowIds(table.layout.id)):
                self._drop(name)
        for name, table in found.good.items():
            if name not in self._tables:
                self._serve(name, now_ms)
            elif self._tables[name].table is not table:
                self._tables[name].redefine(table, now_ms)
                self.hasten(self._tables[name])
            if before is None or before.good.get(name) is not table:
                await self._warn(name)

    def _forget_gone(self) -> None:
        """Free the memory of tables that were dropped, if no claim of their rows is in progress."""
        gone = [table for table in self._by_id.values() if table.is_gone]
        for table in gone:
            if not len(self._claims.offsets(table)):
                del self._by_id[table.topic.id]

    def _reject(self, reasons: dict[str, str]) -> None:
        """Remember why tables cannot be served, and log what is new."""
        for name, reason in reasons.items():
            if self._rejected.get(name) != reason:
                _log.warning(
                    "tables.rejected",
                    "%s, table %s is not served: %s",
                    self.location,
                    name,
                    reason,
                    database=self.location,
                    table=name,
                )
        self._rejected = reasons

    def _serve(self, name: str, now_ms: int) -> None:
        assert self._found is not None
        table = ServedTable(
            self._next_id(),
            TableName.of(self.database, name),
            self._found.good[name],
            self._lease_epoch << _OFFSET_BITS,
            self.index,
            self._budget,
            self._limits,
            self._rng,
            self._clock.now_ms,
            self.writer.submit,
            self._delivery.totals,
        )
        self._tables[name] = self._by_id[table.topic.id] = table
        table.begin(now_ms)

    def _drop(self, name: str) -> None:
        """End the consumers of a table that was dropped, or cannot be served as it was."""
        assert self._found is not None
        table = self._tables.pop(name)
        self._problems.unused([name])
        full = table.topic.name.full
        error: EscapementError
        if name in self._rejected:
            error = TableRejected(self._rejected[name])
        elif name in self._found.good:
            error = NotFound(f"the type of the ids of {full} was changed; consume it again")
        else:
            error = NotFound(f"table {full} was dropped or renamed")
            _log.warning(
                "tables.dropped",
                "%s, table %s was dropped or renamed",
                self.location,
                name,
                database=self.location,
                table=name,
            )
        table.end(error)
        self._delivery.unschedule(table.topic.id)

    async def _warn(self, name: str) -> None:
        """Log what users of a table should change."""
        assert self._found is not None
        table = self._found.good[name]
        warnings = list(table.warnings)
        with suppress(StorageError):
            warning = await self._ask(lambda connection: index_warning(connection, table))
            warnings += [] if warning is None else [warning]
        for warning in warnings:
            _log.warning(
                "tables.advice",
                "%s, table %s: %s",
                self.location,
                name,
                warning,
                database=self.location,
                table=name,
            )

    async def _ask(self, call: Callable[[Connection], T], *, keeps: bool = False) -> T:
        """Call a function with the connection for polls.

        Args:
          keeps: whether the connection is kept if the database refuses a statement.
        """
        polls = self._connections.polls

        def made() -> T:
            with (
                values_of(self.database),
                polls.statements() if keeps else polls.use() as connection,
            ):
                return call(connection)

        self._asked_s = trio.current_time()
        try:
            return await self._run(made)
        finally:
            self._asked_s = inf

    async def _purge(self) -> None:
        tables = [one.table for one in self._tables.values() if not one.pace.is_failing]
        if self._problems.is_outage:
            self._purging.put_off(tables)
        else:
            await self._purging.purge(tables, self._clock.now_ms())

    # -- polls -------------------------------------------------------------------------------

    async def _poll_due(self) -> None:
        now_s, now_ms = trio.current_time(), self._clock.now_ms()
        usable = [one for one in self._tables.values() if one.is_used and not one.pace.is_failing]
        due = [one for one in usable if now_s >= one.pace.joins_s and not one.is_cramped]
        if not any(table.pace.next_s <= now_s for table in due):
            return
        if any(table.priorities.are_stale(now_ms) for table in due):
            # To ask all tables for their priorities costs as many statements as to ask one.
            several = [one for one in usable if one.priorities.are_several and not one.is_cramped]
            for table in several:
                table.priorities.expire()
            due = list(dict.fromkeys([*due, *several]))
        with self._problems.trying("poll"):
            await self._poll_tables(due)

    async def _poll_failing(self) -> None:
        """Poll one of the tables that could not be polled: alone, and after the others."""
        now_s = trio.current_time()
        failing = [
            table
            for table in self._tables.values()
            if table.is_used and table.pace.is_failing and not table.is_cramped
        ]
        table = min(failing, key=lambda one: one.pace.next_s, default=None)
        if table is None or now_s < max(table.pace.next_s, self._alone_s):
            return
        with self._problems.trying("poll"):
            await self._poll_tables([table])
        if table.pace.is_failing:
            took_s = trio.current_time() - now_s
            self._alone_s = trio.current_time() + max(_ALONE_S, _SLOW_FAILURE * took_s)

    async def _poll_tables(self, tables: Sequence[ServedTable]) -> None:
        """Poll tables together. If one of them cannot be polled, find it, and poll the others.

        Raises:
          StorageError: if the database cannot be used.
        """
        self._poll += 1
        now_s, now_ms = trio.current_time(), self._clock.now_ms()
        targets = [table.target(now_ms) for table in tables]
        try:
            found = await self._ask(lambda connection: poll(connection, targets), keeps=True)
        except StorageUnavailable:
            raise
        except StorageError as error:
            if not waits_for_lock(error):
                await self._look()  # a table may have been altered or dropped
            if len(tables) > 1:
                for part in divided([table for table in tables if not table.is_gone]):
                    await self._poll_tables(part)
            elif not tables[0].is_gone and tables[0].table is targets[0].table:
                tables[0].pace.failed(trio.current_time())
                self._problems.note("poll", error, tables[0].topic.name.name)
        else:
            self._take(tables, targets, found, now_s)

    def _take(
        self,
        tables: Sequence[ServedTable],
        targets: Sequence[Target],
        found: Sequence[Polled],
        began_s: float,
    ) -> None:
        now_s, now_ms = trio.current_time(), self._clock.now_ms()
        self._unsendable.forget(now_ms)
        for table, target, polled in zip(tables, targets, found, strict=True):
            if table.is_gone or table.table is not target.table:
                continue  # altered or dropped meanwhile
            self._problems.end("poll", table.topic.name.name)
            new = table.take(polled, self._poll, self._claims.offsets(table), now_ms)
            took_s = now_s - began_s
            table.pace.polled(now_s, took_s, new, table.overflows, polled.statements)
            if new:
                self._delivery.look_at(table.topic)

    # -- claims and writes ---------------------------------------------------------------------

    def _claimed(self, table: ServedTable, claim: Claim) -> None:
        outcome = claim.settle(table.cached, self._poll)
        table.subscription.claimed(outcome)
        self._unsendable.claimed(table.topic.name.name, claim.ids, outcome.unsendable)
        if claim.ids and not claim.has_failed:
            self._problems.end("claim")
            self._problems.end("claim", table.topic.name.name)
        self._refill(table)

    def _refill(self, table: ServedTable) -> None:
        """Poll a table if it has room again for messages."""
        if table.wants_refill:
            self.hasten(table)
        elif table.pace.next_s <= trio.current_time() and not table.is_cramped:
            self._soon.set()  # the poll was left out for lack of room

    def _write(self, call: Callable[[Connection], None]) -> None:
        with self._connections.writes.transaction() as connection:
            call(connection)

    def _changed(self, table: ServedTable) -> None:
        self._refill(table)
        self._delivery.look_at(table.topic)

    # -- trouble ---------------------------------------------------------------------------------

    def _may_dispatch(self) -> bool:
        return self._pause.cause is None and self._delivery.holds_lease()

    def _failed(self, work: Work, error: StorageError, table: ServedTable | None = None) -> None:
        """Note an error. If the database cannot be used, send nothing for a while."""
        self._look_s = 0.0  # a table may have been altered or dropped
        if isinstance(error, StorageUnavailable):
            self._pause.begin(error, trio.current_time())
        self._problems.note(work, error, "" if table is None else table.topic.name.name)
        self._soon.set()

    def _works(self, stuck: Collection[ServedTable]) -> None:
        """Note that the database accepts writes, but those of some rows of ``stuck`` tables."""
        self._problems.end_all("write", [table.topic.name.name for table in stuck])
        if self._pause.end():
            self._wake_all()

    def _problem_of(self, table: str) -> str | None:
        """Return why messages of a table wait, or of all tables for ``""``; None if they do not."""
        silent_s = trio.current_time() - self._asked_s
        if silent_s > _SILENT_S:
            return f"the database has not answered for {silent_s:.0f} s"
        problem = self._problems.of(table)
        return None if problem is None else str(problem).removeprefix(f"{self.location}: ")

    def _wake_all(self) -> None:
        for table in self._tables.values():
            self.pump.wake(table.topic)

    def wake(self, topic: Topic, subscription: Subscription | None) -> None:
        """Wake the pump for a subscription of one of the tables, or for its whole topic."""
        table = self._by_id.get(topic.id)
        if table is None:
            return  # it was dropped
        if table.is_used and not table.had_consumers:
            self.hasten(table)
        table.had_consumers = table.is_used
        if subscription is None:
            self.pump.wake(topic)
        else:
            self.pump.wake_subscription(topic, subscription)
