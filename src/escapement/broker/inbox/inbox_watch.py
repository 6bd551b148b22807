"""Looks whether the inbox has entries to move, for the inbox relays of all brokers of a process.

Other processes and the brokers of other bundles write entries too, and only the database knows
them. So the watch asks it periodically, once for all brokers of a node. While the inbox is empty,
their relays ask nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from escapement.broker.outage import Outage
from escapement.storage.blocking import Run
from escapement.storage.engine.connection_pool import ConnectionPool
from escapement.storage.inbox import inbox


class InboxWatch:
    """The task that looks at the inbox.

    Args:
      poll_s: the time between two looks.
    """

    def __init__(self, connections: ConnectionPool, run: Run, poll_s: float) -> None:
        self._connections = connections
        self._run = run
        self._poll_s = poll_s
        self._told: list[Callable[[bool], None]] = []

    @contextmanager
    def telling(self, tell: Callable[[bool], None]) -> Iterator[None]:
        """In the ``with`` block, call ``tell`` after each look: whether there are entries."""
        self._told.append(tell)
        try:
            yield
        finally:
            self._told.remove(tell)

    async def run(self) -> None:
        """Look at the inbox forever."""
        outage = Outage("inbox.waiting", "inbox entries wait")
        while True:
            await trio.sleep(self._poll_s)
            if self._told:
                with outage:
                    occupied = await self._run(self._is_occupied)
                    for tell in self._told:
                        tell(occupied)

    def _is_occupied(self) -> bool:
        with self._connections.use() as connection:
            return bool(inbox.occupied(connection, 0, 1))
