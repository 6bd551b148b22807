"""The processes that work on the database, and which of them are alive.

Owns the table ``brokers``. Each process that owns bundles of topics is a *member*: it has a row
under its identity, and renews it three times in the duration of a lease. The row is *valid* until
it expires by the database's clock. The leases of bundles (storage/lease.py) name their owner and
its *incarnation*, which is random for each process. A lease holds as long as the row of its owner
is valid and has the same incarnation. So a renewal writes one row, which no group commit locks.

**A renewal locks its row, and so does a process that takes a bundle from the member.** Either the
renewal is first, and the other process sees a valid row. Or the other process is first, and the
renewal sees the raised epoch. For the same reason, a process that takes a bundle creates the row of
its owner, expired, if it is missing: one cannot lock a row that does not exist.

The identity of a process is in its data directory, and outlives the process. Its *place* names this
directory on this machine, since the last boot. A row of the same identity and place belongs to a
process that has ended, because the directory has a lock. A valid row of the same identity and
another place belongs to a copy of the directory, so registering is refused.

A row lists the ids of the connections that the process writes through, for all of its bundles. A
process that takes a bundle from a dead member kills them, because a connection that hangs inside a
transaction would block it. The server closes the other connections of a member itself, if they are
silent for a lease inside a transaction (``Engine.limited``). Registering again also kills the
listed ones, and passes the time at which the last incarnation was alive to the leases that still
name it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final, NamedTuple, TypeVar

from escapement.clock import Clock
from escapement.errors import AddressTaken, LeaseHeld, LeaseLost
from escapement.storage.engine.base import Connection, Dialect, Engine, TransactionAborted
from escapement.storage.engine.transaction import transaction

# Limit of connection ids in a row. Each takes up to 20 digits and a comma in a column of 12,000
# characters. A process with 64 bundles of 8 lanes has 512.
MAX_RECORDED: Final = 570
# Stands for the bundle of a connection that all bundles of the process use.
ALL_BUNDLES: Final = -1
# How long a broker tries to take a lease, or to register, while a transaction of a dead process
# locks a row. Each try waits for ``Engine.lock_wait_s``.
TAKE_WAIT_S: Final = 25
# How long the row of a dead process without leases is kept, for people who look for it.
_KEPT_MS: Final = 3_600_000
# The version of this program, which rows of its processes have.
VERSION: Final = version("escapement")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a broker, which outlives its process.

    Attributes:
      name: a name for people to read.
      place: where the identity is stored; "" if unknown. The caller ensures that a process starts
        with this identity and place only when none other is running.
    """

    owner_id: str
    name: str
    place: str = ""


@dataclass(slots=True)
class Member:
    """This process, as the table ``brokers`` has it."""

    identity: Identity
    incarnation: str
    address: str  # for clients
    duration_ms: int  # how long its row is valid after a renewal
    deadline_ms: int  # when its row expires, by ``Clock.lease_ms``
    # The connections that it writes through, by bundle. The lock makes updates wait for each other,
    # so the row always has the latest list.
    connections: dict[int, set[int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connection_ids: str = ""  # the list in the row

    @property
    def key(self) -> tuple[str, str]:
        """The owner and the incarnation, by which leases and the row name this process."""
        return self.identity.owner_id, self.incarnation


class Renewal(NamedTuple):
    """The result of a renewal."""

    deadline_ms: int  # when the row expires, by ``Clock.lease_ms``
    leases: dict[int, tuple[int, str]]  # the epoch and the name of the owner, for each bundle
    database_ms: int | None  # the clock of the database; None if it has no bundle


class MemberRow(NamedTuple):
    """A row of the table ``brokers``."""

    incarnation: str
    name: str
    place: str
    left_ms: int  # how long the row is still valid; 0 or less if it has expired
    expires_at_ms: int
    connection_ids: str
    seen_ms: int


# SQL assignment that raises ``seen_ms`` to a time at which the process was alive. It never lowers
# the column, because the wall clock may have been set back.
_SEEN: Final = "seen_ms = CASE WHEN seen_ms < ? THEN ? ELSE seen_ms END"
_MINE: Final = "WHERE owner_id = ? AND incarnation = ?"


def register(
    engine: Engine, identity: Identity, duration_ms: int, clock: Clock, address: str = ""
) -> Member:
    """Make this process a member, in place of an earlier process with the same identity. Blocking.

    Raises:
      LeaseHeld: if a process with the same identity is alive at another place.
      AddressTaken: if a live process with another identity has the same address.
      TransactionAborted: if the row stays locked.
    """
    incarnation = secrets.token_hex(16)
    with closing(engine.connect()) as connection:

        def attempt() -> Member:
            sent_at_ms = clock.lease_ms()
            before = look(engine, connection, identity.owner_id)
            if before is not None:
                _refuse_copy(identity, before)
            _refuse_taken(engine, connection, identity, address)
            if before is not None:
                kill(engine, connection, before.connection_ids)
            deadline_ms = sent_at_ms + duration_ms
            member = Member(identity, incarnation, address, duration_ms, deadline_ms)
            with transaction(connection):
                _replace(engine, connection, member, clock.now_ms())
            return member

        member = patiently(engine, attempt)
        _prune(engine, connection)
    return member


def renew(
    engine: Engine,
    connection: Connection,
    member: Member,
    clock: Clock,
    *,
    seen_ms: int = 0,
    draining: bool = False,
    load_per_s: int = 0,
) -> Renewal:
    """Extend the validity of the member's row to its duration from now. Blocking.

    The member's ``deadline_ms`` is left to the caller.

    Args:
      draining: whether the process wants no more bundles. False leaves the row as it is, because an
        operator may have said so (:func:`set_draining`).
      seen_ms: the time that the wall clock would show if it had not been set back. The row records
        this time, or the present time if that is later, as the last one at which the process was
        alive.
      load_per_s: the messages per second since the last renewal, for operators.

    Raises:
      LeaseLost: if a later process with the same identity has registered.
    """
    sent_at_ms, seen_ms = clock.lease_ms(), max(clock.now_ms(), seen_ms)
    changes = f"expires_at_ms = {engine.dialect.now_ms} + ?, {_SEEN}, load_per_s = ?"
    values = (member.duration_ms, seen_ms, seen_ms, load_per_s)
    if draining:
        changes += ", draining = 1"
    with transaction(connection):
        _update(engine, connection, member, changes, values)
        # Read only when the row is locked: see the docstring of the module.
        found = connection.execute(
            f"SELECT bundle_id, epoch, owner_name, {engine.dialect.now_ms} FROM leases"
        ).rows
    return Renewal(
        sent_at_ms + member.duration_ms,
        {bundle: (epoch, name) for bundle, epoch, name, _ in found},
        found[0][3] if found else None,
    )


def record(
    engine: Engine,
    connection: Connection,
    member: Member,
    bundle_id: int,
    replaces: Collection[int] = (),
) -> None:
    """Add a connection to the list in the member's row. Blocking; safe to call in any thread.

    The server lets a listed connection be silent, because a successor kills it. Writing the row
    also checks the database. It raises an error if the database cannot be reached or accepts no
    writes. The row always changes, because SQLite writes nothing to the disk if a row gets the
    values that it has: the database lets the row expire 1 ms later.

    Args:
      bundle_id: the bundle that uses the connection, or ``ALL_BUNDLES``.
      replaces: ids of closed connections to remove from the list.

    Raises:
      LeaseLost: if a later process with the same identity has registered.
    """
    with member.lock:
        ids = member.connections.get(bundle_id, set()).difference(replaces)
        member.connections[bundle_id] = {id for id in ids | {connection.id} if id}
        every = sorted(set().union(*member.connections.values()))
        member.connection_ids = ",".join(map(str, every[-MAX_RECORDED:]))
        changes = "connection_ids = ?, expires_at_ms = expires_at_ms + 1"
        with transaction(connection):
            _update(engine, connection, member, changes, (member.connection_ids,))
    if engine.dialect.may_be_silent:
        connection.execute(engine.dialect.may_be_silent)


def list_for(member: Member, bundle_id: int, connection_id: int) -> None:
    """List a lost connection of all bundles for one of them, which had a transaction there.

    The row has it already, and keeps it from the next :func:`record` on. Blocking.
    """
    with member.lock:
        member.connections.setdefault(bundle_id, set()).add(connection_id)


def unlist(member: Member, bundle_id: int, connection_ids: Collection[int]) -> None:
    """Leave connections of a bundle, which have ended, out of later lists. Blocking."""
    with member.lock:
        member.connections.get(bundle_id, set()).difference_update(connection_ids)


def set_draining(connection: Connection, key: tuple[str, str], draining: bool) -> bool:
    """Say whether a process shall give all its bundles to others. Return whether it is a member.

    The process reads it from its row. Blocking.

    Args:
      key: the owner and the incarnation. A later process with the same identity starts again.
    """
    with transaction(connection):
        connection.execute(f"UPDATE brokers SET draining = ? {_MINE}", (int(draining), *key))
        return bool(connection.execute(f"SELECT 1 FROM brokers {_MINE}", key).rows)


def forget_connections(member: Member, bundle_id: int) -> None:
    """Leave the connections of a bundle, which have ended, out of later lists."""
    with member.lock:
        member.connections.pop(bundle_id, None)


def leave(connection: Connection, member: Member) -> None:
    """End the membership of a process that delivers nothing any more. Blocking.

    The row is deleted, or kept as an expired one while a lease names it.
    """
    with transaction(connection):
        connection.execute(f"UPDATE brokers SET expires_at_ms = 0 {_MINE}", member.key)
        if not connection.execute(f"SELECT 1 FROM leases {_MINE}", member.key).rows:
            connection.execute(f"DELETE FROM brokers {_MINE}", member.key)


def look(engine: Engine, connection: Connection, owner_id: str, lock: str = "") -> MemberRow | None:
    """Return the row of an owner, or None if there is none.

    ``lock`` is the engine's word for a lock on the row, or "".
    """
    now_ms = engine.dialect.now_ms
    found = connection.execute(
        f"SELECT incarnation, name, place, expires_at_ms - {now_ms}, expires_at_ms,"
        f" connection_ids, seen_ms FROM brokers WHERE owner_id = ?{lock}",
        (owner_id,),
    ).rows
    return MemberRow(*found[0]) if found else None


def lock_owner(
    engine: Engine, connection: Connection, member: Member, owner_id: str, incarnation: str
) -> None:
    """Lock the row of the owner of a bundle that ``member`` takes, in the open transaction.

    No renewal of the owner passes before the transaction ends.

    Args:
      incarnation: the incarnation of the owner that the lease names; "" if it names none.

    Raises:
      LeaseLost: if a later process with the identity of ``member`` has registered.
    """
    if incarnation and look(engine, connection, owner_id) is None:
        _insert_expired(engine.dialect, connection, owner_id, incarnation)
    rows = connection.execute(
        "SELECT owner_id, incarnation FROM brokers WHERE owner_id IN (?, ?) ORDER BY owner_id"
        f"{engine.dialect.share_lock}",
        (owner_id, member.identity.owner_id),
    ).rows
    for owner, found in rows:
        if owner == member.identity.owner_id and found != member.incarnation:
            raise _replaced(member)


def kill(engine: Engine, connection: Connection, connection_ids: str) -> None:
    """Close the listed connections of a dead process, except ``connection``."""
    ids = [int(text) for text in connection_ids.split(",") if text]
    engine.kill([id for id in ids if id != connection.id])


def kill_own(engine: Engine, connection: Connection, member: Member, bundle_id: int) -> None:
    """Close the listed connections of a broker of this process that has ended."""
    own = member.connections.get(bundle_id, set())
    kill(engine, connection, ",".join(map(str, own)))


def until(expires_at_ms: int, left_ms: int) -> str:
    """Return a text that says how long a row is still valid, for an error."""
    at = datetime.fromtimestamp(expires_at_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"until {at}, another {(left_ms + 999) // 1000} s unless it renews"


def patiently(engine: Engine, attempt: Callable[[], T]) -> T:
    """Return ``attempt()``. Repeat it while a row is locked, for up to ``TAKE_WAIT_S``."""
    for _ in range(TAKE_WAIT_S // engine.lock_wait_s - 1):
        try:
            return attempt()
        except TransactionAborted:
            continue
    return attempt()


def _update(
    engine: Engine, connection: Connection, member: Member, what: str, params: Sequence[object]
) -> None:
    """Change the member's row in the open transaction, and create it if it is missing.

    ``what`` is the assignments of an SQL UPDATE, and ``params`` are their parameters.
    """
    for _ in range(2):
        update = f"UPDATE brokers SET {what} {_MINE}"
        if connection.execute(update, (*params, *member.key)).affected:
            return
        # The row of a process that was suspended for long may have been deleted.
        _insert_expired(engine.dialect, connection, *member.key)
        _describe(connection, member)
    raise _replaced(member)


def _replace(engine: Engine, connection: Connection, member: Member, now_ms: int) -> None:
    """Give the row to a new incarnation. Pass what leases need of the last one to them."""
    owner_id = member.identity.owner_id
    _insert_expired(engine.dialect, connection, *member.key)
    before = look(engine, connection, owner_id, engine.dialect.update_lock)
    assert before is not None, "the row was inserted"
    _refuse_copy(member.identity, before)
    last = (owner_id, before.incarnation)
    for (bundle_id,) in connection.execute(f"SELECT bundle_id FROM leases {_MINE}", last).rows:
        connection.execute(
            "UPDATE leases SET doubtful_until_ms = ?"
            f" {_MINE} AND bundle_id = ? AND clean = 0 AND doubtful_until_ms < ?",
            (before.seen_ms, *last, bundle_id, before.seen_ms),
        )
    connection.execute(
        f"UPDATE brokers SET incarnation = ?, expires_at_ms = {engine.dialect.now_ms} + ?,"
        " seen_ms = ?, draining = 0, load_per_s = 0 WHERE owner_id = ?",
        (member.incarnation, member.duration_ms, now_ms, owner_id),
    )
    _describe(connection, member)


def _describe(connection: Connection, member: Member) -> None:
    connection.execute(
        "UPDATE brokers SET name = ?, place = ?, address = ?, connection_ids = ?, version = ?"
        f" {_MINE}",
        (
            member.identity.name,
            member.identity.place,
            member.address,
            member.connection_ids,
            VERSION,
            *member.key,
        ),
    )


def _insert_expired(
    dialect: Dialect, connection: Connection, owner_id: str, incarnation: str
) -> None:
    """Insert an expired row of an owner, unless it has one."""
    connection.execute(
        f"{dialect.insert_ignore} INTO brokers (owner_id, incarnation, name, place, address,"
        " expires_at_ms, seen_ms, draining, connection_ids)"
        " VALUES (?, ?, '', '', '', 0, 0, 0, '')",
        (owner_id, incarnation),
    )


def _refuse_copy(identity: Identity, row: MemberRow) -> None:
    """Raise ``LeaseHeld`` if the row belongs to a live process at another place."""
    if row.left_ms > 0 and "" != row.place != identity.place != "":
        raise LeaseHeld(
            f"broker {row.name!r} runs with the same identity ({identity.owner_id})"
            f" {until(row.expires_at_ms, row.left_ms)}: its data directory was copied or moved."
            " Stop that broker, or give this one a data directory of its own"
        )


def _refuse_taken(engine: Engine, connection: Connection, identity: Identity, address: str) -> None:
    """Raise ``AddressTaken`` if another live process has told clients the same address.

    Clients would look for the topics of one process at the other. Two processes that register at
    the same time may miss each other.
    """
    now_ms = engine.dialect.now_ms
    found = connection.execute(
        f"SELECT name, owner_id, expires_at_ms, expires_at_ms - {now_ms} FROM brokers"
        f" WHERE address = ? AND address <> '' AND owner_id <> ? AND expires_at_ms > {now_ms}",
        (address, identity.owner_id),
    ).rows
    for name, owner_id, expires_at_ms, left_ms in found:
        raise AddressTaken(
            f"broker {name!r} ({owner_id}) has the address {address}"
            f" {until(expires_at_ms, left_ms)}. Clients could not tell the two brokers apart. Give"
            " each broker an address of its own with --advertise. If that broker has ended, and"
            " this one replaces it with a new data directory, start it again after that time"
        )


def _replaced(member: Member) -> LeaseLost:
    return LeaseLost(
        f"broker {member.identity.name!r} no longer holds its leases: another process with its"
        f" identity ({member.identity.owner_id}) has started"
    )


def _prune(engine: Engine, connection: Connection) -> None:
    """Delete the rows of processes that ended long ago and are named by no lease."""
    stale = connection.execute(
        "SELECT brokers.owner_id, brokers.incarnation, brokers.expires_at_ms FROM brokers"
        " LEFT JOIN leases ON leases.owner_id = brokers.owner_id"
        " AND leases.incarnation = brokers.incarnation"
        f" WHERE leases.bundle_id IS NULL AND brokers.expires_at_ms < {engine.dialect.now_ms} - ?",
        (_KEPT_MS,),
    ).rows
    for row in stale:
        # A process that resumed has changed the time.
        connection.execute(f"DELETE FROM brokers {_MINE} AND expires_at_ms = ?", row)
