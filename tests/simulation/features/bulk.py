"""Bulk changes of all messages with a key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar, Final

import trio

import escapement
from escapement.client.administration.bulk import BulkChange
from escapement.errors import EscapementError, NotFound
from simulation.checks.bulk import BulkCheck
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.features.feature import STALE_S, Feature, Topics
from simulation.world import World

_TOPIC: Final = "bulky"
_SUBSCRIPTION: Final = "b"
_KEYS: Final = 3
_BATCH: Final = 6
_MEAN_S: Final = 12 * HOUR_S
_POLL_S: Final = 3 * HOUR_S


class Bulk(Feature):
    """Sends messages with few keys, and cancels or reschedules all of a key."""

    topics: ClassVar[Topics] = {_TOPIC: {_SUBSCRIPTION: "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = BulkCheck(3 * MOST_SKEW_MS)
        self._keys: dict[int, str] = {}  # of each message
        self._changes = 0

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            if self._rng.random() < 0.7:
                messages, delays_ms = self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms)
                keys = [f"b{self._rng.randrange(_KEYS)}" for _ in messages]
                for message, key in zip(messages, keys, strict=True):
                    message.key = self._keys[message.number] = key
                await self._send(messages, delays_ms)
            else:
                await self._change(end_ms)

    async def _change(self, end_ms: int) -> None:
        """Start a bulk change, and wait until it has ended."""
        key, now_ms = f"b{self._rng.randrange(_KEYS)}", self._history.now_ms()
        due_ms = None
        if self._rng.random() < 0.6:
            due_ms = now_ms + random_delay_ms(self._rng, max(end_ms - now_ms, 0))
        messages = self._history.messages
        some = [messages[number] for number, found in self._keys.items() if found == key]
        changes = self.check.begin(some, due_ms, now_ms)
        self._changes += 1
        change = await self._start(key, due_ms, f"change {self._changes}")
        while change is not None and not change.has_ended:
            await trio.sleep(self._rng.uniform(60, _POLL_S))
            change = await self._show(change.id)
        if change is None:
            self._history.counts["bulk changes without an answer"] += 1
        elif change.state == "done":
            self.check.end(changes, self._history.now_ms(), _SUBSCRIPTION)
            self._history.counts["bulk changes"] += 1
        else:
            self.check.found.append(f"bulk: {change.reason} is {change.state}: {change.error}")

    async def _start(self, key: str, due_ms: int | None, reason: str) -> BulkChange | None:
        """Start a bulk change, once. Without an answer, look for it."""
        try:
            async with self._world.connect() as client:
                if due_ms is None:
                    return await client.bulk.cancel(_TOPIC, key=key, reason=reason)
                at = datetime.fromtimestamp(due_ms / 1000, UTC)
                return await client.bulk.reschedule(_TOPIC, at=at, key=key, reason=reason)
        except EscapementError as error:
            if not error.retryable:
                raise
        listed: list[BulkChange] = []

        async def look(client: escapement.Broker) -> None:
            listed[:] = await client.bulk.list()

        await self._ask_surely(_TOPIC, look)
        return next((one for one in listed if one.reason == reason), None)

    async def _show(self, id: int) -> BulkChange:
        shown: list[BulkChange] = []

        async def show(client: escapement.Broker) -> None:
            shown.append(await client.bulk.show(_TOPIC, id))

        while not shown:
            try:
                await self._ask_surely(_TOPIC, show)
            except NotFound:  # from a broker that has lost its lease before the start
                await trio.sleep(STALE_S)
        return shown[0]
