"""The periodic looks that all brokers of a process share.

A node has one lookout for all of its brokers, so that many idle bundles cost little more than one.
"""

from __future__ import annotations

import trio

from escapement.broker.delivery.wall_clock import WallClock
from escapement.broker.inbox.inbox_watch import InboxWatch
from escapement.broker.limits import BrokerLimits
from escapement.clock import Clock
from escapement.storage.blocking import Run
from escapement.storage.engine.connection_pool import ConnectionPool


class Lookout:
    """The looks of a process at its wall clock and at the inbox."""

    def __init__(
        self, connections: ConnectionPool, clock: Clock, run: Run, limits: BrokerLimits
    ) -> None:
        self.wall_clock = WallClock(clock, limits.max_sleep_s)
        self.inbox = InboxWatch(connections, run, limits.inbox_poll_s)

    async def run(self) -> None:
        """Look forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.wall_clock.run)
            nursery.start_soon(self.inbox.run)
