"""A step with messages of two keys that fall due within one tick (Q9)."""

from __future__ import annotations

from simulation.exact.events import Events
from simulation.exact.model import KINDS
from simulation.exact.subscribers import Subscribers
from simulation.exact.traffic import Traffic


class SameTick(Subscribers, Traffic, Events):
    """A step of milliseconds on subscriptions with an order."""

    async def same_tick(self) -> None:
        if self.rng.random() < 0.7:
            await self.patiently(lambda: self.set_ticks(300_000, 1000))
        await self.patiently(self.subscribe)
        await self.patiently(self.keep_order)
        for _ in range(self.rng.choice([3, 6])):
            await self.patiently(lambda: self.publish([0, 0.03, 0.456], ["p", "q"]))
            await self.settle()
            await self.world.clock.advance(ms=self.rng.choice([7, 130, 300]))
            await self.settle()
            await self.patiently(self.consume)
            await self.settle()

    async def keep_order(self) -> None:
        """Set an order for most subscriptions with consumers."""
        for name in sorted({name for name, _, _ in self.inboxes if KINDS[name] == "shared"}):
            if self.rng.random() < 0.7:
                await self.limit(name, {"order": self.rng.choice(["key", "topic"])})
