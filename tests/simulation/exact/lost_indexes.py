"""Starts without an index, which the broker fills from the log while steps go on (B5, P5).

The fill stops in the middle. Meanwhile the broker delivers what it has found, none early and none
twice, and in the order of an ordered subscription. A broker may crash, or lose the index once more,
before the fill ends. After its end all messages are there.
"""

from __future__ import annotations

from simulation.exact.subscribers import Subscribers
from simulation.exact.traffic import Traffic
from support.faults.held_calls import BACKFILL, Held

# Steps that need no search of the index.
DURING_FILL = [
    "publish", "publish", "post", "consume", "consume", "reschedule", "cancel", "subscribe", "seek",
    "leave", "unsubscribe", "settings", "checkpoint", "pass_some_time",
]  # fmt: skip


class LostIndexes(Subscribers, Traffic):
    """A step in which a lost index is filled slowly."""

    held: Held  # holds back the reads of a fill

    async def fill_slowly(self) -> None:
        await self.kill()
        self.disks[0].lose()
        self.filling = True
        with self.held.hold(BACKFILL, self.rng.randrange(12)):
            await self.recover()
            for _ in range(self.rng.randrange(5)):
                await self.settle()
                await self.patiently(getattr(self, self.rng.choice(DURING_FILL)))
            await self.settle()
            dies = self.rng.random() < 0.5
            if dies:
                self.engine.cut()  # the fill does not go on
        self.filling = False
        self.model.quiet_since_ms = self.now_ms  # quotas were not checked meanwhile
        if dies:
            await self.kill()
            await self.recover()
        for expectation in self.model.expectations.values():
            expectation.ordered_from, expectation.ready = self.model.end, {}

    async def pass_some_time(self) -> None:
        await self.world.clock.advance(seconds=self.rng.choice([1, 40, 100]))
