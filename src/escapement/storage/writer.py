"""The blocking half of a lane: one database connection and what is written through it.

Everything here runs in a thread, one call at a time; it decides nothing and knows no
event loop. A group is one transaction: lease check, statements, letters out of the inbox
and into it, log rows, journal row, COMMIT, in this order. Whatever is raised, nothing of
the group was committed, except for ``OutcomeUnknown``: then :meth:`Writer.is_durable`
finds out.
"""

from __future__ import annotations

import logging

from escapement.errors import LeaseLost, StorageError, StorageUnavailable
from escapement.storage import inbox, journal
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.group import Group
from escapement.storage.grouprows import encode_group
from escapement.storage.items import Statement
from escapement.storage.journalentry import encode_entry
from escapement.storage.lease import Lease, Recorded, check
from escapement.storage.log import Log

logger = logging.getLogger(__name__)


class Writer:
    """One lane's connection; made once, reconnected as often as needed."""

    def __init__(self, engine: Engine, log: Log, lease: Lease, recorded: Recorded) -> None:
        self._engine = engine
        self._log = log
        self._lease = lease
        self._recorded = recorded
        self._connection: Connection | None = None
        self._last_id = 0  # of the connection before, which may still hang somewhere

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def connect(self) -> None:
        """Have a connection that is proven to be able to write for this lease.

        Raises:
          StorageUnavailable, StorageReadOnly, TransactionAborted: not now.
          LeaseLost: never again.
        """
        if self._connection is None:
            try:
                self._connection = self._connect_once()
            except TransactionAborted:
                # The connection before hangs in a transaction that holds the lease row.
                # It is not ended without need: after a restart of the server its id may
                # be another connection's.
                if not self._last_id:
                    raise
                logger.warning("ending our earlier connection %d", self._last_id)
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
            check(self._engine, connection, self._lease)
            for statement in group.statements:
                _run(connection, statement)
            if ids := group.letter_ids:
                inbox.remove(connection, ids)
            if letters := group.letters:
                inbox.insert(self._engine, connection, letters, group.accepted_at_ms)
            rows, entry = encode_group(group)
            self._log.insert(connection, rows, self._lease.epoch)
            journal.insert(
                connection,
                self._lease.bundle_id,
                group.lane,
                group.position,
                self._lease.epoch,
                group.accepted_at_ms,
                encode_entry(entry),
            )
            connection.commit()
        except StorageUnavailable:
            self.disconnect()
            raise
        except BaseException:
            connection.rollback()
            raise

    def is_durable(self, group: Group) -> bool:
        """Whether ``group``, whose COMMIT got no reply, has been committed.

        The transaction that wrote it has ended: it held the lease row in share mode, and
        connecting has changed that row since. While the lease is ours nobody else
        deletes journal rows, and we trim only what we know. So what is read is final.

        But a server may show a commit before it has reached the disk. So what was found
        is changed a little and committed again, which puts all before it on disk.
        """
        connection = self._open
        key = (self._lease.bundle_id, group.lane, group.seq)
        try:
            connection.begin()
            check(self._engine, connection, self._lease)
            found = journal.find(connection, *key)
            if found == group.group_id:
                journal.touch(connection, *key)
            connection.commit()
        except StorageUnavailable:
            self.disconnect()
            raise
        except BaseException:
            connection.rollback()
            raise
        if found not in (None, group.group_id):
            raise StorageError(
                f"journal lane {group.lane}, entry {group.seq} is another group's: "
                "something else writes with this broker's epoch"
            )
        return found is not None

    def disconnect(self) -> None:
        """Give up the connection; the server rolls back what is open on it."""
        if self._connection is not None:
            self._last_id = self._connection.id
            self._connection.close()
            self._connection = None

    @property
    def _open(self) -> Connection:
        assert self._connection is not None, "a lane writes before it is connected"
        return self._connection


def _run(connection: Connection, statement: Statement) -> None:
    """Run a statement so that its failure takes back its own changes and nothing else."""
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
