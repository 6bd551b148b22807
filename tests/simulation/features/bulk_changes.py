"""Bulk changes that a client starts, and waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

import escapement
from escapement.client.administration.bulk import BulkChange
from escapement.errors import EscapementError, NotFound
from simulation.clocks import HOUR_S
from simulation.features.feature import STALE_S, Feature
from simulation.world import World

# How a client starts a bulk change with a reason, by which it finds the change again.
Start = Callable[[escapement.Broker, str], Awaitable[BulkChange]]

_POLL_S: Final = 3 * HOUR_S


class BulkFeature(Feature):
    """The base of features with bulk changes."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._changes = 0

    async def _carry_out(self, topic: str, start: Start) -> BulkChange | None:
        """Start a bulk change, once, and wait until it has ended.

        Returns:
          The change. None if no answer came: then it may begin later.
        """
        self._changes += 1
        change = await self._start(topic, f"change {self._changes} of {topic}", start)
        while change is not None and not change.has_ended:
            await trio.sleep(self._rng.uniform(60, _POLL_S))
            change = await self._show(topic, change.id)
        if change is None:
            self._history.counts["bulk changes without an answer"] += 1
        elif change.state == "done":
            self._history.counts[f"bulk {change.action}"] += 1
        else:
            self._history.surprises.append(
                f"bulk: {change.reason} is {change.state}: {change.error}"
            )
        return change

    async def _start(self, topic: str, reason: str, start: Start) -> BulkChange | None:
        """Start a bulk change, once. Without an answer, look for it."""
        try:
            async with self._world.connect() as client:
                return await start(client, reason)
        except EscapementError as error:
            if not error.retryable:
                raise
        listed: list[BulkChange] = []

        async def look(client: escapement.Broker) -> None:
            listed[:] = await client.bulk.list()

        await self._ask_surely(topic, look)
        return next((one for one in listed if one.reason == reason), None)

    async def _show(self, topic: str, id: int) -> BulkChange:
        shown: list[BulkChange] = []

        async def show(client: escapement.Broker) -> None:
            shown.append(await client.bulk.show(topic, id))

        while not shown:
            try:
                await self._ask_surely(topic, show)
            except NotFound:  # from a broker that has lost its lease before the start
                await trio.sleep(STALE_S)
        return shown[0]
