"""An operator who drains nodes, moves bundles and adds some, by the verbs of ``admin cluster``."""

from __future__ import annotations

from typing import Any, Final

import trio

from escapement.errors import Conflict, EscapementError, NotFound
from simulation.clocks import HOUR_S
from simulation.world import World

_MEAN_S: Final = 16 * HOUR_S
_MOST_BUNDLES: Final = 4


class Operator:
    """The operator of all nodes of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.chance("operator")
        self._kinds: dict[str, int] = {"drain": 3, "undrain": 3, "move": 5, "bundles": 1}

    async def run(self) -> None:
        """Ask for changes until cancelled."""
        while True:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            (kind,) = self._rng.choices(list(self._kinds), list(self._kinds.values()))
            await self._ask(kind, self._arguments(kind))

    def _arguments(self, kind: str) -> dict[str, Any]:
        world = self._world
        node = self._rng.choice(world.hosts).identity.owner_id
        if kind == "bundles":
            # An answer may have been lost, so this many may exist already.
            world.bundles = min(world.bundles + 1, _MOST_BUNDLES)
            return {"count": world.bundles}
        if kind == "move":
            bundle_id = self._rng.randrange(world.bundles)
            return {"bundle": bundle_id, "node": node if self._rng.random() < 0.7 else None}
        return {"node": node}

    async def _ask(self, kind: str, arguments: dict[str, Any]) -> None:
        try:
            async with self._world.connect() as client:
                await client.admin(f"cluster.{kind}", **arguments)
            self._world.history.counts[kind] += 1
        except (Conflict, NotFound):  # the last node that wants bundles, or one that is not alive
            return
        except EscapementError as error:
            if not error.retryable:
                raise
