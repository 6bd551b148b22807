"""A client that redrives dead letters, which are often in another bundle than their topic."""

from __future__ import annotations

from typing import ClassVar, Final

import trio

from escapement.errors import EscapementError, NotFound
from histories.recording import list_dead_letters, redrive
from simulation.clocks import HOUR_S
from simulation.features.feature import BACKOFF, Feature, Topics
from simulation.world import World
from support.bundle_topics import topic_of_each_bundle

_TOPIC: Final = "fragile"
_SUBSCRIPTION: Final = "f"
_BATCH: Final = 3
_MEAN_S: Final = 10 * HOUR_S


class Redriving(Feature):
    """Messages whose first failure is their death, and redrives of some dead letters."""

    topics: ClassVar[Topics] = {_TOPIC: {_SUBSCRIPTION: "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # If there are several bundles, it is in another one than its topic.
        graveyards = topic_of_each_bundle(world.bundles, "graveyard")
        self._graveyard = graveyards[world.bundle_of(_TOPIC) - 1]
        self.policies = {
            _SUBSCRIPTION: {**BACKOFF, "max_deliveries": 1, "dead_letter_topic": self._graveyard}
        }
        self._history.max_deliveries[_SUBSCRIPTION] = 1
        self._is_healed = False

    def heal(self) -> None:
        self._is_healed = True

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            if self._rng.random() < 0.5:
                await self._send(*self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms))
            else:
                await self._redrive(0.5)

    async def look(self) -> None:
        """Redrive all dead letters, and list them again.

        The second listing shows which redriven messages must still come.
        """
        await self._redrive(1.0)
        await self._redrive(0.0)

    async def _redrive(self, share: float) -> None:
        """List all dead letters, and redrive a share of them."""
        names = {"dead_letter_topic": self._graveyard}
        try:
            async with self._world.connect() as client:
                found = self._history.dead_letters[_SUBSCRIPTION]
                before = found.remaining - found.asked
                await list_dead_letters(self._history, client, _TOPIC, _SUBSCRIPTION, **names)
                if not self._is_healed:  # the broker may have shown an earlier state
                    found.remaining |= before
                if chosen := [one for one in sorted(found.remaining) if self._rng.random() < share]:
                    await redrive(self._history, client, _TOPIC, _SUBSCRIPTION, chosen, **names)
        except NotFound:
            return  # there is no dead letter yet
        except EscapementError as error:
            if not error.retryable:
                raise
            self._history.counts["redrives without an answer"] += 1
