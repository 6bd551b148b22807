"""Records deliveries: that a message was delivered, and how often. Q2, V4.

A delivery waits for no commit. If a consumer has held a message for a moment and has not
acknowledged it, the attempt goes into a group commit. A message that is acknowledged at once, as
most are, costs nothing. After a kill -9 the next broker knows all deliveries except those of the
last ``2 * AFTER_MS`` and the duration of a commit.
"""

from __future__ import annotations

from typing import Final

import trio

from escapement.broker.subscription.subscription import Subscription
from escapement.clock import Clock

# A delivery is recorded after this time at the earliest, and twice this time at the latest.
AFTER_MS: Final = 10


class Recorder:
    """The task that records deliveries."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holding: set[Subscription] = set()
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
