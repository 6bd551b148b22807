"""Messages with priorities in a topic whose messages expire."""

from __future__ import annotations

from typing import ClassVar, Final

import trio

from histories.history import NEVER_MS
from simulation.checks.expiring import ExpiryCheck
from simulation.clocks import HOUR_S, LEASE_MS
from simulation.features.feature import BACKOFF, Feature, Policies, Topics
from simulation.world import World

_TOPIC: Final = "expiring"
_SUBSCRIPTION: Final = "e"
_BATCH: Final = 5
_MEAN_S: Final = 14 * HOUR_S
_TTL_MS: Final = 2 * LEASE_MS
_AGEING_MS: Final = 600_000
_PRIORITIES: Final = (0, 50, 50, 200)


class Expiring(Feature):
    """Sends with priorities. Consumers often stay away for so long that messages expire."""

    topics: ClassVar[Topics] = {_TOPIC: {_SUBSCRIPTION: "shared"}}
    topic_policies: ClassVar[Policies] = {_TOPIC: {"ttl_ms": _TTL_MS}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.policies = {_SUBSCRIPTION: {**BACKOFF, "priority_ageing_ms": _AGEING_MS}}
        self.check = ExpiryCheck(_SUBSCRIPTION, _TTL_MS, _AGEING_MS)
        self._history.expired_ms[_TOPIC] = NEVER_MS

    def heal(self) -> None:
        # A broker that died keeps its lease for a while. Then consumers are quick.
        waits_ms = _TTL_MS - LEASE_MS * 3 // 2
        self._history.expired_ms[_TOPIC] = self._history.now_ms() - waits_ms

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            messages, delays_ms = self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms)
            priorities = [self._rng.choice(_PRIORITIES) for _ in messages]
            for message, priority in zip(messages, priorities, strict=True):
                self.check.priorities[message.number] = priority
            await self._send(messages, delays_ms, priorities=priorities)
