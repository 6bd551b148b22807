"""The lease, held by a job while it works beside no broker.

The *lease* is the right to write to the log. While the job holds it, no broker writes, so what the
job has read stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Final, TypeVar

from escapement.clock import Clock
from escapement.errors import EscapementError
from escapement.storage import lease, members
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import Identity, Lease

# The duration of the lease, the same as a broker's. The lease is renewed after a third of it.
_LEASE_MS: Final = 10_000
_RENEWAL_MS: Final = _LEASE_MS // 3
# The interval at which this thread checks the lease and the progress while other threads work.
_LOOK_S: Final = 0.5

T = TypeVar("T")


def _nothing(*_: object) -> None:
    """Do nothing."""


class Renewal:
    """Renews the lease while the job runs."""

    def __init__(self, engine: Engine, connection: Connection, held: Lease, clock: Clock) -> None:
        self.held = held
        self._engine = engine
        self._connection = connection
        self._clock = clock

    def __call__(self) -> None:
        """Renew the lease if a third of its duration has passed. Raises ``LeaseLost``."""
        left_ms = self.held.deadline_ms - self._clock.lease_ms()
        if left_ms < _LEASE_MS - _RENEWAL_MS:
            self.at_once()

    def at_once(self) -> None:
        """Renew the lease now.

        Success proves that no broker has written to the log while the job held the lease.

        Raises:
          LeaseLost: if another broker has taken the lease.
        """
        self.held = lease.renew(self._engine, self._connection, self.held, self._clock)

    def wait(self, work: Future[T], meanwhile: Callable[[], object] = _nothing) -> T:
        """Wait for the work of another thread, renew the lease meanwhile, and return the result.

        Raises ``LeaseLost``, and the errors of the work.

        Args:
          meanwhile: called about twice a second, in this thread.
        """
        while True:
            try:
                return work.result(timeout=_LOOK_S)
            except TimeoutError:
                if work.done():
                    raise
                self()
                meanwhile()

    def during(
        self,
        work: Callable[[], T],
        cancel: Callable[[], object] = _nothing,
        meanwhile: Callable[[], object] = _nothing,
    ) -> T:
        """Run ``work`` in a new thread, renew the lease meanwhile, and return the result.

        Args:
          cancel: called to end the work early if this thread fails, such as by a lost lease.
          meanwhile: called about twice a second, in this thread.
        """
        with ThreadPoolExecutor(1) as pool:
            try:
                return self.wait(pool.submit(work), meanwhile)
            except BaseException:
                cancel()
                raise


@contextmanager
def held_lease(engine: Engine, identity: Identity, clock: Clock) -> Iterator[Renewal]:
    """Hold the lease for the duration of the ``with`` block, and yield its renewal.

    The release tells the next owner up to which due time the last broker may have delivered
    messages without recording it.
    """
    held = lease.acquire(engine, identity, _LEASE_MS, clock)
    # The lease is renewed over its own connection, because another one reads the log meanwhile.
    with closing(engine.connect()) as connection:
        renewal = Renewal(engine, connection, held, clock)
        try:
            yield renewal
        finally:
            doubtful_until_ms = held.delivered_until_ms(clock.now_ms())
            # A lease that cannot be released expires.
            with suppress(EscapementError):
                lease.release(
                    engine, connection, held, clean=True, doubtful_until_ms=doubtful_until_ms
                )
                members.leave(connection, held.member)
