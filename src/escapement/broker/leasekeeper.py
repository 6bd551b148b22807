"""Keeps the lease alive, and knows until when messages may be handed out under it.

The epoch, checked inside every transaction, is what keeps a stale owner from writing;
the deadline kept here is what keeps it from *delivering* once a successor may have
taken over. It is counted on a clock that also runs while the machine sleeps, from
before each renewal was sent.

A renewal notes the wall clock, for what may have been delivered by then. Where that clock was
set back since the last one, what counts is how far it had come; so such a renewal is not waited
for, but sent as soon as it is noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from escapement.clock import Clock
from escapement.errors import StorageReadOnly, StorageUnavailable
from escapement.storage import lease as leases
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Connection, Engine, TransactionAborted

_log = logging.getLogger(__name__)

# Renewals in the time of one lease: two may fail before it runs out.
RENEWALS_PER_LEASE: Final = 3
# Looks at the wall clock in the time from one renewal to the next.
LOOKS_PER_RENEWAL: Final = 12
# The two clocks may differ by so much in that time: one of them is kept right by others.
DRIFT_MS: Final = 20


class LeaseKeeper:
    """See the module's docstring.

    Args:
      on_renewed: called when a lease that had run out is held again.
      on_read_only: called when a renewal finds the database read-only: it may be the only
        write for a long time.
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
        self._connection: Connection | None = None
        self._noted = clock.now_ms(), clock.lease_ms()  # at the last renewal

    @property
    def held(self) -> bool:
        """Whether nobody else can have taken the lease yet."""
        return self._clock.lease_ms() < self.lease.deadline_ms

    async def run(self) -> None:
        """Renew for ever.

        Raises:
          LeaseLost: when another broker has taken the lease.
        """
        while True:
            await self._until_renewal()
            try:
                renewed = await self._run(self._renew)
                # Only now: it may have run out while the database did not answer.
                was_held, self.lease = self.held, renewed
                if not was_held:
                    _log.warning("the lease had run out and is renewed; nobody had taken it")
                    self._on_renewed()
            except (StorageUnavailable, TransactionAborted) as error:
                _log.warning("cannot renew the lease: %s", error)
                if isinstance(error, StorageReadOnly):
                    self._on_read_only(error)

    async def _until_renewal(self) -> None:
        """Sleep until it is time for the next, or the wall clock was set back."""
        period_s = self.lease.duration_ms / RENEWALS_PER_LEASE / 1000
        now_s = trio.current_time()
        end_s = now_s + period_s
        while now_s < end_s:
            await trio.sleep_until(min(now_s + period_s / LOOKS_PER_RENEWAL, end_s))
            now_s = trio.current_time()
            if self._clock.now_ms() < self._come_to_ms() - DRIFT_MS:
                return

    def _come_to_ms(self) -> int:
        """Where the wall clock would be if it had not been set since the last renewal."""
        now_ms, lease_ms = self._noted
        return now_ms + self._clock.lease_ms() - lease_ms

    def _renew(self) -> leases.Lease:
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            noted, seen_ms = (self._clock.now_ms(), self._clock.lease_ms()), self._come_to_ms()
            renewed = leases.renew(self._engine, self._connection, self.lease, self._clock, seen_ms)
            self._noted = noted
            return renewed
        except BaseException:
            self.close()
            raise

    def release(self, doubtful_until_ms: int) -> None:
        """Blocking: give the lease up, after a clean stop; anyone may take it at once."""
        self.close()
        self._connection = self._engine.connect()
        try:
            leases.release(
                self._engine,
                self._connection,
                self.lease,
                clean=True,
                doubtful_until_ms=doubtful_until_ms,
            )
        finally:
            self.close()

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
