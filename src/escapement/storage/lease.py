"""Who may write: a lease on a bundle of topics, and the epoch that proves it.

Owns the table ``leases``. A broker's identity lives in its data directory, so a
restarted broker takes its own lease back at once; another broker's is taken over only
when it has run out *by the database's clock*. Every taking raises the epoch.

**The epoch decides, not the time.** A transaction that writes begins by locking the
lease row in share mode and comparing the epoch (:func:`check`; a group commit sends what it
writes right behind that, and gives it up if the epoch is another). A taker changes that
row, so it waits until such a transaction has ended, and afterwards none of the old
epoch can pass: a stale owner changes nothing, however late it wakes up (invariant 8).
An owner whose lease has run out but which nobody has replaced may therefore go on
writing. What it must not do past its deadline is *deliver*, because a successor may
already be delivering the same; that deadline is the owner's own, counted on a clock
that runs while the machine sleeps, from *before* the renewal was sent.

The connections an owner writes through are recorded, so that a successor can end
one that hangs inside a transaction and would make it wait.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from escapement.clock import Clock
from escapement.errors import LeaseHeld, LeaseLost
from escapement.storage.engine.base import Connection, Engine, Row, Step, TransactionAborted
from escapement.storage.engine.transaction import transaction

# Connections recorded at most: they must fit their column (20 digits and a comma each).
MAX_RECORDED: Final = 90
# How often a taker waits for a transaction of its predecessor to end; each wait is the
# engine's lock timeout, and its connections are killed in between.
TAKE_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a broker is: an id that outlives its process, and a name for people."""

    owner_id: str
    name: str


# An owner was there at this moment of the wall clock, which may have been set back since.
_SEEN: Final = (
    "doubtful_until_ms = CASE WHEN doubtful_until_ms < ? THEN ? ELSE doubtful_until_ms END"
)


@dataclass(frozen=True, slots=True)
class Lease:
    """What :func:`acquire` gave. ``deadline_ms`` is by ``Clock.lease_ms``."""

    bundle_id: int
    identity: Identity
    epoch: int
    was_clean: bool  # whether the predecessor stopped in good order
    # Deliveries before then may be unrecorded, because some earlier owner did not. After an
    # unclean end, this is when its owner was last known to be there, by its wall clock.
    doubtful_until_ms: int
    duration_ms: int
    deadline_ms: int

    def delivered_until_ms(self, now_ms: int) -> int:
        """What was due by then an earlier owner may have delivered without recording it.

        After an unclean end that is now, or, if the wall clock has been set back since that
        owner was last seen, as long after that moment as he may have gone on.
        """
        if self.was_clean:
            return self.doubtful_until_ms
        if self.doubtful_until_ms > now_ms:
            return self.doubtful_until_ms + self.duration_ms
        return now_ms


def acquire(
    engine: Engine, identity: Identity, duration_ms: int, clock: Clock, bundle_id: int = 0
) -> Lease:
    """Take the lease, with the next epoch.

    Raises:
      LeaseHeld: if another broker's lease has not run out yet; it names that broker.
    """
    connection = engine.connect()
    try:
        for attempt in range(TAKE_ATTEMPTS):
            sent_at_ms = clock.lease_ms()
            ids = _recorded_ids(_takeable(engine, connection, identity, bundle_id, ""))
            engine.kill([id for id in ids if id != connection.id])
            try:
                epoch, clean, doubtful_until_ms = _take(
                    engine, connection, identity, duration_ms, bundle_id, clock.now_ms()
                )
            except TransactionAborted:
                if attempt == TAKE_ATTEMPTS - 1:
                    raise
                continue
            return Lease(
                bundle_id,
                identity,
                epoch,
                clean,
                doubtful_until_ms,
                duration_ms,
                sent_at_ms + duration_ms,
            )
        raise AssertionError("unreachable")
    finally:
        connection.close()


def renew(
    engine: Engine, connection: Connection, lease: Lease, clock: Clock, seen_ms: int = 0
) -> Lease:
    """Hold the lease for another ``duration_ms`` from now on.

    Args:
      seen_ms: how far the wall clock had come, where it was set back.

    Raises:
      LeaseLost: if another broker, or a later start of this one, has taken it.
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
    """Give the lease up, so that anyone may take it at once.

    ``clean`` says that nothing was in anyone's hands without being recorded, except what
    was accepted by ``doubtful_until_ms``, of which an earlier owner may have delivered
    more than it recorded.
    """
    _change(
        engine,
        connection,
        lease,
        "expires_at_ms = 0, connection_ids = '', clean = ?, doubtful_until_ms = ?",
        (int(clean), doubtful_until_ms),
    )


def check(engine: Engine, connection: Connection, lease: Lease) -> None:
    """Inside a transaction: hold off any taker until it ends, or raise ``LeaseLost``."""
    answer(lease, connection.execute_all([question(engine, lease)]))


def question(engine: Engine, lease: Lease) -> Step:
    """What :func:`check` asks, to be sent with other steps; its row is for :func:`answer`."""
    return _question(lease, engine.dialect.share_lock)


def answer(lease: Lease, rows: Sequence[Row]) -> None:
    """Raise ``LeaseLost`` unless that row is still of this lease's epoch."""
    if not rows or rows[0][0] != lease.epoch:
        holder = f"broker {rows[0][1]!r} has it with epoch {rows[0][0]}" if rows else "it is gone"
        raise LeaseLost(
            f"broker {lease.identity.name!r} no longer holds the lease of bundle "
            f"{lease.bundle_id} (epoch {lease.epoch}): {holder}"
        )


class Recorded:
    """The connections through which an owner writes, as its lease row names them.

    For several threads: recording is serialised, so the row always has the latest.
    """

    def __init__(self, engine: Engine, lease: Lease) -> None:
        self._engine = engine
        self._lease = lease
        self._ids: set[int] = set()
        self._lock = threading.Lock()

    def enter(self, connection: Connection, replaces: int = 0) -> None:
        """Record ``connection``, in the place of one that is gone.

        This writes to the lease row: it proves that the database is there, takes
        writes, and is still ours, or raises what says that it is not.
        """
        with self._lock:
            self._ids = {id for id in (self._ids - {replaces}) | {connection.id} if id}
            text = ",".join(map(str, sorted(self._ids)[-MAX_RECORDED:]))
            _change(self._engine, connection, self._lease, "connection_ids = ?", (text,))


_Row = tuple[str, str, int, int, int, str, int, int]


def _takeable(
    engine: Engine, connection: Connection, identity: Identity, bundle_id: int, lock: str
) -> _Row:
    """The lease row, unless another broker still holds it."""
    row: _Row
    (row,) = connection.execute(
        "SELECT owner_id, owner_name, epoch, expires_at_ms, clean, connection_ids,"
        f" {engine.dialect.now_ms}, doubtful_until_ms FROM leases WHERE bundle_id = ? {lock}",
        (bundle_id,),
    ).rows
    owner_id, owner_name, _, expires_at_ms, _, _, now_ms, _ = row
    if owner_id != identity.owner_id and expires_at_ms > now_ms:
        until = datetime.fromtimestamp(expires_at_ms / 1000, UTC).isoformat(timespec="seconds")
        raise LeaseHeld(
            f"broker {owner_name!r} ({owner_id}) owns this log until {until}, another "
            f"{(expires_at_ms - now_ms + 999) // 1000} s unless it renews: stop it, or give "
            "this broker a log of its own"
        )
    return row


def _take(
    engine: Engine,
    connection: Connection,
    identity: Identity,
    duration_ms: int,
    bundle_id: int,
    now_ms: int,
) -> tuple[int, bool, int]:
    with transaction(connection):
        lock = engine.dialect.update_lock
        row = _takeable(engine, connection, identity, bundle_id, lock)
        _, _, epoch, _, clean, _, _, doubtful_until_ms = row
        connection.execute(
            "UPDATE leases SET owner_id = ?, owner_name = ?, epoch = ?, clean = 0,"
            f" connection_ids = '', expires_at_ms = {engine.dialect.now_ms} + ?, {_SEEN}"
            " WHERE bundle_id = ?",
            (
                identity.owner_id,
                identity.name,
                epoch + 1,
                duration_ms,
                now_ms,
                now_ms,
                bundle_id,
            ),
        )
    return epoch + 1, bool(clean), doubtful_until_ms


def _recorded_ids(row: _Row) -> list[int]:
    return [int(text) for text in row[5].split(",") if text]


def _change(
    engine: Engine, connection: Connection, lease: Lease, what: str, params: tuple[object, ...]
) -> None:
    """One transaction of its own that changes the row while it is still ours."""
    with transaction(connection):
        answer(lease, connection.execute_all([_question(lease, engine.dialect.update_lock)]))
        connection.execute(
            f"UPDATE leases SET {what} WHERE bundle_id = ? AND epoch = ?",
            (*params, lease.bundle_id, lease.epoch),
        )


def _question(lease: Lease, lock: str) -> Step:
    sql = f"SELECT epoch, owner_name FROM leases WHERE bundle_id = ? {lock}"
    return Step(sql, [(lease.bundle_id,)])
