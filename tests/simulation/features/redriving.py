"""A client that redrives dead letters, which are often in another bundle than their topic."""

from __future__ import annotations

from typing import ClassVar, Final

import trio

import escapement
from escapement.errors import EscapementError, NotFound
from simulation.checks.redriving import Letter, RedriveCheck
from simulation.clocks import HOUR_S
from simulation.features.feature import BACKOFF, Feature, Topics
from simulation.history import number_of
from simulation.world import World
from support.bundle_topics import topic_of_each_bundle

_TOPIC: Final = "fragile"
_SUBSCRIPTION: Final = "f"
_BATCH: Final = 3
_MEAN_S: Final = 10 * HOUR_S
_MOST: Final = 1_000


class Redriving(Feature):
    """Messages whose first failure is their death, and redrives of some dead letters."""

    topics: ClassVar[Topics] = {_TOPIC: {_SUBSCRIPTION: "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # If there are two bundles, it is in the other one than its topic.
        graveyards = topic_of_each_bundle(world.bundles, "graveyard")
        self._graveyard = graveyards[world.bundle_of(_TOPIC) - 1]
        self.policies = {
            _SUBSCRIPTION: {**BACKOFF, "max_deliveries": 1, "dead_letter_topic": self._graveyard}
        }
        self.check = RedriveCheck(_TOPIC, _SUBSCRIPTION)

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            if self._rng.random() < 0.5:
                await self._send(*self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms))
            else:
                await self._redrive(0.5)

    async def look(self) -> None:
        """Redrive all that is left, once, and list what is left of it."""
        await self._redrive(1.0)

    async def _redrive(self, share: float) -> None:
        """List all dead letters, and redrive a share of them."""
        try:
            async with self._world.connect(self._world.bundle_of(self._graveyard)) as client:
                await self._list(client)
                remaining = sorted(self.check.remaining)
                chosen = [offset for offset in remaining if self._rng.random() < share]
                if chosen:
                    self.check.ask(self._history, set(chosen))
                    await client.admin("dlq.redrive", **self._names, offsets=chosen)
                    self.check.redriven |= set(chosen)
                    self._history.counts["redriven"] += len(chosen)
        except NotFound:
            return  # there is no dead letter yet
        except EscapementError as error:
            if not error.retryable:
                raise
            self._history.counts["redrives without an answer"] += 1

    @property
    def _names(self) -> dict[str, str]:
        return {
            "topic": _TOPIC, "subscription": _SUBSCRIPTION, "dead_letter_topic": self._graveyard
        }  # fmt: skip

    async def _list(self, client: escapement.Broker) -> None:
        rows = await client.admin("dlq.list", **self._names, count=_MOST)
        assert len(rows) < _MOST, "more dead letters than one listing shows"
        letters = {
            row["offset"]: Letter(number_of(row["payload"]), row["original_offset"]) for row in rows
        }
        self.check.list(self._history, letters)
