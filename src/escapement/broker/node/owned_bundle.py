"""The life of one bundle in this process: its broker, and the next one after damage of the index.

A damaged index needs no operator. The broker crashes, and the node starts a new broker of the
bundle, which rebuilds the index from the log. While it starts, it waits if the database is
unavailable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from escapement.broker.broker import Broker
from escapement.broker.crash import one_error
from escapement.broker.front.front import Front
from escapement.errors import IndexDamaged, LeaseLost, StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage.commit.lane import FIRST_PROBE_S, LAST_PROBE_S
from escapement.storage.engine.base import TransactionAborted

_log = EventLog(__name__)

# Errors of a start that mean: the database does not answer at the moment.
_UNAVAILABLE: Final = (StorageUnavailable, TransactionAborted)


class OwnedBundle:
    """A bundle that this process owns, takes, or releases.

    Args:
      make_broker: returns a new broker of the bundle.
      front: serves the connections of the broker.
      on_ready: called each time a broker begins to serve.
      former_owner: the name of the node that had the bundle before; "" if none did.
    """

    def __init__(
        self,
        bundle_id: int,
        make_broker: Callable[[], Broker],
        front: Front,
        on_ready: Callable[[Broker], None],
        former_owner: str = "",
    ) -> None:
        self.id = bundle_id
        self.released = False  # whether ``release`` was called
        self.is_free = False  # whether the last broker has released the bundle in the database
        self._make_broker = make_broker
        self._front = front
        self._on_ready = on_ready
        self._former_owner = former_owner
        self._broker: Broker | None = None
        self._release = trio.Event()

    @property
    def serving(self) -> Broker | None:
        """The broker, if it serves clients."""
        return self._broker if self._broker is not None and self._broker.is_serving else None

    def release(self) -> None:
        """Stop the broker cleanly, and release the bundle."""
        self.released = True
        self._release.set()
        if self._broker is not None:
            self._broker.stop()

    async def run(self, *, patient: bool) -> None:
        """Take the bundle, and serve until it is released, lost, or owned by another process.

        Args:
          patient: whether to wait for a database that cannot be reached at the start.

        Raises:
          StorageError: if the broker cannot start, or must not continue; the message says why.
          LeaseHeld: if another process owns the bundle.
        """
        pause_s = FIRST_PROBE_S
        while not self.released:
            try:
                with one_error():
                    await self._serve()
                return
            except IndexDamaged as error:
                if self.released:
                    _log.error(
                        "index.rebuild_postponed",
                        "the next start rebuilds the delayed index from the log: %s",
                        error,
                    )
                    return
                _log.error(
                    "index.rebuilding", "rebuilding the delayed index from the log: %s", error
                )
                patient, pause_s = True, FIRST_PROBE_S
            except LeaseLost as error:
                _log.warning("lease.lost", "the broker of bundle %d ends: %s", self.id, error)
                return
            except _UNAVAILABLE as error:
                # A lock ends soon. A server that cannot be reached may have a wrong address.
                if not patient and isinstance(error, StorageUnavailable):
                    raise
                _log.warning(
                    "bundle.waiting",
                    "the start of bundle %d%s waits for the database: %s",
                    self.id,
                    self._former_owner and f", which broker {self._former_owner!r} had before,",
                    error,
                )
                with trio.move_on_after(pause_s):
                    await self._release.wait()
                pause_s = min(2 * pause_s, LAST_PROBE_S)
            finally:
                self._broker = None

    async def _serve(self) -> None:
        """Run one broker of the bundle until it ends."""
        broker = self._broker = self._make_broker()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._front.run_broker, broker)
                self._on_ready(broker)
        finally:
            self.is_free = broker.released
