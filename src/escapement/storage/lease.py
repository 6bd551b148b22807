"""The lease on a bundle of topics, and the epoch that proves the right to write.

Owns the table ``leases``. A *bundle* is a set of topics that one broker owns. A new database has
one bundle, with id 0 (storage/bundles.py). The *owner* is the process that has the lease of the
bundle. A lease has no time of its own: it holds while the row of its owner in ``brokers`` is valid
(storage/members.py). Only taking and releasing a bundle write its row, so group commits do not wait
for renewals. A lease may be taken if it was released, or if its owner's row is missing, expired, or
of another incarnation than the lease names. A restarted broker registers again, as a new
incarnation, so it takes back its own bundles at once. The *epoch* is a number that grows with each
acquisition.

**The epoch decides, not the time.** A transaction that writes begins by locking the lease row in
share mode and comparing the epoch (:func:`check`). (A group commit sends its writes together with
this check, and rolls back if the epoch differs.) Acquiring the lease changes that row, so it waits
until such a transaction has ended. Afterwards no transaction with the old epoch passes the check.
So a former owner changes nothing, however late it resumes (invariant 8). An owner whose lease has
expired may therefore go on writing until another broker takes the lease. But it must not *deliver*
past its deadline, because a successor may already deliver the same messages. The owner counts that
deadline from *before* it sent the renewal, on a clock that also runs while the machine sleeps.

Taking a bundle locks the row of its owner in ``brokers``, and then the lease row. It kills the
connections that a dead owner has listed, because a connection that hangs inside a transaction would
block it.

The lease also bounds the messages that an earlier owner may have delivered without recording it in
the database: they were due by ``doubtful_until_ms``, and the subscription existed when that owner
ended uncleanly, so its id is below ``doubtful_below_id``. The new owner marks these messages as
redelivered. (Ids, not times of creation, because the wall clock may be set back.) Taking a bundle
includes the last time at which its owner was alive, which is in the row of the owner.

**Older versions.** A broker before migration 15 renews ``expires_at_ms`` of the lease itself and
sets no incarnation. Its lease is valid until that time. While a broker of this version owns the
bundle, ``expires_at_ms`` is ``UNTIL_RELEASED``, so that an older broker does not take it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from escapement.clock import Clock
from escapement.errors import EscapementError, LeaseHeld, LeaseLost, StorageError
from escapement.failpoints import failpoint
from escapement.storage import members
from escapement.storage.engine.base import Connection, Engine, Row, Step, TransactionAborted
from escapement.storage.engine.transaction import transaction
from escapement.storage.members import Identity as Identity
from escapement.storage.members import Member

# ``expires_at_ms`` of a lease whose owner is a member: the end of the year 9999, because an older
# broker shows it as a date.
UNTIL_RELEASED: Final = 253_402_300_799_000


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that this broker has acquired."""

    bundle_id: int
    member: Member  # the process that has the lease
    epoch: int
    was_clean: bool  # whether the previous owner stopped cleanly
    # Subscriptions with lower ids may have had messages that no record says they had.
    doubtful_below_id: int
    # If the previous owner stopped cleanly: earlier owners may have delivered messages due until
    # this time without a record. If not: the last time that the previous owner recorded while it
    # was alive, by its wall clock.
    doubtful_until_ms: int
    former_owner_id: str = ""  # the previous owner; "" if there was none

    @property
    def identity(self) -> Identity:
        return self.member.identity

    @property
    def deadline_ms(self) -> int:
        """When the lease expires, by ``Clock.lease_ms``."""
        return self.member.deadline_ms

    def delivered_until_ms(self, now_ms: int) -> int:
        """Return the due time up to which earlier owners may have made unrecorded deliveries.

        If the previous owner did not stop cleanly, this is ``now_ms``, the time of the start. If
        the wall clock has been set back since that owner was last known to be alive, it is that
        time plus the duration of the lease.
        """
        if self.was_clean:
            return self.doubtful_until_ms
        if self.doubtful_until_ms > now_ms:
            return self.doubtful_until_ms + self.member.duration_ms
        return now_ms


def acquire(
    engine: Engine, identity: Identity, duration_ms: int, clock: Clock, bundle_id: int = 0
) -> Lease:
    """Register this process as a member that has one bundle, and take the bundle. Blocking.

    Raises:
      LeaseHeld: as :func:`take`, and if a process with the same identity is alive elsewhere.
      TransactionAborted: if a row stays locked.
    """
    member = members.register(engine, identity, duration_ms, clock)
    try:
        return take(engine, member, clock, bundle_id)
    except BaseException:
        # If the database fails meanwhile, the row expires.
        with suppress(EscapementError), closing(engine.connect()) as connection:
            members.leave(connection, member)
        raise


def take(engine: Engine, member: Member, clock: Clock, bundle_id: int = 0) -> Lease:
    """Take the lease of a bundle, with the next epoch. Kill the connections of a dead owner.

    Blocking. A member that has the lease already gets it with the next epoch. It must have ended
    what used the old one.

    Raises:
      LeaseHeld: if another broker's lease is valid. The message names that broker.
      LeaseLost: if a later process with the identity of the member has registered.
      TransactionAborted: if the lease row stays locked.
    """
    with closing(engine.connect()) as connection:

        def attempt() -> Lease:
            before = _takeable(engine, connection, member.identity, bundle_id)
            if (before.owner_id, before.incarnation) == member.key:
                members.kill_own(engine, connection, member, bundle_id)
            else:
                members.kill(engine, connection, before.connection_ids)
            return _take(engine, connection, member, bundle_id, before, clock.now_ms())

        lease = members.patiently(engine, attempt)
    members.forget_connections(member, bundle_id)
    failpoint("take_over")
    return lease


def renew(
    engine: Engine, connection: Connection, lease: Lease, clock: Clock, seen_ms: int = 0
) -> Lease:
    """Renew the membership of a process that has one bundle. Return its lease. Blocking.

    Args:
      seen_ms: as for ``members.renew``.

    Raises:
      LeaseLost: if another broker, or a later start of this one, has taken the lease.
    """
    renewal = members.renew(engine, connection, lease.member, clock, seen_ms=seen_ms)
    found = renewal.leases.get(lease.bundle_id)
    answer(lease, [found] if found else [])
    lease.member.deadline_ms = renewal.deadline_ms
    return lease


def release(
    engine: Engine,
    connection: Connection,
    lease: Lease,
    *,
    clean: bool,
    doubtful_until_ms: int = 0,
) -> None:
    """Release the lease, so that any broker may take it at once. Blocking.

    Args:
      clean: whether all deliveries of this owner are recorded in the database.
      doubtful_until_ms: the due time up to which earlier owners may have delivered messages without
        a record.

    Raises:
      LeaseLost: if another broker, or a later start of this one, has taken the lease.
    """
    with transaction(connection):
        answer(lease, connection.execute_all([question(lease, engine.dialect.update_lock)]))
        _free(connection, lease.bundle_id, clean=clean, doubtful_until_ms=doubtful_until_ms)
    members.forget_connections(lease.member, lease.bundle_id)


def let_go(engine: Engine, member: Member, bundle_id: int, seen_ms: int) -> bool:
    """Release a bundle whose broker has ended, if the lease still names this process. Blocking.

    The next owner treats it like the bundle of a process that was killed. The epoch stays, so a
    transaction of the ended broker may still commit before another process takes the bundle, and
    that process reads it. The connections of the ended broker are killed, because one that hangs
    inside a transaction would block the row.

    Args:
      member: this process. No thread of it uses the bundle any more.
      seen_ms: the present time, or what the wall clock would show if it had not been set back.

    Returns:
      Whether the lease named this process.

    Raises:
      TransactionAborted: if the lease row stays locked.
    """
    with closing(engine.connect()) as connection:
        members.kill_own(engine, connection, member, bundle_id)
        with transaction(connection):
            _lock_row(engine, connection, bundle_id)
            row = look(engine, connection, bundle_id)
            if row is None or (row.owner_id, row.incarnation) != member.key:
                return False
            until_ms = max(row.doubtful_until_ms, seen_ms)
            _free(connection, bundle_id, clean=False, doubtful_until_ms=until_ms)
    members.forget_connections(member, bundle_id)
    return True


def _free(connection: Connection, bundle_id: int, *, clean: bool, doubtful_until_ms: int) -> None:
    """Write into the locked lease row that any broker may take the bundle."""
    connection.execute(
        "UPDATE leases SET expires_at_ms = 0, incarnation = '', connection_ids = '',"
        " clean = ?, doubtful_until_ms = ? WHERE bundle_id = ?",
        (int(clean), doubtful_until_ms, bundle_id),
    )


def enter(
    engine: Engine, connection: Connection, lease: Lease, replaces: Collection[int] = ()
) -> None:
    """Prepare a connection to write under the lease. Blocking; safe to call in any thread.

    The connection is listed in the row of the owner, and the database is checked: that it can be
    reached, accepts writes, and names no other owner. When this returns, all transactions under the
    lease that began before have ended, except those of other connections that are listed.

    Args:
      replaces: ids of closed connections. They leave the list only now that none of them hangs in a
        transaction. The row has them until the next connection is listed.
    """
    members.record(engine, connection, lease.member, lease.bundle_id)
    # A transaction of its own, so that a renewal does not wait while this waits for the lease row.
    with transaction(connection):
        answer(lease, connection.execute_all([question(lease, engine.dialect.update_lock)]))
    members.unlist(lease.member, lease.bundle_id, replaces)


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


class LeaseRow(NamedTuple):
    """The row of a lease, with what the row of its owner says, and the time of the reading."""

    owner_id: str
    owner_name: str
    incarnation: str  # "" if no process has the lease, or one of an older version
    epoch: int
    expires_at_ms: int  # by the database's clock; 0 or less if no broker has the lease
    clean: int
    connection_ids: str
    # As ``Lease.doubtful_until_ms``. After an unclean end it is not before the last time at which
    # the owner was alive.
    doubtful_until_ms: int
    doubtful_below_id: int
    now_ms: int  # the present time, by the database's clock

    @property
    def left_ms(self) -> int:
        """The time until the lease expires; 0 or less if it has expired or was released."""
        return self.expires_at_ms - self.now_ms


def look(engine: Engine, connection: Connection, bundle_id: int = 0) -> LeaseRow | None:
    """Return the row of a lease, or None if it is lost. Changes nothing."""
    found = connection.execute(
        "SELECT leases.owner_id, owner_name, leases.incarnation, epoch,"
        f" CASE WHEN leases.expires_at_ms <> {UNTIL_RELEASED} THEN leases.expires_at_ms"
        " ELSE COALESCE(brokers.expires_at_ms, 0) END, clean,"
        f" CASE WHEN leases.expires_at_ms <> {UNTIL_RELEASED} THEN leases.connection_ids"
        " ELSE COALESCE(brokers.connection_ids, '') END,"
        " CASE WHEN clean = 0 AND brokers.seen_ms > doubtful_until_ms THEN brokers.seen_ms"
        f" ELSE doubtful_until_ms END, doubtful_below_id, {engine.dialect.now_ms}"
        " FROM leases LEFT JOIN brokers ON brokers.owner_id = leases.owner_id"
        " AND brokers.incarnation = leases.incarnation WHERE bundle_id = ?",
        (bundle_id,),
    ).rows
    return LeaseRow(*found[0]) if found else None


def pin(connection: Connection, bundle_id: int, owner_id: str) -> None:
    """Note the owner that an operator wants for a bundle; "" for any. Blocking.

    The epoch stays, so the present owner goes on until it releases the bundle.
    """
    with transaction(connection):
        connection.execute(
            "UPDATE leases SET pinned_to = ? WHERE bundle_id = ?", (owner_id, bundle_id)
        )


def restore(
    engine: Engine, connection: Connection, identity: Identity, epoch: int, bundle_id: int = 0
) -> None:
    """Create the row of a lost lease, or raise its epoch to at least ``epoch``.

    Raises:
      LeaseHeld: if another broker's lease has not expired.
    """
    with transaction(connection):
        if not _lock_row(engine, connection, bundle_id):
            connection.execute(
                "INSERT INTO leases (bundle_id, owner_id, owner_name, epoch, expires_at_ms, clean,"
                " doubtful_until_ms, doubtful_below_id, connection_ids)"
                " VALUES (?, '', '', ?, 0, 0, 0, 0, '')",
                (bundle_id, epoch),
            )
            return
        _takeable(engine, connection, identity, bundle_id)
        connection.execute(
            "UPDATE leases SET epoch = ? WHERE bundle_id = ? AND epoch < ?",
            (epoch, bundle_id, epoch),
        )


def _lock_row(engine: Engine, connection: Connection, bundle_id: int) -> bool:
    """Lock the lease row in the open transaction. Return whether it exists."""
    lock = engine.dialect.update_lock
    sql = f"SELECT 1 FROM leases WHERE bundle_id = ?{lock}"
    return bool(connection.execute(sql, (bundle_id,)).rows)


def _takeable(
    engine: Engine, connection: Connection, identity: Identity, bundle_id: int
) -> LeaseRow:
    """Read the lease row and return it. Raises ``LeaseHeld`` if another broker's lease is valid."""
    row = look(engine, connection, bundle_id)
    if row is None:
        raise StorageError(
            f"the table leases has no row of bundle {bundle_id}. Run escapement check --repair"
        )
    if row.owner_id != identity.owner_id and row.left_ms > 0:
        raise LeaseHeld(
            f"broker {row.owner_name!r} ({row.owner_id}) owns bundle {bundle_id}"
            f" {members.until(row.expires_at_ms, row.left_ms)}"
        )
    return row


def _take(
    engine: Engine,
    connection: Connection,
    member: Member,
    bundle_id: int,
    seen: LeaseRow,
    now_ms: int,
) -> Lease:
    """Write the new owner and the next epoch into the lease row, and return the lease.

    Args:
      seen: the row as it was a moment ago.
    """
    with transaction(connection):
        members.lock_owner(engine, connection, member, seen.owner_id, seen.incarnation)
        _lock_row(engine, connection, bundle_id)
        row = _takeable(engine, connection, member.identity, bundle_id)
        if (row.owner_id, row.incarnation) != (seen.owner_id, seen.incarnation):
            raise TransactionAborted(f"another broker took bundle {bundle_id} meanwhile")
        below_id = row.doubtful_below_id
        if not row.clean:
            (found,) = connection.execute("SELECT MAX(id) FROM subscriptions").rows
            below_id = 1 + (found[0] or 0)
        lease = Lease(
            bundle_id,
            member,
            row.epoch + 1,
            bool(row.clean),
            below_id,
            row.doubtful_until_ms,
            row.owner_id,
        )
        connection.execute(
            "UPDATE leases SET owner_id = ?, owner_name = ?, incarnation = ?, epoch = ?,"
            " clean = 0, doubtful_until_ms = ?, doubtful_below_id = ?, connection_ids = '',"
            " expires_at_ms = ? WHERE bundle_id = ?",
            (
                member.identity.owner_id,
                member.identity.name,
                member.incarnation,
                lease.epoch,
                max(row.doubtful_until_ms, now_ms),
                below_id,
                UNTIL_RELEASED,
                bundle_id,
            ),
        )
    return lease
