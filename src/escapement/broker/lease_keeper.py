"""The renewal of the lease, and the deadline for deliveries under it.

The *lease* is a broker's right to a database. Its *epoch* grows with each new owner. Every
transaction checks the epoch, which keeps a stale owner from writing. The deadline kept here keeps a
stale owner from *delivering* once a successor may have taken over. It is counted from the moment
before a renewal was sent, on a clock that also runs while the machine sleeps (the lease clock).

A renewal stores the time of the wall clock, as a bound on the due times of messages that may have
been delivered. If the wall clock was set back since the last renewal, the renewal stores the time
that the clock had reached before. The keeper sends such a renewal as soon as it notices the change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Final

import trio

from escapement.clock import Clock
from escapement.errors import LeaseLost, StorageReadOnly, StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage import lease as leases
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.engine.kept_connection import KeptConnection

_log = EventLog(__name__)

# Renewals within the duration of one lease: two may fail before the lease expires.
RENEWALS_PER_LEASE: Final = 3
# Checks of the wall clock between two renewals.
LOOKS_PER_RENEWAL: Final = 12
# How far the wall clock and the lease clock may drift apart between two renewals, because time
# synchronisation adjusts one of them. A larger difference means that the wall clock was set.
DRIFT_MS: Final = 20
# A renewal that keeps failing with the same error is logged this often.
_WARN_EVERY_S: Final = 60.0


class LeaseKeeper:
    """The task that renews the lease.

    Args:
      lease: the lease that this broker has acquired.
      on_renewed: called when a lease that had expired has been renewed.
      on_read_only: called when a renewal finds that the database is read-only. If no client
        publishes, no other write would notice it for a long time.
    """

    def __init__(
        self,
        engine: Engine,
        lease: leases.Lease,
        clock: Clock,
        run: Run,
        on_renewed: Callable[[], None],
        on_read_only: Callable[[StorageReadOnly], None],
    ) -> None:
        self.lease = lease
        self._engine = engine
        self._clock = clock
        self._run = run
        self._on_renewed = on_renewed
        self._on_read_only = on_read_only
        self._connection = KeptConnection(engine)
        # The wall clock and the lease clock at the last renewal.
        self._noted = clock.now_ms(), clock.lease_ms()
        self._warned = ""  # the error that was logged last; "" after a renewal
        self._warn_again_s = 0.0

    @property
    def held(self) -> bool:
        """Whether no other broker can have taken the lease yet."""
        return self._clock.lease_ms() < self.lease.deadline_ms

    @property
    def left_ms(self) -> int:
        """How long the lease is still valid; 0 if it has expired."""
        return max(self.lease.deadline_ms - self._clock.lease_ms(), 0)

    @property
    def renewed_at_ms(self) -> int:
        """When the last renewal that succeeded was sent, by the lease clock."""
        return self._noted[1]

    async def run(self) -> None:
        """Renew the lease forever.

        Raises:
          LeaseLost: when another broker has taken the lease.
        """
        while True:
            await self._until_renewal()
            try:
                renewed = await self._run(self._renew)
                # Check only now: the lease may have expired while the database did not answer.
                was_held, self.lease = self.held, renewed
                self._warned = ""
                if not was_held:
                    _log.warning(
                        "lease.renewed_late",
                        "the expired lease is renewed; no other broker had taken it",
                    )
                    self._on_renewed()
            except LeaseLost as error:
                _log.warning("lease.lost", "the broker ends: %s", error)
                raise
            except (StorageUnavailable, TransactionAborted) as error:
                self._warn(str(error))
                if isinstance(error, StorageReadOnly):
                    self._on_read_only(error)

    def _warn(self, reason: str) -> None:
        now_s = trio.current_time()
        again = reason == self._warned and now_s < self._warn_again_s
        level = logging.DEBUG if again else logging.WARNING
        _log.log(level, "lease.renewal_failed", "cannot renew the lease: %s", reason)
        if not again:
            self._warned, self._warn_again_s = reason, now_s + _WARN_EVERY_S

    async def _until_renewal(self) -> None:
        """Sleep until the next renewal is due or the wall clock was set back."""
        period_s = self.lease.duration_ms / RENEWALS_PER_LEASE / 1000
        now_s = trio.current_time()
        end_s = now_s + period_s
        while now_s < end_s:
            await trio.sleep_until(min(now_s + period_s / LOOKS_PER_RENEWAL, end_s))
            now_s = trio.current_time()
            if self._clock.now_ms() < self._come_to_ms() - DRIFT_MS:
                return

    def _come_to_ms(self) -> int:
        """Return what the wall clock would show if it had not been set since the last renewal."""
        now_ms, lease_ms = self._noted
        return now_ms + self._clock.lease_ms() - lease_ms

    def _renew(self) -> leases.Lease:
        with self._connection.use() as connection:
            noted, seen_ms = (self._clock.now_ms(), self._clock.lease_ms()), self._come_to_ms()
            renewed = leases.renew(self._engine, connection, self.lease, self._clock, seen_ms)
            self._noted = noted
            return renewed

    def release(self, doubtful_until_ms: int) -> None:
        """Release the lease after a clean stop, so that any broker can take it at once. Blocking.

        Args:
          doubtful_until_ms: messages due by then may have been delivered without a record, by a
            broker that did not stop cleanly. The next owner must know this.
        """
        self.close()
        with closing(self._engine.connect()) as connection:
            leases.release(
                self._engine,
                connection,
                self.lease,
                clean=True,
                doubtful_until_ms=doubtful_until_ms,
            )

    def close(self) -> None:
        """Close the database connection."""
        self._connection.close()
