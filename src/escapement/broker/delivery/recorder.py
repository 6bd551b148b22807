"""Has it on record what consumers hold: that it was fired, and how often. Q2, V4.

A hand-over is no commit: nobody waits for one before a message leaves. What a consumer has had
for a moment and has not acknowledged goes into a group commit, as an attempt; what it
acknowledges at once, which is most, costs nothing. After a kill -9 the next broker knows all
but what was handed out in the last ``2 * AFTER_MS`` and what a commit takes.
"""

from __future__ import annotations

from typing import Final

import trio

from escapement.broker.subscription.subscription import Subscription
from escapement.clock import Clock

# So long at least, and twice as long at most, before a hand-over goes on record.
AFTER_MS: Final = 10


class Recorder:
    """See the module's docstring."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holding: set[Subscription] = set()
        self._work = trio.Event()

    def sent(self, subscription: Subscription) -> None:
        """Something of a subscription was sent to a consumer."""
        self._holding.add(subscription)
        self._work.set()

    async def run(self) -> None:
        """Work for ever."""
        while True:
            if not self._holding:
                self._work = trio.Event()
                await self._work.wait()
            await trio.sleep(AFTER_MS / 1000)
            now_ms = self._clock.now_ms()
            for subscription in list(self._holding):
                if not subscription.attempts.record_sent(now_ms, AFTER_MS):
                    self._holding.discard(subscription)
