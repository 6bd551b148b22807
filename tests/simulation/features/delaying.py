"""A namespace whose delay policy, tick, partitions and retention change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.errors import (
    DelaysDisabled,
    DelayTooLong,
    DelayTooShort,
    EscapementError,
)
from histories.history import Message, number_of, payload_of
from simulation.checks.delaying import DelayCheck, Delays
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.features.feature import REPEATED_S, STALE_S, Feature, Topics
from simulation.world import World

_NAMESPACE: Final = "public/delaying"
_TOPIC: Final = f"{_NAMESPACE}/delayed"
_BATCH: Final = 3
_MEAN_S: Final = 9 * HOUR_S
# A change takes hours to reach all brokers, so changes are rare.
_CHANGE_SHARE: Final = 0.08
_HOUR_MS: Final = 3_600_000
# Pairs of a partition and a tick.
_STEPS_MS: Final = ((300_000, 10), (60_000, 500), (_HOUR_MS, 1_000), (24 * _HOUR_MS, 60_000))
_RETENTIONS_MS: Final = (0, 24 * _HOUR_MS, 120 * _HOUR_MS)


class Delaying(Feature):
    """Sends with and without delays, and changes the settings of the namespace."""

    namespace: ClassVar[str] = _NAMESPACE
    topics: ClassVar[Topics] = {_TOPIC: {"t": "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = DelayCheck(_TOPIC, 3 * MOST_SKEW_MS, [Delays(from_ms=0)])

    async def run(self, end_ms: int) -> None:
        await self._change()
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            if self._rng.random() < _CHANGE_SHARE:
                await self._change()
            elif self._rng.random() < 0.1:
                await self._look_at_log()
            await self._publish(end_ms)

    async def _change(self) -> None:
        draw = self._rng.choice
        least_ms = draw([0, 0, _HOUR_MS])
        most_ms = draw([0, 0, 48 * _HOUR_MS])
        new = Delays(
            called_ms=self._history.now_ms(),
            default_ms=draw([0, 2 * _HOUR_MS, 20 * _HOUR_MS]),
            least_ms=least_ms,
            most_ms=most_ms,
            are_enabled=self._rng.random() < 0.85,
            retention_ms=draw(_RETENTIONS_MS),
        )
        self.check.settings.append(new)
        granularity_ms, tick_ms = draw(_STEPS_MS)
        policy = {
            "default_delay_ms": new.default_ms,
            "min_delay_ms": least_ms,
            "max_delay_ms": most_ms,
            "retention_ms": new.retention_ms,
        }
        steps: dict[str, Any] = {"granularity_ms": granularity_ms, "tick_ms": tick_ms}

        async def change(client: escapement.Broker) -> None:
            await client.admin("namespaces.update", namespace=_NAMESPACE, policy=policy)
            await client.admin("namespaces.enable_delayed_message", namespace=_NAMESPACE, **steps)
            if not new.are_enabled:
                await client.admin("namespaces.disable_delayed_message", namespace=_NAMESPACE)

        await self._ask_surely(_TOPIC, change)
        # The brokers of other bundles read the settings some time later.
        new.from_ms = self._history.now_ms() + int((STALE_S + REPEATED_S) * 1000)
        self._history.counts["delay changes"] += 1

    async def _publish(self, end_ms: int) -> None:
        """Send a batch until its receipts come, or it is refused because of its delays."""
        now_ms = self._history.now_ms()
        delays_ms = [
            None
            if self._rng.random() < 0.4
            else random_delay_ms(self._rng, max(end_ms - now_ms, 0))
            for _ in range(self._rng.randint(1, _BATCH))
        ]
        messages = [
            self._history.publish(_TOPIC, "", now_ms + (delay_ms or 0) - MOST_SKEW_MS)
            for delay_ms in delays_ms
        ]
        while True:
            if await self._try(messages, delays_ms):
                return
            await trio.sleep(self._rng.uniform(1, 3 * HOUR_S))

    async def _try(self, messages: list[Message], delays_ms: list[int | None]) -> bool:
        """Send a batch. Return whether its fate is known."""
        try:
            async with self._world.connect() as client:
                producer = await client.producer(_TOPIC)
                receipts = await producer.send_many(
                    [payload_of(message) for message in messages],
                    delay=[
                        None if one is None else timedelta(milliseconds=one) for one in delays_ms
                    ],
                    dedup=[f"d{message.number}" for message in messages],
                )
        except (DelayTooLong, DelayTooShort, DelaysDisabled):
            for message in messages:
                message.refused = True
            self.check.refused(messages, delays_ms, self._history.now_ms())
            self._history.counts["refused for a delay"] += 1
            return True
        except EscapementError as error:
            if not error.retryable:
                raise
            return False
        if any(receipt.id is None for receipt in receipts):
            return False
        now_ms = self._history.now_ms()
        for message, delay_ms, receipt in zip(messages, delays_ms, receipts, strict=True):
            assert receipt.id is not None
            self._history.confirm(message, receipt.id.offset)
            self.check.accepted(message, delay_ms, now_ms)
        return True

    async def _look_at_log(self) -> None:
        """Compare the log with the retention. A lack counts if it is there again later."""
        logged: set[int] = set()

        async def read(client: escapement.Broker) -> None:
            logged.clear()
            async for page in client.read(_TOPIC):
                logged.update(number_of(entry.payload) for entry in page)

        lacks: set[int] = set()
        for pause_s in (STALE_S, 0.0):
            await self._ask_surely(_TOPIC, read)
            lacks = self.check.lacks(self._history, logged, self._history.now_ms())
            if not lacks:
                self._history.counts["log reads"] += 1
                return
            await trio.sleep(pause_s)
        self.check.found.append(f"retention: the log lacks messages {sorted(lacks)}")
