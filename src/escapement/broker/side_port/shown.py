"""The broker that the side port shows, and the requests that use it.

The server replaces the broker after damage of the index, while the side port goes on. Before a
broker closes its database connections and files, ``end`` cancels the requests that use it, and
waits until their calls in threads have returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from escapement.broker.broker import Broker
from escapement.broker.upkeep.census import Census, CensusTaker
from escapement.errors import Busy, ShuttingDown


class Shown:
    """The present broker of the process, if one has started, and the number of its connections."""

    def __init__(self) -> None:
        self.broker: Broker | None = None
        self.connections: Callable[[], int] = lambda: 0
        self._census_taker: CensusTaker | None = None
        self._uses: set[trio.CancelScope] = set()
        self._use_ended = trio.Event()

    def show(self, broker: Broker, connections: Callable[[], int]) -> None:
        """Show a broker that has just started, and accepts connections now."""
        self.broker, self.connections = broker, connections
        self._census_taker = broker.services.census_taker()

    async def end(self) -> None:
        """Show no broker, and end all requests that use it."""
        self.broker = self._census_taker = None
        for scope in self._uses:
            scope.cancel()
        while self._uses:
            self._use_ended = trio.Event()
            await self._use_ended.wait()

    @contextmanager
    def use(self) -> Iterator[Broker]:
        """Use the broker in a ``with`` block, which is cancelled if the broker ends.

        Raises:
          Busy: if no broker has started.
          ShuttingDown: if the broker ended.
        """
        if self.broker is None:
            raise Busy("the broker has not started yet")
        with trio.CancelScope() as scope:
            self._uses.add(scope)
            try:
                yield self.broker
            finally:
                self._uses.discard(scope)
                self._use_ended.set()
        if scope.cancelled_caught:
            raise ShuttingDown("the broker is stopping")

    # -- the census ------------------------------------------------------------

    @property
    def last_census(self) -> Census | None:
        """The last census of the broker; None if there was none."""
        return None if self._census_taker is None else self._census_taker.last

    async def freshen_census(self, nursery: trio.Nursery, within_s: float) -> None:
        """Wait up to ``within_s`` for a new census, unless it is too early for one.

        Args:
          nursery: runs the census, which goes on if the caller is cancelled.
        """
        if (taker := self._census_taker) is not None:
            await taker.fresh(lambda take: nursery.start_soon(self._using, take), within_s)

    async def _using(self, run: Callable[[], Awaitable[None]]) -> None:
        with suppress(Busy, ShuttingDown), self.use():
            await run()
