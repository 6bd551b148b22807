"""Bulk changes of all messages with a key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

import trio

import escapement
from escapement.client.administration.bulk import BulkChange
from simulation.checks.bulk import BulkCheck
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.features.bulk_changes import BulkFeature
from simulation.features.feature import Topics
from simulation.world import World

_TOPIC: Final = "bulky"
_SUBSCRIPTION: Final = "b"
_KEYS: Final = 3
_BATCH: Final = 6
_MEAN_S: Final = 12 * HOUR_S
_SPREADS_MS: Final = (0, 0, 36_000_000)
_ACTIONS: Final = {"cancel": 3, "reschedule": 4, "run_now": 3}


class Bulk(BulkFeature):
    """Sends messages with few keys, and cancels, reschedules or runs all of a key."""

    topics: ClassVar[Topics] = {_TOPIC: {_SUBSCRIPTION: "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = BulkCheck(_SUBSCRIPTION, 3 * MOST_SKEW_MS)
        self._keys: dict[int, str] = {}  # of each message

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
        """Carry out a bulk change of all messages with a key."""
        key, now_ms = f"b{self._rng.randrange(_KEYS)}", self._history.now_ms()
        (action,) = self._rng.choices(list(_ACTIONS), list(_ACTIONS.values()))
        due_ms, spread_ms = None, 0
        if action != "cancel":
            spread_ms = self._rng.choice(_SPREADS_MS)
            due_ms = now_ms - MOST_SKEW_MS
        if action == "reschedule":
            due_ms = now_ms + random_delay_ms(self._rng, max(end_ms - now_ms, 0))
        messages = [
            self._history.messages[one] for one, found in self._keys.items() if found == key
        ]
        changes = self.check.begin(messages, due_ms, now_ms, spread_ms)

        async def start(client: escapement.Broker, reason: str) -> BulkChange:
            if action == "cancel":
                return await client.bulk.cancel(_TOPIC, key=key, reason=reason)
            spread = timedelta(milliseconds=spread_ms) if spread_ms else None
            if action == "run_now":
                return await client.bulk.run_now(_TOPIC, spread=spread, key=key, reason=reason)
            assert due_ms is not None
            at = datetime.fromtimestamp(due_ms / 1000, UTC)
            return await client.bulk.reschedule(
                _TOPIC, at=at, spread=spread, key=key, reason=reason
            )

        change = await self._carry_out(_TOPIC, start)
        if change is not None and change.state == "done":
            self.check.end(changes, self._history.now_ms())
