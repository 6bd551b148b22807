"""This process among those that own bundles: its registration, its renewals and its deadline.

A process has one membership, and runs one broker for each bundle of topics that it owns. The
membership renews one row for all of them (storage/members.py). Every transaction of a broker checks
the *epoch* of its bundle, which keeps a stale owner from writing. The deadline kept here keeps a
stale owner from *delivering* once a successor may have taken over. It is counted from the moment
before a renewal was sent, on a clock that also runs while the machine sleeps (the lease clock).

Each renewal reads the epochs of all bundles. So a broker without work notices that another process
has taken its bundle. Only that broker ends.

A renewal stores the time of the wall clock, as a bound on the due times of messages that may have
been delivered. If the wall clock was set back since the last renewal, the renewal stores the time
that the clock had reached before. The membership sends such a renewal as soon as it notices the
change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import trio

from escapement.broker.clock_difference import ClockDifference
from escapement.broker.load import Load
from escapement.clock import Clock
from escapement.errors import LeaseLost, StorageReadOnly, StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage import lease as leases
from escapement.storage import members
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.storage.lease import Identity, Lease
from escapement.storage.members import Member, Renewal

_log = EventLog(__name__)

# Renewals within the duration of one lease. If one fails at once, the next one comes before the
# deadline. If the connection is silent, commits wait too, and another process may take over.
RENEWALS_PER_LEASE: Final = 3
# The part of a lease by which its owner stops delivering before the database lets it expire. The
# two clocks may run at different speeds.
MARGIN_PARTS: Final = 50
# Checks of the wall clock between two renewals.
LOOKS_PER_RENEWAL: Final = 12
# How far the wall clock and the lease clock may drift apart between two renewals, because time
# synchronisation adjusts one of them. A larger difference means that the wall clock was set.
DRIFT_MS: Final = 20
# A renewal that keeps failing with the same error is logged this often.
_WARN_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """The interest of a broker in the renewals.

    Attributes:
      lease: the lease that the broker has taken.
      on_renewed: called when the membership had expired and has been renewed.
      on_read_only: called when a renewal finds that the database is read-only. If no client
        publishes, no other write would notice it for a long time.
      on_lost: called when another process has taken the bundle.
      count: returns how many messages the broker has published and delivered.
    """

    lease: Lease
    on_renewed: Callable[[], None]
    on_read_only: Callable[[StorageReadOnly], None]
    on_lost: Callable[[LeaseLost], None]
    count: Callable[[], int]


class Membership:
    """The membership of this process, and the task that renews it.

    Call :meth:`register` first, on a database with the current schema, then run :meth:`run`.

    Args:
      run: makes the blocking calls of renewals, which must not wait for other calls.
      lease_ms: how long a renewal is valid.
      address: the address of this process for clients.

    Attributes:
      outage: the error of the last renewal, if it could not reach the database, or not write.
    """

    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        clock: Clock,
        run: Run,
        lease_ms: int,
        address: str = "",
    ) -> None:
        self.identity = identity
        self._engine = engine
        self._clock = clock
        self._run = run
        self.lease_ms = lease_ms
        self.outage: StorageUnavailable | None = None
        self._address = address
        self._draining = False
        self._watches: list[Watch] = []
        self._load = Load(clock.lease_ms())
        self._clock_difference = ClockDifference()
        self._counted = 0  # the messages of brokers that have ended
        self._connection = KeptConnection(engine)
        self._hurry = trio.Event()
        self._warned = ""  # the error that was logged last; "" after a renewal
        self._warn_again_s = 0.0

    # ``register`` sets these: the row of this process, and the wall clock and the lease clock at
    # the last renewal.
    member: Member
    _noted: tuple[int, int]

    @property
    def held(self) -> bool:
        """Whether no other process can have taken a bundle of this one yet."""
        return self.left_ms > 0

    @property
    def left_ms(self) -> int:
        """How long the leases of this process are still valid; 0 if they have expired."""
        margin_ms = self.lease_ms // MARGIN_PARTS
        return max(self.member.deadline_ms - margin_ms - self._clock.lease_ms(), 0)

    @property
    def leaving(self) -> bool:
        """Whether the process is about to stop, and takes no bundles any more."""
        return self._draining

    @property
    def renewal_age_ms(self) -> int:
        """The time since the last renewal that succeeded."""
        return max(self._clock.lease_ms() - self.renewed_at_ms, 0)

    @property
    def renewed_at_ms(self) -> int:
        """When the last renewal that succeeded was sent, by the lease clock."""
        return self._noted[1]

    def register(self) -> None:
        """Register this process in the database. Blocking.

        Raises:
          LeaseHeld: if a process with the same identity is alive at another place.
          AddressTaken: if a live process with another identity has the same address.
          TransactionAborted: if a row stays locked.
        """
        self._noted = self._clock.now_ms(), self._clock.lease_ms()
        self.member = members.register(
            self._engine, self.identity, self.lease_ms, self._clock, self._address
        )

    def take(self, bundle_id: int) -> Lease:
        """Take a bundle that has no live owner, or that this process had before. Blocking.

        Raises:
          LeaseHeld: if another process has the bundle.
          LeaseLost: if a later process with the same identity has registered.
          TransactionAborted: if a row stays locked.
        """
        assert all(watch.lease.bundle_id != bundle_id for watch in self._watches)
        return leases.take(self._engine, self.member, self._clock, bundle_id)

    def release(self, lease: Lease, doubtful_until_ms: int) -> None:
        """Release a bundle after a clean stop, so that any broker can take it at once. Blocking.

        Args:
          doubtful_until_ms: messages due by then may have been delivered without a record, by a
            broker that did not stop cleanly. The next owner must know this.
        """
        with closing(self._engine.connect()) as connection:
            leases.release(
                self._engine, connection, lease, clean=True, doubtful_until_ms=doubtful_until_ms
            )

    def give_back(self, lease: Lease) -> None:
        """Release a bundle whose broker could not start, as clean as it was before. Blocking."""
        with closing(self._engine.connect()) as connection:
            leases.release(
                self._engine,
                connection,
                lease,
                clean=lease.was_clean,
                doubtful_until_ms=lease.doubtful_until_ms,
            )

    def let_go(self, bundle_id: int) -> bool:
        """Release a bundle whose broker has ended without releasing it. Blocking.

        Messages that are due by now may have been delivered without a record.

        Returns:
          Whether the lease still named this process.

        Raises:
          TransactionAborted: if the lease row stays locked.
        """
        assert all(watch.lease.bundle_id != bundle_id for watch in self._watches)
        seen_ms = max(self._clock.now_ms(), self._come_to_ms())
        return leases.let_go(self._engine, self.member, bundle_id, seen_ms)

    def leave(self) -> None:
        """End the membership, when no broker of this process delivers any more. Blocking."""
        self.close()
        with closing(self._engine.connect()) as connection:
            members.leave(connection, self.member)

    def close(self) -> None:
        """Close the database connection."""
        self._connection.close()

    def drain(self) -> None:
        """Renew at once, and tell all other processes that this one takes no bundles any more."""
        self._draining = True
        self.renew_soon()

    def renew_soon(self) -> None:
        """Renew now, or after the renewal in progress, instead of at the usual time."""
        self._hurry.set()

    def watch(self, watch: Watch) -> None:
        """Report to a broker from now on, until :meth:`unwatch`."""
        self._watches.append(watch)

    def unwatch(self, watch: Watch) -> None:
        """End the reports to a broker, if they have not ended."""
        if watch in self._watches:
            self._watches.remove(watch)
            self._counted += watch.count()

    async def run(self) -> None:
        """Renew the membership forever.

        Raises:
          LeaseLost: if a later process with the same identity has registered.
        """
        while True:
            await self._until_renewal()
            # A renewal may not see a lease that was taken after it began.
            watches = tuple(self._watches)
            count = self._counted + sum(watch.count() for watch in watches)
            load_per_s = self._load.measure(self._clock.lease_ms(), count)
            try:
                self._renewed(await self._run(self._renew, load_per_s), watches)
            except LeaseLost as error:
                _log.warning("lease.lost", "the broker ends: %s", error)
                raise
            except (StorageUnavailable, TransactionAborted) as error:
                self._warn(str(error))
                self.outage = error if isinstance(error, StorageUnavailable) else None
                if isinstance(error, StorageReadOnly):
                    for watch in watches:
                        watch.on_read_only(error)

    def _renewed(self, renewal: Renewal, watches: tuple[Watch, ...]) -> None:
        """Note the new deadline, and the leases that were lost, in one step."""
        # Check only now: the lease may have expired while the database did not answer.
        was_held = self.held
        self.member.deadline_ms = renewal.deadline_ms
        self._warned, self.outage = "", None
        kept = [watch for watch in watches if _is_kept(watch, renewal)]
        # The new deadline is also that of the leases that were taken during the renewal.
        kept += [watch for watch in self._watches if watch not in watches]
        if not was_held and (kept or not watches):
            _log.warning(
                "lease.renewed_late",
                "the expired lease is renewed; no other broker had taken it",
            )
            for watch in kept:
                watch.on_renewed()

    def _warn(self, reason: str) -> None:
        now_s = trio.current_time()
        again = reason == self._warned and now_s < self._warn_again_s
        level = logging.DEBUG if again else logging.WARNING
        _log.log(level, "lease.renewal_failed", "cannot renew the lease: %s", reason)
        if not again:
            self._warned, self._warn_again_s = reason, now_s + _WARN_EVERY_S

    async def _until_renewal(self) -> None:
        """Wait until a renewal is due or asked for, or the wall clock was set back."""
        period_s = self.lease_ms / RENEWALS_PER_LEASE / 1000
        now_s = trio.current_time()
        end_s = now_s + period_s
        while now_s < end_s:
            with trio.move_on_at(min(now_s + period_s / LOOKS_PER_RENEWAL, end_s)):
                await self._hurry.wait()
                self._hurry = trio.Event()
                return
            now_s = trio.current_time()
            if self._clock.now_ms() < self._come_to_ms() - DRIFT_MS:
                return

    def _come_to_ms(self) -> int:
        """Return what the wall clock would show if it had not been set since the last renewal."""
        now_ms, lease_ms = self._noted
        return now_ms + self._clock.lease_ms() - lease_ms

    def _renew(self, load_per_s: int) -> Renewal:
        with self._connection.use() as connection:
            noted, seen_ms = (self._clock.now_ms(), self._clock.lease_ms()), self._come_to_ms()
            renewal = members.renew(
                self._engine,
                connection,
                self.member,
                self._clock,
                seen_ms=seen_ms,
                draining=self._draining,
                load_per_s=load_per_s,
            )
            self._noted = noted
        # SQLite has the clock of this machine, and tests with virtual time use SQLite.
        if self._engine.is_shared and renewal.database_ms is not None:
            self._clock_difference.look(noted[0], renewal.database_ms, self._clock.now_ms())
        return renewal


def _is_kept(watch: Watch, renewal: Renewal) -> bool:
    """Return whether the lease of a broker has its epoch. If not, tell the broker."""
    found = renewal.leases.get(watch.lease.bundle_id)
    try:
        leases.answer(watch.lease, [found] if found else [])
    except LeaseLost as error:
        watch.on_lost(error)
        return False
    return True
