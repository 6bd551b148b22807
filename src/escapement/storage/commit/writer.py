"""The blocking half of a lane: one database connection and the writes through it.

Everything here runs in a thread, one call at a time. It decides nothing and knows no event
loop. A group is one transaction, in this order: delete moved inbox entries, run statements,
insert new inbox entries, check the lease, record the progress of staged batches, insert log
rows and the journal row, COMMIT. From the lease check on, all statements are sent together.
So a group of messages and acknowledgements waits for the database twice: for these
statements, and for the COMMIT, which is sent only after the lease check has passed. The steps
before them follow a lease check of their own. A group that has such steps records the
progress of staged batches there as well.

If a method raises, nothing of the group was committed. The exception is ``OutcomeUnknown``:
then :meth:`Writer.is_durable` finds out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from escapement.errors import LeaseLost, StorageError, StorageUnavailable
from escapement.storage.commit.group import Group
from escapement.storage.commit.group_rows import encode_group
from escapement.storage.commit.items import Statement
from escapement.storage.engine.base import Connection, DuplicateKey, Engine, TransactionAborted
from escapement.storage.inbox import inbox, staged_batch
from escapement.storage.journal import journal
from escapement.storage.journal.entry import encode_entry
from escapement.storage.lease import Lease, Recorded, answer, as_owner, check, question
from escapement.storage.log.log_table import insertion

logger = logging.getLogger(__name__)


class Writer:
    """The connection of one lane, created once and reconnected as often as needed."""

    def __init__(self, engine: Engine, lease: Lease, recorded: Recorded) -> None:
        self._engine = engine
        self._lease = lease
        self._recorded = recorded
        self._connection: Connection | None = None
        self._last_id = 0  # of the previous connection, which the server may still have open

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def connect(self) -> None:
        """Connect, and prove that the connection can write for this lease.

        Raises:
          StorageUnavailable, StorageReadOnly, TransactionAborted: try again later.
          LeaseLost: another broker has the lease; trying again is of no use.
        """
        if self._connection is None:
            try:
                self._connection = self._connect_once()
            except TransactionAborted:
                # The previous connection hangs in a transaction that holds the lease row.
                # It is killed only when needed: after a restart of the server its id may
                # belong to another connection.
                if not self._last_id:
                    raise
                logger.warning("killing our previous connection %d", self._last_id)
                self._engine.kill([self._last_id])
                self._connection = self._connect_once()

    def _connect_once(self) -> Connection:
        connection = self._engine.connect()
        try:
            self._recorded.enter(connection, self._last_id)
        except BaseException:
            connection.close()
            raise
        return connection

    def write(self, group: Group) -> None:
        """Make ``group`` durable."""
        connection = self._open
        try:
            connection.begin()
            prepares = bool(group.statements or group.entry_ids or group.inbox_entries)
            if prepares:
                self._prepare(connection, group)
            self._insert(connection, group, [] if prepares else group.advances)
            connection.commit()
        except StorageUnavailable:
            self.disconnect()
            raise
        except BaseException:
            connection.rollback()
            raise

    def _prepare(self, connection: Connection, group: Group) -> None:
        """Make the changes that need round trips of their own, after a lease check."""
        check(self._engine, connection, self._lease)
        # Before the statements: one may delete the topic, and with it its staged batches.
        if ids := group.entry_ids:
            inbox.remove(connection, ids)
        if advances := group.advances:
            staged_batch.advance(self._engine.dialect, connection, advances)
        for statement in group.statements:
            _run(connection, statement)
        if inbox_entries := group.inbox_entries:
            inbox.insert(self._engine, connection, inbox_entries, group.accepted_at_ms)

    def _insert(
        self, connection: Connection, group: Group, advances: Sequence[staged_batch.Advance]
    ) -> None:
        """Lock and check the lease and write log and journal in one round trip.

        Args:
          advances: progress of staged batches to record in the same round trip.
        """
        rows, entry = encode_group(group)
        entry_step = journal.insertion(
            self._lease.bundle_id,
            group.lane,
            group.position,
            self._lease.epoch,
            group.accepted_at_ms,
            encode_entry(entry),
        )
        lease_step = question(self._lease, self._engine.dialect.share_lock)
        staged_batch_steps = staged_batch.advancing(self._engine.dialect, advances)
        log_steps = insertion(rows, self._lease.epoch)
        try:
            found = connection.execute_all(
                [lease_step, *staged_batch_steps, *log_steps, entry_step]
            )
        except DuplicateKey:
            check(self._engine, connection, self._lease)  # a new lease holder may own the rows
            raise
        if len(found) <= len(advances):
            check(self._engine, connection, self._lease)  # a row is missing: the lease's?
        answer(self._lease, found[:1])
        staged_batch.check_advanced(advances, found[1:])

    def is_durable(self, group: Group) -> bool:
        """Return whether ``group``, whose COMMIT got no reply, is durable.

        The transaction that wrote it has ended: it held the lease row in share mode, and
        connecting has changed that row since. While this broker has the lease, no other broker
        deletes journal rows, and this broker trims only entries that it knows. So the result
        of reading is final.

        A server may show a commit before it has reached the disk. So a row that is found is
        changed slightly and committed again, which puts everything before it on disk.
        """
        connection = self._open
        key = (self._lease.bundle_id, group.lane, group.seq)
        try:
            with as_owner(self._engine, connection, self._lease):
                found = journal.find(connection, *key)
                if found == group.position.group_id:
                    journal.touch(connection, *key)
        except StorageUnavailable:
            self.disconnect()
            raise
        if found not in (None, group.position.group_id):
            raise StorageError(
                f"entry {group.seq} of journal lane {group.lane} belongs to another group: "
                "another process writes with this broker's epoch"
            )
        return found is not None

    def disconnect(self) -> None:
        """Close the connection; the server rolls back its open transaction."""
        if self._connection is not None:
            self._last_id = self._connection.id
            self._connection.close()
            self._connection = None

    @property
    def _open(self) -> Connection:
        assert self._connection is not None, "a lane writes before it is connected"
        return self._connection


def _run(connection: Connection, statement: Statement) -> None:
    """Run a statement so that its failure rolls back its own changes only."""
    connection.execute("SAVEPOINT statement")
    statement.value = statement.error = None
    try:
        statement.value = statement.run(connection)
    except (StorageUnavailable, TransactionAborted, LeaseLost):
        raise
    except Exception as error:
        connection.execute("ROLLBACK TO SAVEPOINT statement")
        statement.error = error
    connection.execute("RELEASE SAVEPOINT statement")
