"""A client that moves subscriptions back and ahead, and pauses them."""

from __future__ import annotations

from typing import ClassVar, Final

import trio

import escapement
from histories.history import Seek
from simulation.checks.seeking import Pause, SeekCheck
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.features.feature import KEPT, REPEATED_S, Feature, Topics
from simulation.world import World

_TOPIC: Final = "sought"
_BATCH: Final = 4
_MEAN_S: Final = 18 * HOUR_S
_LONGEST_PAUSE_S: Final = 12 * HOUR_S
_DAY_MS: Final = 86_400_000


class Seeking(Feature):
    """Seeks by offset and by time, and pauses. The log keeps all messages for them."""

    topics: ClassVar[Topics] = {_TOPIC: {"q": "shared", "p": "log", "keeper": KEPT}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = SeekCheck(_TOPIC, 3 * MOST_SKEW_MS)
        self._history.seeks = {"q": [], "p": []}

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            name = self._rng.choice(["q", "p"])
            (act,) = self._rng.choices([self._seek, self._pause, None], [3, 2, 5])
            if act is not None:
                await act(name)
            else:
                await self._send(*self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms))

    async def _seek(self, name: str) -> None:
        seek = self._position(name)
        self._history.seeks[name].append(seek)

        async def ask(client: escapement.Broker) -> None:
            where = f"offset:{seek.offset}" if seek.from_ms is None else f"time:{seek.from_ms}"
            names = {"topic": _TOPIC, "subscription": name}
            await client.admin("subscriptions.seek", **names, position=where)

        await self._ask_surely(_TOPIC, ask)
        self._history.end_seek(seek, self._history.now_s() + REPEATED_S)
        self._history.counts["seeks"] += 1

    def _position(self, name: str) -> Seek:
        """Draw a position: an offset that is stored, or a time."""
        stored = [one.offset for one in self._history.messages if one.topic == _TOPIC]
        called_s = self._history.now_s()
        if self._rng.random() < 0.5:
            return Seek(name, called_s, offset=self._rng.randint(0, max([0, *stored])))
        from_ms = self._history.now_ms() + self._rng.randint(-20 * _DAY_MS, 2 * _DAY_MS)
        return Seek(name, called_s, from_ms=from_ms)

    async def _pause(self, name: str) -> None:
        """Pause a subscription for some hours."""
        await self._ask_surely(_TOPIC, lambda client: client.pause(_TOPIC, name))
        pause = Pause(name, self._history.now_s() + REPEATED_S)
        self.check.pauses.append(pause)
        await trio.sleep(self._rng.uniform(0, _LONGEST_PAUSE_S))
        pause.ended_s = self._history.now_s()
        await self._ask_surely(_TOPIC, lambda client: client.resume(_TOPIC, name))
        self._history.counts["pauses"] += 1
