"""The leases of bundles of topics, held by a job while it works beside no broker.

A *lease* is the right to write to the topics of a *bundle*. While the job holds it, no broker
writes to these, so what the job has read stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Final, TypeVar

from escapement.clock import Clock
from escapement.errors import EscapementError, LeaseHeld
from escapement.storage import lease, members
from escapement.storage.engine.base import Engine
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.storage.lease import Identity, Lease
from escapement.storage.members import Member

# The duration of the lease, the same as a broker's. The lease is renewed after a third of it.
_LEASE_MS: Final = 10_000
_RENEWAL_MS: Final = _LEASE_MS // 3
# The interval at which this thread checks the lease and the progress while other threads work.
_LOOK_S: Final = 0.5

T = TypeVar("T")


def _nothing(*_: object) -> None:
    """Do nothing."""


class Renewal:
    """Renews the leases while the job runs.

    Attributes:
      connection: to write with under the leases, in the thread that renews them.
      leases: the leases by bundle.
    """

    def __init__(
        self, engine: Engine, connection: KeptConnection, member: Member, clock: Clock
    ) -> None:
        self.leases: dict[int, Lease] = {}
        self._member = member
        self._engine = engine
        self.connection = connection
        self._clock = clock

    def __call__(self) -> None:
        """Renew the leases if a third of their duration has passed. Raises ``LeaseLost``."""
        left_ms = self._member.deadline_ms - self._clock.lease_ms()
        if left_ms < _LEASE_MS - _RENEWAL_MS:
            self.at_once()

    def at_once(self) -> None:
        """Renew the leases now.

        Success proves that no broker has written to the bundles while the job held their leases.

        Raises:
          LeaseLost: if another broker has taken a lease.
        """
        with self.connection.use() as connection:
            for held in self.leases.values():
                lease.renew(self._engine, connection, held, self._clock)

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
def held_lease(
    engine: Engine, identity: Identity, clock: Clock, bundles: Iterable[int] = (0,)
) -> Iterator[Renewal]:
    """Hold the leases of bundles for the duration of the ``with`` block, and yield their renewal.

    The release tells the next owner up to which due time the last broker may have delivered
    messages without recording it.

    Raises:
      LeaseHeld: if a broker owns one of the bundles.
    """
    # If this process is stopped, a broker waits for its locks, and knows no connection to kill.
    engine = engine.limited(silence_s=_LEASE_MS / 1000)
    member = members.register(engine, identity, _LEASE_MS, clock)
    # The leases are renewed over their own connection, because another one reads the log meanwhile.
    with closing(KeptConnection(engine)) as kept:
        renewal = Renewal(engine, kept, member, clock)
        try:
            for bundle_id in bundles:
                try:
                    taken = lease.take(engine, member, clock, bundle_id)
                except LeaseHeld as error:
                    raise LeaseHeld(f"{error}. Stop all brokers of this database first") from None
                renewal.leases[bundle_id] = taken
                renewal()
            yield renewal
        finally:
            # A lease that cannot be released expires.
            with suppress(EscapementError), kept.use() as connection:
                for held in renewal.leases.values():
                    until_ms = held.delivered_until_ms(clock.now_ms())
                    lease.release(engine, connection, held, clean=True, doubtful_until_ms=until_ms)
                members.leave(connection, member)
