"""Records in the database how often each in-flight message was delivered. Q2, V4.

A delivery waits for no commit. If a message is still in flight ``AFTER_MS`` after it was sent, its
delivery attempt is recorded with the next group commit. A message that is acknowledged sooner, as
most are, costs no record. After a kill -9 the next broker knows all deliveries, except those within
the last ``2 * AFTER_MS`` plus the duration of a commit.
"""

from __future__ import annotations

from typing import Final

import trio

from escapement.broker.subscription.subscription import Subscription
from escapement.clock import Clock

# A delivery is recorded at the earliest this long after the message was sent, and at the latest
# twice as long after.
AFTER_MS: Final = 10


class Recorder:
    """The task that records deliveries."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holding: set[Subscription] = set()  # those that may have unrecorded deliveries
        self._idle = trio.lowlevel.ParkingLot()

    def sent(self, subscription: Subscription) -> None:
        """Note that messages of a subscription were sent to a consumer."""
        self._holding.add(subscription)
        self._idle.unpark()

    async def run(self) -> None:
        """Record deliveries forever."""
        while True:
            while not self._holding:
                await self._idle.park()
            await trio.sleep(AFTER_MS / 1000)
            now_ms = self._clock.now_ms()
            for subscription in list(self._holding):
                if not subscription.attempts.record_sent(now_ms, AFTER_MS):
                    self._holding.discard(subscription)
