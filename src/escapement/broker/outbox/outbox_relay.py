"""The outbox relay: moves rows of an outbox into the inbox, each committed row exactly once.

An *outbox* is a table in the database of an application (storage/outbox): ``escapement_outbox``, or
a table that an operator has mapped. The application inserts rows in its own transactions. One relay
serves one outbox. The log may be another database, so one transaction cannot cover both. A row that
was moved is *done*: deleted, or with another value in one column. A *batch* takes three steps:

a. In the application's database, open a transaction, and lock and read the next rows.
b. In the log, one group commit inserts the rows into the inbox and overwrites the *record* of the
   outbox: the number of the batch, and the ids of its rows. The lease guards this commit.
c. In the application's database, make the rows done, note the number of the batch, and commit.

The rows of batch n are moved exactly if the log's record has n or a higher number. They are done
exactly if the application's database has n or a higher number. Only ``_settle`` and step c make
rows done, and step b begins only when both numbers are equal. These interleavings are closed:

- *The broker crashes between b and c.* The application's number is one lower than the record's.
  The next relay settles before its first batch: it makes the rows of the record done.
- *The outcome of b is unknown*, or the relay is cancelled in b. The open transaction of a is rolled
  back. The relay reads the record again, in a group commit of the same lane, so after the first one
  has ended or failed for good. If the record has the batch, its rows are made done; else they are
  moved again.
- *The outcome of c is unknown.* The relay reads both numbers again, and settles if they differ.
- *A hanging broker wakes up* while its successor works. Its b fails, because the successor has the
  lease. Its c cannot follow, since only a durable b leads to it. Its row locks would delay rows
  while later rows of the same key are moved. So each relay ends the connection that holds the
  outbox's named lock before it reads rows.
- *It wakes up between b and c.* Its b was durable before the successor took the lease, so the
  successor has found the batch in the record, and has settled it. The connection of the hanging
  broker has been ended, so its c fails.
- *An operator resets the outbox.* Each transaction of a relay locks the identity of the outbox, and
  fails if it has changed. So a reset comes before step a or after step c.
- *The application's database is restored* to an earlier time, or fails over to a replica that lacks
  transactions. If its number is more than one lower than the record's, the relay stops with a
  warning, because rows that are moved already may be there again. If it is one lower, new rows may
  have the ids of the record. So settling makes only rows done that have the content of the moved
  rows. In a table whose rows stay, a restore makes rows wait again that were done: the same rule.
- *The application makes a row done, or makes it wait again.* Steps a and c and ``_settle`` choose
  and lock only rows that wait. So a row that the application has made done is not moved. A row that
  it has made wait again is a new row: its next batch moves it once more.
- *A mapping is removed, and the table is mapped again*, perhaps in another way. The outbox keeps
  its identity, its number, and the mapping by which the last batch was moved. The next relay
  settles by that mapping, because rows look different by another one. It notes its own mapping
  before step a.

A row may also be a request to cancel or reschedule earlier messages (broker/outbox/messages.py). It
takes the same three steps. The inbox relay begins it, and the amender carries it out.

The order: if a row is inserted after another row was committed, and both have the same key, the
messages keep this order (see storage/outbox/application.py), if ids or the order column ascend.
The order of rows of concurrent transactions is that of their ids, except when a row with a lower id
is committed after a row with a higher id was moved.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, TypeVar

from escapement.broker.outage import Outage
from escapement.broker.outbox.messages import Change, DelaysOf, inbox_entries, read_rows
from escapement.broker.outbox.relay import Progress, Relay
from escapement.broker.registry.changes import Transact
from escapement.clock import Clock
from escapement.errors import StorageError, StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Engine
from escapement.storage.outbox.application import OutboxInApplication
from escapement.storage.outbox.mapping import OURS, OutboxMapping
from escapement.storage.outbox.record import (
    MovedRow,
    Record,
    RowId,
    read_record,
    source_id,
    write_batch,
)
from escapement.storage.outbox.row import OutboxRow

T = TypeVar("T")

_log = EventLog(__name__)


class _Taken(NamedTuple):
    """The rows of a batch, which are locked, and their messages and requests."""

    rows: list[OutboxRow]
    more: bool  # whether further rows probably follow
    changes: list[Change]
    moved: list[MovedRow]  # the rows of these, for the record
    refused: list[tuple[RowId, str]]  # the other rows, each with a reason


class OutboxRelay(Relay):
    """The relay of one outbox.

    Args:
      application: the database of the application.
      engine: the database of the log.
      log: the id of the log.
      served: the outboxes that the broker serves, by their random ids; shared by all relays.
      on_posted: called when entries were written to the inbox.
      mapping: the table of the outbox, and how its rows become messages.
    """

    def __init__(
        self,
        application: Engine,
        engine: Engine,
        log: bytes,
        served: dict[bytes, OutboxInApplication],
        transact: Transact,
        clock: Clock,
        run: Run,
        delays_of: DelaysOf,
        on_posted: Callable[[], None],
        mapping: OutboxMapping = OURS,
    ) -> None:
        self._outbox = OutboxInApplication(application, log, served, mapping)
        database, table = application.location, mapping.table
        outage = Outage(
            "outbox.waiting",
            f"rows of the outbox {table} wait",
            "outbox.working",
            f"rows of the outbox {table} are moved again from {database}",
            database=database,
            table=table,
        )
        super().__init__(self._outbox, database, run, outage)
        self._engine = engine
        self._transact = transact
        self._clock = clock
        self._delays_of = delays_of
        self._on_posted = on_posted
        self._identity = b""
        self._batch = -1  # the last batch, moved and done; -1: not known
        self.moved = 0  # number of rows moved since the broker started
        self.refused = 0  # number of rows refused since then

    async def _step(self) -> Progress:
        """Move a batch, if there are rows."""
        if self._batch < 0:
            await self._settle()
        return await self._move()

    def close(self) -> None:
        """Close the connection to the application's database, and leave the outbox to others."""
        self._outbox.leave()

    def _failed(self) -> None:
        self._batch = -1

    async def _settle(self) -> None:
        """Attach to the outbox, and make the rows of the last batch done if they still wait."""
        found = await self._in_application(self._outbox.attach)
        record = await self._transact(lambda log: read_record(self._engine, log, found.identity))
        new_ids = await self._in_application(self._outbox.settle, found, record)
        if new_ids:
            _log.warning(
                "outbox.ids_reused",
                "%s: %d rows have the ids of moved rows, and another content; they are moved as "
                "new rows. The database was restored or has failed over",
                self.location,
                len(new_ids),
                database=self.location,
                rows=len(new_ids),
            )
        self._identity, self._batch = found.identity, record.batch

    async def _move(self) -> Progress:
        now_ms = self._clock.now_ms()
        taken = await self._in_application(self._take, now_ms)
        if not taken.rows:
            return Progress.NONE
        batch = self._batch
        if taken.changes:
            batch += 1
            record = Record(batch, taken.moved)
            make_entries = partial(inbox_entries, taken.changes, source_id(self._identity, batch))
            await self._transact(
                lambda log: write_batch(
                    self._engine, log, self._identity, record, make_entries, now_ms
                )
            )
            self._on_posted()
        await self._in_application(self._outbox.finish, taken.rows, taken.refused, batch)
        self._batch = batch
        self.moved += len(taken.changes)
        self._tell_refused(taken.refused)
        return Progress.MORE if taken.more else Progress.SOME

    def _take(self, now_ms: int) -> _Taken:
        """Lock the next rows and read them. Runs in a thread."""
        rows, more = self._outbox.take()
        good, refused = read_rows(rows, now_ms, cache(self._delays_of))
        changes = [change for _, change in good]
        return _Taken(rows, more, changes, [row.moved() for row, _ in good], refused)

    def _tell_refused(self, refused: list[tuple[RowId, str]]) -> None:
        self.refused += len(refused)
        if refused:
            id, reason = refused[0]
            _log.warning(
                "outbox.rows_refused",
                "%s: %d rows are refused and kept in escapement_outbox_refused; the first is "
                "row %s: %s",
                self.location,
                len(refused),
                id,
                reason,
                database=self.location,
                rows=len(refused),
            )

    async def _in_application(self, call: Callable[..., T], *arguments: object) -> T:
        try:
            return await self._run(call, *arguments)
        except StorageUnavailable:
            raise
        except StorageError as error:
            # The error names the database. Only the location names the table too.
            what = str(error).removeprefix(f"{self.database}: ")
            raise StorageUnavailable(f"{self.location}: {what}") from error
