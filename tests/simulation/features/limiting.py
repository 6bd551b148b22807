"""Limits of subscriptions: messages in flight, and messages per second."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import trio

import escapement
from simulation.checks.limiting import LimitCheck, Limits
from simulation.clocks import HOUR_S
from simulation.features.feature import REPEATED_S, Feature, Topics
from simulation.world import World

_TOPIC: Final = "limited"
_BATCH: Final = 10
_MEAN_S: Final = 8 * HOUR_S
_CHANGE_SHARE: Final = 0.15
_MOST_IN_FLIGHT: Final = (0, 1, 2, 4)
# A message in some minutes. A faster rate would not hold up the few messages of a run.
_RATES: Final = (0.0, 0.002, 0.005)


class Limiting(Feature):
    """Sends batches to subscriptions with two consumers each, and changes their limits."""

    topics: ClassVar[Topics] = {_TOPIC: {"l": "shared", "u": "log"}}
    consumers: ClassVar[int] = 2

    def __init__(self, world: World) -> None:
        super().__init__(world)
        limits = {name: [Limits(from_ms=0)] for name in self.topics[_TOPIC]}
        self.check = LimitCheck(limits, world.terms[world.bundle_of(_TOPIC)])

    async def run(self, end_ms: int) -> None:
        for name in self.check.limits:
            await self._change(name)
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            if self._rng.random() < _CHANGE_SHARE:
                await self._change(self._rng.choice(list(self.check.limits)))
            await self._send(*self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms))

    async def _change(self, name: str) -> None:
        """Set other limits of a subscription."""
        limits = Limits(
            called_ms=self._history.now_ms(),
            max_in_flight=self._rng.choice(_MOST_IN_FLIGHT),
            max_rate=self._rng.choice(_RATES),
        )
        self.check.limits[name].append(limits)
        policy: dict[str, Any] = {
            "max_in_flight": limits.max_in_flight,
            "max_rate": limits.max_rate,
        }

        async def change(client: escapement.Broker) -> None:
            names = {"topic": _TOPIC, "subscription": name}
            await client.admin("subscriptions.update", **names, policy=policy)

        await self._ask_surely(_TOPIC, change)
        limits.from_ms = self._history.now_ms() + int(REPEATED_S * 1000)
        self._history.counts["limit changes"] += 1
