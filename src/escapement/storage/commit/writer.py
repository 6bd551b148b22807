"""The blocking half of a lane of the commit pipeline: its connection, and the writing of groups.

Everything here runs in a thread, one call at a time. The lane (storage/commit/lane.py) decides what
to call. A *group* is a group commit: one transaction, which writes in this order:

1. Delete inbox entries that move to the log, run the submitted statements, insert new inbox
   entries. This step begins with a lease check of its own. A group without any of these skips it.
2. Check the lease, record the progress of staged batches, insert new producers, the log rows and
   the journal row. All of this is sent together, and waits for the database once. If the group has
   step 1, the progress of staged batches is recorded there.
3. COMMIT. It is sent only after the lease check has passed.

So a group of messages and acknowledgements waits for the database twice. If a method raises, the
group is not committed, with one exception: after ``OutcomeUnknown`` it may be, and
:meth:`Writer.is_durable` finds out.
"""

from __future__ import annotations

from collections.abc import Sequence

from escapement.errors import LeaseLost, OutcomeUnknown, StorageError, StorageUnavailable
from escapement.event_log import EventLog
from escapement.failpoints import failpoint
from escapement.storage import members
from escapement.storage.catalog import producers
from escapement.storage.commit.group import Group
from escapement.storage.commit.group_rows import encode_group
from escapement.storage.commit.items import Statement
from escapement.storage.engine.base import (
    Connection,
    DuplicateKey,
    Engine,
    Step,
    TransactionAborted,
)
from escapement.storage.inbox import inbox, staged_batch
from escapement.storage.journal import journal
from escapement.storage.journal.entry import encode_entry
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.lease import Lease, answer, as_owner, check, enter, question
from escapement.storage.log.log_table import insertion

_log = EventLog(__name__)


class Writer:
    """The database connection of one lane. It is opened again whenever it was lost."""

    def __init__(self, engine: Engine, lease: Lease, lane: int, last: JournalPosition) -> None:
        """Keep what a lane writes with, without connecting.

        Args:
          last: the position of the lane's last group commit.
        """
        self.lease = lease
        self.lane = lane
        self.last = last  # the position of the lane's last group commit
        self._engine = engine
        self._connection: Connection | None = None
        # Ids of earlier connections, which the server may still have open.
        self._lost_ids: set[int] = set()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def connect(self) -> None:
        """Connect to the database, if not connected, and check that it accepts this owner's writes.

        The server may have been replaced by a replica that is behind, or restored from a backup,
        with the lease of this start. So also check that the database has the lane's last group.

        Raises:
          LogDamaged: the database has lost the lane's last group.
          StorageUnavailable, StorageReadOnly, TransactionAborted: try again later.
          LeaseLost: another broker has the lease, so do not try again.
        """
        if self._connection is None:
            try:
                self._connection = self._connect_once()
            except TransactionAborted:
                # A previous connection hangs in a transaction that locks the lease row. Kill it
                # only now that this is known: after a restart of the server its id may belong to
                # another connection.
                if not self._lost_ids:
                    raise
                for id in self._lost_ids:
                    _log.warning(
                        "commit.connection_killed",
                        "killing our previous connection %d",
                        id,
                        mysql_connection=id,
                    )
                self._engine.kill(sorted(self._lost_ids))
                self._connection = self._connect_once()
            self._lost_ids.clear()

    def _connect_once(self) -> Connection:
        connection = self._engine.connect()
        try:
            enter(self._engine, connection, self.lease, self._lost_ids)
            connection.snapshot()  # a checkpoint may trim the journal between two reads
            journal.require(connection, self.lease.bundle_id, {self.lane: self.last})
            connection.rollback()
        except BaseException as error:
            connection.close()
            if isinstance(error, OutcomeUnknown):
                # Only the list of connections is in doubt. The next attempt writes it again.
                raise StorageUnavailable(str(error)) from error
            raise
        return connection

    def write(self, group: Group) -> None:
        """Write a group in one transaction and commit it.

        Raises:
          OutcomeUnknown: the COMMIT got no reply; see :meth:`is_durable`.
          LeaseLost: another broker has the lease.
          StorageUnavailable, StorageReadOnly, TransactionAborted: try again later.
        """
        connection = self._open
        try:
            connection.begin()
            if group.prepares:
                self._prepare(connection, group)
            self._insert(connection, group, [] if group.prepares else group.advances)
            commit(connection, [group])
            self.last = group.position
        except StorageUnavailable:
            self.disconnect()
            raise
        except BaseException:
            connection.rollback()
            raise

    def _prepare(self, connection: Connection, group: Group) -> None:
        """Check the lease, then make the changes of a group that come before its log rows.

        These are inbox entries, the progress of staged batches, and submitted statements.
        """
        check(self._engine, connection, self.lease)
        # Inbox entries and staged batches come before the statements, because a statement may
        # delete a topic with its staged batches.
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
        """Check the lease and insert new producers, log rows and the journal row, sent together.

        Args:
          advances: progress of staged batches to record at the same time.
        """
        lease_step = question(self.lease, self._engine.dialect.share_lock)
        staged_batch_steps = staged_batch.advancing(self._engine.dialect, advances)
        inserted = insertions(self.lease, group)
        try:
            found = connection.execute_all([lease_step, *staged_batch_steps, *inserted])
        except DuplicateKey:
            # Another broker that has taken the lease may have written rows with these keys.
            check(self._engine, connection, self.lease)
            raise
        if len(found) <= len(advances):
            # A row is missing: that of the lease or that of a staged batch.
            check(self._engine, connection, self.lease)
        answer(self.lease, found[:1])
        staged_batch.check_advanced(advances, found[1:])

    def is_durable(self, group: Group) -> bool:
        """Return whether a group whose COMMIT got no reply is durable.

        It is if the journal has the group's row. The result is final, because the transaction that
        wrote the row has ended: it locked the lease row in share mode, and connecting again has
        locked that row for itself since. While this broker has the lease, no other broker deletes
        journal rows, and this broker deletes only rows of groups that it knows to be durable.

        A server may show a commit before it is on disk. So a row that is found is changed slightly
        and committed again, which puts both commits on disk.
        """
        connection = self._open
        key = (self.lease.bundle_id, group.lane, group.seq)
        try:
            with as_owner(self._engine, connection, self.lease):
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
        if found is not None:
            self.last = group.position
        return found is not None

    def disconnect(self) -> None:
        """Close the connection. The server rolls back its open transaction."""
        if self._connection is not None:
            self._note(self._connection.id)
            self._connection.close()
            self._connection = None

    def lost(self, connection_id: int) -> None:
        """Note that a group may hang in a transaction of a connection that was shared.

        The next connection of the lane locks the lease row, and thereby waits for its end. Until
        then the lane has no connection.
        """
        members.list_for(self.lease.member, self.lease.bundle_id, connection_id)
        self.disconnect()
        self._note(connection_id)

    def _note(self, lost_id: int) -> None:
        if lost_id:
            self._lost_ids.add(lost_id)

    @property
    def _open(self) -> Connection:
        assert self._connection is not None, "a lane writes before it is connected"
        return self._connection


def insertions(lease: Lease, group: Group) -> list[Step]:
    """Return the insertions of a group: its new producers, its log rows and its journal row.

    Encodes the group, so call this in a thread.
    """
    rows, entry = encode_group(group)
    return [
        *producers.insertion(group.new_producers, group.accepted_at_ms),
        *insertion(rows, lease.epoch),
        journal.insertion(
            lease.bundle_id,
            group.lane,
            group.position,
            lease.epoch,
            group.accepted_at_ms,
            encode_entry(entry),
        ),
    ]


def commit(connection: Connection, groups: Sequence[Group]) -> None:
    """Commit the open transaction, which has written these groups."""
    failpoint("before_commit")
    if any(group.acks for group in groups):
        failpoint("ack_commit")
    connection.commit()
    failpoint("after_commit")


def _run(connection: Connection, statement: Statement) -> None:
    """Run a submitted statement, and store its result in it.

    If the statement raises, only its own changes are rolled back, and the exception is stored.
    Errors of the connection, the transaction or the lease are raised.
    """
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
