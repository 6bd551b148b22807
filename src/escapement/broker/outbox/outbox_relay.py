"""The outbox relay: moves rows of an outbox into the inbox, each committed row exactly once.

An *outbox* is a table in the database of an application (storage/outbox). The application inserts
rows in its own transactions. One relay serves one outbox. The log may be another database, so one
transaction cannot cover both. A *batch* therefore takes three steps:

a. In the application's database, open a transaction, and lock and read the next rows.
b. In the log, one group commit inserts the rows into the inbox and overwrites the *record* of the
   outbox: the number of the batch, and the ids of its rows. The lease guards this commit.
c. In the application's database, delete the rows, note the number of the batch, and commit.

The rows of batch n are moved exactly if the log's record has n or a higher number. They are deleted
exactly if the application's database has n or a higher number. Only ``_settle`` and step c delete
rows, and step b begins only when both numbers are equal. These interleavings are closed:

- *The broker crashes between b and c.* The application's number is one lower than the record's.
  The next relay settles before its first batch: it deletes the rows of the record.
- *The outcome of b is unknown*, or the relay is cancelled in b. The open transaction of a is rolled
  back. The relay reads the record again, in a group commit of the same lane, so after the first one
  has ended or failed for good. If the record has the batch, its rows are deleted; else they are
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
  have the ids of the record. So settling deletes only rows with the content of the moved rows.

A row may also be a request to cancel or reschedule earlier messages (broker/outbox/messages.py). It
takes the same three steps. The inbox relay begins it, and the amender carries it out.

The order: if a row is inserted after another row was committed, and both have the same key, the
messages keep this order (see storage/outbox/application.py). The order of rows of concurrent
transactions is that of their ids, except when a row with a lower id is committed after a row with a
higher id was moved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import trio

from escapement.broker.outage import Outage
from escapement.broker.outbox.messages import Change, inbox_entries, read_rows
from escapement.broker.registry.changes import Transact
from escapement.clock import Clock
from escapement.errors import StorageError, StorageUnavailable
from escapement.storage.blocking import Run
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql import MysqlEngine
from escapement.storage.outbox.application import OutboxInApplication, OutboxRow
from escapement.storage.outbox.record import (
    MovedRow,
    Record,
    read_record,
    source_id,
    write_batch,
)

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# The pause between two looks: the shortest while rows come, the longest while none come.
_SHORTEST_S: Final = 0.005
_LONGEST_S: Final = 0.25
# The shortest pause after an error, and the longest after several.
_FIRST_RETRY_S: Final = 0.25
_LAST_RETRY_S: Final = 5.0
# How long a stop of the broker waits for the batch in progress.
_STOP_S: Final = 2.0


class _Taken(NamedTuple):
    """The rows of a batch, which are locked, and their messages and requests."""

    rows: list[OutboxRow]
    more: bool  # whether further rows probably follow
    changes: list[Change]
    moved: list[MovedRow]  # the rows of these, for the record
    refused: list[tuple[int, str]]  # the other rows, each with a reason


class OutboxRelay:
    """The relay of one outbox.

    Args:
      application: the database of the application.
      engine: the database of the log.
      log: the id of the log.
      served: the outboxes that the broker serves, by their random ids; shared by all relays.
      on_posted: called when entries were written to the inbox.
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
        max_delay_ms: int,
        on_posted: Callable[[], None],
    ) -> None:
        self._outbox = OutboxInApplication(application, log, served)
        self._engine = engine
        self._transact = transact
        self._clock = clock
        self._run = run
        self._max_delay_ms = max_delay_ms
        self._on_posted = on_posted
        self._identity = b""
        self._batch = -1  # the last batch, moved and deleted; -1: not known
        self._moving = trio.Lock()  # held during a batch
        self._stopping = False
        self.moved = 0  # number of rows moved since the broker started
        self.refused = 0  # number of rows refused since then
        self.problem = ""  # why rows wait, or ""

    @property
    def location(self) -> str:
        return self._outbox.location

    async def stop(self) -> None:
        """Begin no further batch, and wait a while for the batch in progress."""
        self._stopping = True
        with trio.move_on_after(_STOP_S):
            async with self._moving:
                pass

    def close(self) -> None:
        """Close the connection to the application's database."""
        self._outbox.close()

    # -- the task --------------------------------------------------------------

    async def run(self) -> None:
        """Move rows until the broker stops."""
        outage = Outage("rows of an outbox wait")
        pause_s = _SHORTEST_S
        while not self._stopping:
            began_s, before = trio.current_time(), self.moved + self.refused
            more, least_s = False, 0.0
            with outage:
                more = await self._turn()
            if more:
                continue
            if outage.goes_on:
                pause_s = min(2 * max(pause_s, _FIRST_RETRY_S / 2), _LAST_RETRY_S)
            elif self.moved + self.refused > before:
                pause_s = _SHORTEST_S
            else:
                pause_s = min(2 * pause_s, _LONGEST_S)
                # A look may take long if the database cannot remove deleted rows. Then looks take
                # at most half of the time.
                least_s = trio.current_time() - began_s
            await trio.sleep(max(pause_s, least_s))

    async def _turn(self) -> bool:
        """Move a batch, if there are rows. Return whether further rows probably follow."""
        async with self._moving:
            try:
                if self._batch < 0:
                    await self._settle()
                more = await self._move()
            except BaseException as error:
                self._batch = -1
                self._outbox.close()
                self.problem = str(error).removeprefix(f"{self.location}: ")
                raise
        self.problem = ""
        return more

    async def _settle(self) -> None:
        """Attach to the outbox, and delete the rows of the last batch if they are still there."""
        found = await self._in_application(self._outbox.attach)
        record = await self._transact(lambda log: read_record(self._engine, log, found.identity))
        new_ids = await self._in_application(self._outbox.settle, found, record)
        if new_ids:
            _logger.warning(
                "%s: %d rows have the ids of moved rows, and another content; they are moved as "
                "new rows. The database was restored or has failed over",
                self.location,
                len(new_ids),
            )
        self._identity, self._batch = found.identity, record.batch

    async def _move(self) -> bool:
        now_ms = self._clock.now_ms()
        taken = await self._in_application(self._take, now_ms)
        if not taken.rows:
            return False
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
        return taken.more

    def _take(self, now_ms: int) -> _Taken:
        """Lock the next rows and read them. Runs in a thread."""
        rows, more = self._outbox.take()
        good, refused = read_rows(rows, now_ms, self._max_delay_ms)
        changes = [change for _, change in good]
        return _Taken(rows, more, changes, [row.moved() for row, _ in good], refused)

    def _tell_refused(self, refused: list[tuple[int, str]]) -> None:
        self.refused += len(refused)
        if refused:
            id, reason = refused[0]
            _logger.warning(
                "%s: %d rows are refused and moved to escapement_outbox_refused; the first is "
                "row %d: %s",
                self.location,
                len(refused),
                id,
                reason,
            )

    async def _in_application(self, call: Callable[..., T], *arguments: object) -> T:
        """Make a call to the application's database.

        Its errors must not end the broker, so each counts as an outage.
        """
        try:
            return await self._run(call, *arguments)
        except StorageUnavailable:
            raise
        except StorageError as error:
            raise StorageUnavailable(str(error)) from error


def outbox_relays(
    addresses: Sequence[MysqlAddress],
    engine: Engine,
    log: bytes,
    transact: Transact,
    clock: Clock,
    run: Run,
    max_delay_ms: int,
    on_posted: Callable[[], None],
) -> list[OutboxRelay]:
    """Return the relays of one broker, one for the outbox in each database of an application.

    Args:
      addresses: the databases of applications.
      The others are those of ``OutboxRelay``.
    """
    served: dict[bytes, OutboxInApplication] = {}
    return [
        OutboxRelay(
            MysqlEngine(address, creates=False),
            engine,
            log,
            served,
            transact,
            clock,
            run,
            max_delay_ms,
            on_posted,
        )
        for address in addresses
    ]
