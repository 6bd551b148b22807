"""Consumers that acknowledge, fail, release, forget, leave and vanish."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any, Final

import trio

import escapement
from escapement.errors import EscapementError
from histories.history import Way
from histories.recording import RecordedInbox
from simulation.clocks import HOUR_S
from simulation.world import World

ACTIONS: Final = {"ack": 40, "durable": 30, "nack": 10, "release": 5, "forget": 10, "extend": 3}
# The kind of a subscription with one consumer, which the history calls ``log``.
EXCLUSIVE: Final = "exclusive"
# The kinds that the broker knows. The others are shared.
KINDS: Final = {"log": "failover", EXCLUSIVE: "exclusive"}
PERMITS: Final = 8


class Subscriber:
    """The consumers of one subscription, one after the other, each on a connection of its own."""

    def __init__(self, world: World, topic: str, subscription: str, number: int) -> None:
        self._world = world
        self._history = world.history
        self._topic = topic
        self._subscription = subscription
        self._rng = world.chance(f"consumer {subscription} {number}")
        self.careful = False  # joins again, acknowledges everything, and stays

    async def run(self) -> None:
        """Consume until cancelled."""
        while True:
            try:
                async with self._world.connect() as client:
                    for _ in range(self._rng.randint(1, 4)):
                        await self._stay(client)
            except EscapementError as error:
                if not error.retryable:
                    raise
            await trio.sleep(self._rng.uniform(1, 60 if self.careful else 12 * HOUR_S))

    async def _stay(self, client: escapement.Broker) -> None:
        """Be a consumer for some time, and leave."""
        kind = KINDS.get(self._history.kinds[self._subscription], "shared")
        options: dict[str, Any] = {"kind": kind, "permits": self._rng.randint(1, PERMITS)}
        stay_s = self._draw_stay_s()
        async with client.consumer(self._topic, self._subscription, **options) as inbox:
            recorded = RecordedInbox(self._history, self._subscription, inbox, way_of)
            await self._consume(recorded, inbox, stay_s)

    def _draw_stay_s(self) -> float:
        """Return how long to be a consumer."""
        return self._rng.uniform(0.5 * HOUR_S, 60 * HOUR_S)

    async def _consume(
        self, recorded: RecordedInbox, inbox: escapement.Inbox, stay_s: float
    ) -> None:
        """Handle messages for some time."""
        end_s = trio.current_time() + stay_s
        careful = self.careful
        try:
            while careful or (trio.current_time() < end_s and not self.careful):
                message = await inbox.receive(timeout_s=min(stay_s, 8 * HOUR_S))
                if message is not None:
                    await self._handle(recorded, inbox, message)
        finally:
            recorded.leave()

    async def _handle(
        self, recorded: RecordedInbox, inbox: escapement.Inbox, message: escapement.Message
    ) -> None:
        offset = message.offset
        (action,) = self._rng.choices(list(ACTIONS), list(ACTIONS.values()))
        if self.careful:
            action = "durable"
        self._history.counts[action] += 1
        if action in ("nack", "release"):
            give_back = recorded.nack if action == "nack" else recorded.release
            delay = self._rng.choice([None, timedelta(minutes=self._rng.randint(0, 90))])
            await give_back([offset], delay)
        elif action == "ack":
            await recorded.ack([offset])
        elif action == "extend":
            await inbox.extend(offset, timedelta(minutes=10))
        elif action == "durable":
            await recorded.ack_durably([offset])
        if not self.careful and self._rng.random() < 0.3:
            await trio.sleep(self._rng.uniform(0, 0.4 * HOUR_S))


def way_of(stream: Any) -> Way:
    """Return how the bytes came that a client has received last."""
    return Way(stream.cable, stream.host, stream.last)


def random_delay_ms(rng: random.Random, left_ms: int) -> int:
    """Return a delay: none, some minutes, hours or days, but at most ``left_ms``."""
    longest_ms = rng.choice([0, 0, 60_000, 3_600_000, 36_000_000, 20 * 86_400_000])
    return min(rng.randint(0, longest_ms), left_ms)
