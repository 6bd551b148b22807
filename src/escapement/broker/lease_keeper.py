"""The lease of one bundle, for the broker that owns it.

The process renews its membership for all of its bundles (membership.py). The keeper knows whether
this bundle is still its broker's, and ends the broker if another process has taken it.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from escapement.broker.membership import Membership, Watch
from escapement.errors import LeaseLost, StorageReadOnly
from escapement.storage.lease import Lease


class LeaseKeeper:
    """The lease of a broker, and the task that waits for its loss.

    Args:
      lease: the lease that this broker has taken.
      on_renewed: called when a lease that had expired has been renewed.
      on_read_only: called when a renewal finds that the database is read-only.
      count: returns how many messages the broker has published and delivered.
    """

    def __init__(
        self,
        membership: Membership,
        lease: Lease,
        on_renewed: Callable[[], None],
        on_read_only: Callable[[StorageReadOnly], None],
        count: Callable[[], int],
    ) -> None:
        self.lease = lease
        self._membership = membership
        self._loss: LeaseLost | None = None
        self._lost = trio.Event()
        self._watch = Watch(lease, on_renewed, on_read_only, self._lose, count)
        membership.watch(self._watch)

    @property
    def held(self) -> bool:
        """Whether no other broker can have taken the lease yet."""
        return self._loss is None and self._membership.held

    def check(self) -> None:
        """Raise ``LeaseLost`` if the lease has expired, so that an answer may be out of date."""
        if not self.held:
            raise LeaseLost(
                "The lease of this broker has expired. Another broker may have changed the topics "
                "since. Try again."
            )

    @property
    def left_ms(self) -> int:
        """How long the lease is still valid; 0 if it has expired or is lost."""
        return self._membership.left_ms if self._loss is None else 0

    @property
    def renewed_at_ms(self) -> int:
        """When the last renewal that succeeded was sent, by the lease clock."""
        return self._membership.renewed_at_ms

    async def run(self) -> None:
        """Wait until another broker has taken the lease, and raise ``LeaseLost``."""
        await self._lost.wait()
        assert self._loss is not None, "the event is set with the error"
        raise self._loss

    def release(self, doubtful_until_ms: int) -> None:
        """Release the lease after a clean stop; see ``Membership.release``. Blocking."""
        self._membership.release(self.lease, doubtful_until_ms)

    def close(self) -> None:
        """Stop watching the lease."""
        self._membership.unwatch(self._watch)

    def _lose(self, error: LeaseLost) -> None:
        self._loss = error
        self._lost.set()
