"""The blocking half of a lane: one database connection and what is written through it.

Everything here runs in a thread, one call at a time; it decides nothing and knows no
event loop. A group is one transaction: letters out of the inbox, statements, letters into it, the
lease check, how far parcels are, log rows, journal row, COMMIT. From the check on all is sent
together, so a group of messages and acknowledgements waits for the database twice: for that, and
for the COMMIT, which is not sent before the check was passed. What else there is comes after a
check of its own, and with statements so do the parcels.
Whatever is raised, nothing of the group was committed, except for ``OutcomeUnknown``: then
:meth:`Writer.is_durable` finds out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from escapement.errors import LeaseLost, StorageError, StorageUnavailable
from escapement.storage.commit.group import Group
from escapement.storage.commit.grouprows import encode_group
from escapement.storage.commit.items import Statement
from escapement.storage.engine.base import Connection, DuplicateKey, Engine, TransactionAborted
from escapement.storage.engine.landing import Landing
from escapement.storage.engine.transaction import transaction
from escapement.storage.journal import journal
from escapement.storage.journal.journalentry import encode_entry
from escapement.storage.lease import Lease, Recorded, answer, check, question
from escapement.storage.letters import inbox, parcel
from escapement.storage.log.logtable import insertion

logger = logging.getLogger(__name__)

# Rows of a group are put together in memory that the next group uses again; of larger groups
# what does not fit has its own.
_ROW_BYTES: Final = 4 << 20


class Writer:
    """One lane's connection; made once, reconnected as often as needed."""

    def __init__(self, engine: Engine, lease: Lease, recorded: Recorded) -> None:
        self._engine = engine
        self._lease = lease
        self._recorded = recorded
        self._connection: Connection | None = None
        self._rows = Landing(_ROW_BYTES)
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
            prepares = bool(group.statements or group.letter_ids or group.letters)
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
        """Write what takes round trips of its own, and not before the lease was looked at."""
        check(self._engine, connection, self._lease)
        # Before the statements: one may delete the topic, and with it its parcels.
        if ids := group.letter_ids:
            inbox.remove(connection, ids)
        if advances := group.advances:
            parcel.advance(self._engine.dialect, connection, advances)
        for statement in group.statements:
            _run(connection, statement)
        if letters := group.letters:
            inbox.insert(self._engine, connection, letters, group.accepted_at_ms)

    def _insert(
        self, connection: Connection, group: Group, advances: Sequence[parcel.Advance]
    ) -> None:
        """Lock and check the lease, write log and journal: one round trip for all of it.

        Args:
          advances: of parcels, which are noted on the way.
        """
        self._rows.clear()
        rows, entry = encode_group(group, self._rows)
        entry_step = journal.insertion(
            self._lease.bundle_id,
            group.lane,
            group.position,
            self._lease.epoch,
            group.accepted_at_ms,
            encode_entry(entry),
        )
        lease_step = question(self._engine, self._lease)
        parcel_steps = parcel.advancing(self._engine.dialect, advances)
        log_steps = insertion(rows, self._lease.epoch)
        try:
            found = connection.execute_all([lease_step, *parcel_steps, *log_steps, entry_step])
        except DuplicateKey:
            check(self._engine, connection, self._lease)  # they are its who has it now
            raise
        if len(found) <= len(advances):
            check(self._engine, connection, self._lease)  # some row is gone: is it the lease's?
        answer(self._lease, found[:1])
        parcel.check_advanced(advances, found[1:])

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
            with transaction(connection):
                check(self._engine, connection, self._lease)
                found = journal.find(connection, *key)
                if found == group.group_id:
                    journal.touch(connection, *key)
        except StorageUnavailable:
            self.disconnect()
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
