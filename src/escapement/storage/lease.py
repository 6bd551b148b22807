"""The lease on a bundle of topics, and the epoch that proves the right to write.

Owns the table ``leases``. A *bundle* is a set of topics that one broker owns. A new database has
one bundle, with id 0 (storage/bundles.py). The *owner* is the broker that has the lease of the
bundle. A broker's identity is in its data directory, so a restarted broker takes back its own lease
at once. It takes another broker's lease only after that has expired *by the database's clock*. The
*epoch* is a number that grows with each acquisition.

**The epoch decides, not the time.** A transaction that writes begins by locking the lease row in
share mode and comparing the epoch (:func:`check`). (A group commit sends its writes together with
this check, and rolls back if the epoch differs.) Acquiring the lease changes that row, so it waits
until such a transaction has ended. Afterwards no transaction with the old epoch passes the check.
So a former owner changes nothing, however late it resumes (invariant 8). An owner whose lease has
expired may therefore go on writing until another broker takes the lease. But it must not *deliver*
past its deadline, because a successor may already deliver the same messages. The owner counts that
deadline from *before* it sent the renewal, on a clock that also runs while the machine sleeps.

The lease row lists the ids of the connections that the owner writes through. A successor kills
them, because a connection that hangs inside a transaction would block it.

The lease also bounds the messages that an earlier owner may have delivered without recording it in
the database: they were due by ``doubtful_until_ms``, and the subscription existed when that owner
ended uncleanly, so its id is below ``doubtful_below_id``. The new owner marks these messages as
redelivered. (Ids, not times of creation, because the wall clock may be set back.)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from escapement.clock import Clock
from escapement.errors import LeaseHeld, LeaseLost, StorageError
from escapement.failpoints import failpoint
from escapement.storage.engine.base import Connection, Engine, Row, Step, TransactionAborted
from escapement.storage.engine.transaction import transaction

# Limit of connection ids in the lease row. Each takes up to 20 digits and a comma in a column of
# 2000 characters.
MAX_RECORDED: Final = 90
# How long a broker tries to take the lease while a transaction of the previous owner locks the
# lease row. Each try waits for ``Engine.lock_wait_s``.
TAKE_WAIT_S: Final = 25


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a broker: an id that outlives its process, and a name for people to read."""

    owner_id: str
    name: str


# SQL assignment that raises ``doubtful_until_ms`` to a time at which the owner was alive. It never
# lowers the column, because the wall clock may have been set back.
_SEEN: Final = (
    "doubtful_until_ms = CASE WHEN doubtful_until_ms < ? THEN ? ELSE doubtful_until_ms END"
)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that this broker has acquired."""

    bundle_id: int
    identity: Identity
    epoch: int
    was_clean: bool  # whether the previous owner stopped cleanly
    # Subscriptions with lower ids may have had messages that no record says they had.
    doubtful_below_id: int
    # If the previous owner stopped cleanly: earlier owners may have delivered messages due until
    # this time without a record. If not: the last time that the previous owner recorded while it
    # was alive, by its wall clock.
    doubtful_until_ms: int
    duration_ms: int
    deadline_ms: int  # when the lease expires, by ``Clock.lease_ms``

    def delivered_until_ms(self, now_ms: int) -> int:
        """Return the due time up to which earlier owners may have made unrecorded deliveries.

        If the previous owner did not stop cleanly, this is ``now_ms``, the time of the start. If
        the wall clock has been set back since that owner was last known to be alive, it is that
        time plus the duration of the lease.
        """
        if self.was_clean:
            return self.doubtful_until_ms
        if self.doubtful_until_ms > now_ms:
            return self.doubtful_until_ms + self.duration_ms
        return now_ms


def acquire(
    engine: Engine, identity: Identity, duration_ms: int, clock: Clock, bundle_id: int = 0
) -> Lease:
    """Take the lease of a bundle, with the next epoch. Kill the previous owner's connections.

    Raises:
      LeaseHeld: if another broker's lease has not expired. The message names that broker.
      TransactionAborted: if the lease row stays locked.
    """
    with closing(engine.connect()) as connection:
        attempts = TAKE_WAIT_S // engine.lock_wait_s
        for attempt in range(attempts):
            sent_at_ms = clock.lease_ms()
            before = _takeable(engine, connection, identity, bundle_id, "")
            ids = [int(text) for text in before.connection_ids.split(",") if text]
            engine.kill([id for id in ids if id != connection.id])
            try:
                before, below_id = _take(
                    engine, connection, identity, duration_ms, bundle_id, clock.now_ms()
                )
            except TransactionAborted:
                if attempt == attempts - 1:
                    raise
                continue
            failpoint("take_over")
            return Lease(
                bundle_id,
                identity,
                before.epoch + 1,
                bool(before.clean),
                below_id,
                before.doubtful_until_ms,
                duration_ms,
                sent_at_ms + duration_ms,
            )
        raise AssertionError("unreachable")


def renew(
    engine: Engine, connection: Connection, lease: Lease, clock: Clock, seen_ms: int = 0
) -> Lease:
    """Extend the lease to its ``duration_ms`` from now. Return it with its new deadline.

    Args:
      seen_ms: the time that the wall clock would show if it had not been set back. The lease row
        records this time, or the present time if that is later, as the last one at which the owner
        was alive.

    Raises:
      LeaseLost: if another broker, or a later start of this one, has taken the lease.
    """
    sent_at_ms, seen_ms = clock.lease_ms(), max(clock.now_ms(), seen_ms)
    _change(
        engine,
        connection,
        lease,
        f"expires_at_ms = {engine.dialect.now_ms} + ?, {_SEEN}",
        (lease.duration_ms, seen_ms, seen_ms),
    )
    return replace(lease, deadline_ms=sent_at_ms + lease.duration_ms)


def release(
    engine: Engine,
    connection: Connection,
    lease: Lease,
    *,
    clean: bool,
    doubtful_until_ms: int = 0,
) -> None:
    """Release the lease, so that any broker may take it at once.

    Args:
      clean: whether all deliveries of this owner are recorded in the database.
      doubtful_until_ms: the due time up to which earlier owners may have delivered messages without
        a record.
    """
    _change(
        engine,
        connection,
        lease,
        "expires_at_ms = 0, connection_ids = '', clean = ?, doubtful_until_ms = ?",
        (int(clean), doubtful_until_ms),
    )


def check(engine: Engine, connection: Connection, lease: Lease) -> None:
    """Check, inside the open transaction, that this broker still has the lease, by its epoch.

    Until the transaction ends, no other broker can take the lease. Raises ``LeaseLost``.
    """
    answer(lease, connection.execute_all([question(lease, engine.dialect.share_lock)]))


@contextmanager
def as_owner(engine: Engine, connection: Connection, lease: Lease) -> Iterator[None]:
    """Run the ``with`` block in a transaction that begins with :func:`check`.

    Raises:
      LeaseLost: if the broker does not have the lease any more.
    """
    with transaction(connection):
        check(engine, connection, lease)
        yield


def question(lease: Lease, lock: str) -> Step:
    """Return the query that :func:`check` sends, so that it can be sent together with others.

    Pass the row that it returns to :func:`answer`. ``lock`` is the engine's word for the lock on
    the lease row.
    """
    sql = f"SELECT epoch, owner_name FROM leases WHERE bundle_id = ?{lock}"
    return Step(sql, [(lease.bundle_id,)])


def answer(lease: Lease, rows: Sequence[Row]) -> None:
    """Raise ``LeaseLost`` unless the row that :func:`question` returned has the lease's epoch."""
    if not rows or rows[0][0] != lease.epoch:
        holder = f"broker {rows[0][1]!r} has it with epoch {rows[0][0]}" if rows else "it is gone"
        raise LeaseLost(
            f"broker {lease.identity.name!r} no longer holds the lease of bundle "
            f"{lease.bundle_id} (epoch {lease.epoch}): {holder}"
        )


class Recorded:
    """The list of connections in the lease row, through which this owner writes.

    Safe to use from several threads. A lock makes updates wait for each other, so the lease row
    always has the latest list.
    """

    def __init__(self, engine: Engine, lease: Lease) -> None:
        self._engine = engine
        self._lease = lease
        self._ids: set[int] = set()
        self._lock = threading.Lock()

    def enter(self, connection: Connection, replaces: int = 0) -> None:
        """Add a connection to the list in the lease row.

        Writing the lease row also checks the database. It raises an error if the database cannot be
        reached, accepts no writes, or names another owner. The row always changes, because SQLite
        writes nothing to the disk if a row gets the values that it has: the database lets the lease
        expire 1 ms later.

        Args:
          replaces: id of a closed connection to remove from the list; 0 for none.
        """
        with self._lock:
            self._ids = {id for id in (self._ids - {replaces}) | {connection.id} if id}
            text = ",".join(map(str, sorted(self._ids)[-MAX_RECORDED:]))
            changes = "connection_ids = ?, expires_at_ms = expires_at_ms + 1"
            _change(self._engine, connection, self._lease, changes, (text,))


class LeaseRow(NamedTuple):
    """The row of a lease, and the time when it was read."""

    owner_id: str
    owner_name: str
    epoch: int
    expires_at_ms: int
    clean: int
    connection_ids: str
    doubtful_until_ms: int
    doubtful_below_id: int
    now_ms: int  # the present time, by the database's clock

    @property
    def left_ms(self) -> int:
        """The time until the lease expires; 0 or less if it has expired or was released."""
        return self.expires_at_ms - self.now_ms


def look(
    engine: Engine, connection: Connection, bundle_id: int = 0, lock: str = ""
) -> LeaseRow | None:
    """Return the row of a lease, or None if it is lost. Changes nothing.

    ``lock`` is the engine's word for a lock on the row, or "".
    """
    found = connection.execute(
        "SELECT owner_id, owner_name, epoch, expires_at_ms, clean, connection_ids,"
        f" doubtful_until_ms, doubtful_below_id, {engine.dialect.now_ms}"
        f" FROM leases WHERE bundle_id = ? {lock}",
        (bundle_id,),
    ).rows
    return LeaseRow(*found[0]) if found else None


def restore(
    engine: Engine, connection: Connection, identity: Identity, epoch: int, bundle_id: int = 0
) -> None:
    """Create the row of a lost lease, or raise its epoch to at least ``epoch``.

    Raises:
      LeaseHeld: if another broker's lease has not expired.
    """
    with transaction(connection):
        if look(engine, connection, bundle_id, engine.dialect.update_lock) is None:
            connection.execute(
                "INSERT INTO leases (bundle_id, owner_id, owner_name, epoch, expires_at_ms, clean,"
                " doubtful_until_ms, doubtful_below_id, connection_ids)"
                " VALUES (?, '', '', ?, 0, 0, 0, 0, '')",
                (bundle_id, epoch),
            )
            return
        _takeable(engine, connection, identity, bundle_id, "")
        connection.execute(
            "UPDATE leases SET epoch = ? WHERE bundle_id = ? AND epoch < ?",
            (epoch, bundle_id, epoch),
        )


def _takeable(
    engine: Engine, connection: Connection, identity: Identity, bundle_id: int, lock: str
) -> LeaseRow:
    """Read the lease row and return it. Raises ``LeaseHeld`` if another broker's lease is valid.

    ``lock`` is the engine's word for a lock on the row, or "".
    """
    row = look(engine, connection, bundle_id, lock)
    if row is None:
        raise StorageError(
            f"the table leases has no row of bundle {bundle_id}. Run escapement check --repair"
        )
    if row.owner_id != identity.owner_id and row.left_ms > 0:
        until = datetime.fromtimestamp(row.expires_at_ms / 1000, UTC).isoformat(timespec="seconds")
        left_s = (row.left_ms + 999) // 1000
        raise LeaseHeld(
            f"broker {row.owner_name!r} ({row.owner_id}) owns this log until {until}, another "
            f"{left_s} s unless it renews; stop it, or give this broker a log of"
            " its own"
        )
    return row


def _take(
    engine: Engine,
    connection: Connection,
    identity: Identity,
    duration_ms: int,
    bundle_id: int,
    now_ms: int,
) -> tuple[LeaseRow, int]:
    """Write the new owner and the next epoch into the lease row.

    Returns:
      The row as it was before, and the new ``doubtful_below_id`` (see the docstring of
      the module).
    """
    with transaction(connection):
        lock = engine.dialect.update_lock
        row = _takeable(engine, connection, identity, bundle_id, lock)
        below_id = row.doubtful_below_id
        if not row.clean:
            (found,) = connection.execute("SELECT MAX(id) FROM subscriptions").rows
            below_id = 1 + (found[0] or 0)
        connection.execute(
            "UPDATE leases SET owner_id = ?, owner_name = ?, epoch = ?, clean = 0,"
            f" doubtful_below_id = ?, connection_ids = '', {_SEEN},"
            f" expires_at_ms = {engine.dialect.now_ms} + ? WHERE bundle_id = ?",
            (
                identity.owner_id,
                identity.name,
                row.epoch + 1,
                below_id,
                now_ms,
                now_ms,
                duration_ms,
                bundle_id,
            ),
        )
    return row, below_id


def _change(
    engine: Engine, connection: Connection, lease: Lease, what: str, params: tuple[object, ...]
) -> None:
    """Change the lease row in a transaction of its own. Raises ``LeaseLost``.

    ``what`` is the assignments of an SQL UPDATE, and ``params`` are their parameters.
    """
    with transaction(connection):
        answer(lease, connection.execute_all([question(lease, engine.dialect.update_lock)]))
        connection.execute(
            f"UPDATE leases SET {what} WHERE bundle_id = ? AND epoch = ?",
            (*params, lease.bundle_id, lease.epoch),
        )
