"""Consumers that acknowledge, fail, release, forget, leave and vanish."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import trio

import escapement
from escapement.errors import EscapementError
from escapement.protocol import commands as wire
from simulation.clocks import HOUR_S
from simulation.history import Arrival, Consumer, History, number_of
from simulation.world import World

ACTIONS: Final = {"ack": 40, "durable": 30, "nack": 10, "release": 5, "forget": 10, "extend": 3}
_KINDS: Final = {"log": "failover"}
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
        kind = _KINDS.get(self._history.kinds[self._subscription], "shared")
        while True:
            try:
                async with self._world.connect(self._world.bundle_of(self._topic)) as client:
                    for _ in range(self._rng.randint(1, 4)):
                        await self._stay(client, kind)
            except EscapementError as error:
                if not error.retryable:
                    raise
            await trio.sleep(self._rng.uniform(1, 60 if self.careful else 12 * HOUR_S))

    async def _stay(self, client: escapement.Broker, kind: str) -> None:
        """Be a consumer for some time, and leave."""
        record = Consumer(self._subscription)
        options: dict[str, Any] = {"kind": kind, "permits": self._rng.randint(1, PERMITS)}
        stay_s = self._rng.uniform(0.5 * HOUR_S, 60 * HOUR_S)
        consumption = client.consumer(self._topic, self._subscription, **options)
        async with consumption as inbox:
            listen(self._history, record, inbox)
            end_s = trio.current_time() + stay_s
            careful = self.careful
            while careful or (trio.current_time() < end_s and not self.careful):
                message = await inbox.receive(timeout_s=min(stay_s, 8 * HOUR_S))
                if message is not None:
                    await self._handle(record, inbox, message)
            record.left_s = trio.current_time()

    async def _handle(
        self, record: Consumer, inbox: escapement.Inbox, message: escapement.Message
    ) -> None:
        (action,) = self._rng.choices(list(ACTIONS), list(ACTIONS.values()))
        if self.careful:
            action = "durable"
        self._history.counts[action] += 1
        offset = message.offset
        if action in ("nack", "release"):
            give_back = inbox.nack if action == "nack" else inbox.release
            delay = self._rng.choice([None, timedelta(minutes=self._rng.randint(0, 90))])
            record.latest[offset].returned_s = trio.current_time()
            await give_back(offset, delay)
        elif action == "ack":
            self._history.send_ack(self._subscription, offset)
            await inbox.ack(offset)
        elif action == "extend":
            await inbox.extend(offset, timedelta(minutes=10))
        elif action == "durable":
            self._history.send_ack(self._subscription, offset)
            await inbox.ack(offset, durable=True)
            key = self._subscription, offset
            self._history.acked_s.setdefault(key, trio.current_time())
        if not self.careful and self._rng.random() < 0.3:
            await trio.sleep(self._rng.uniform(0, 0.4 * HOUR_S))


def listen(history: History, consumer: Consumer, inbox: escapement.Inbox) -> None:
    """Note every delivery when it arrives, before the application receives it."""
    heard: Callable[[wire.Command], None] = inbox._heard

    def tap(command: wire.Command) -> None:
        if isinstance(command, wire.Deliver):
            _note(history, consumer, inbox, command)
        heard(command)

    inbox._heard = tap  # type: ignore[method-assign]


def _note(
    history: History, consumer: Consumer, inbox: escapement.Inbox, command: wire.Deliver
) -> None:
    batch = command.decode()
    values = batch.payloads.to_list()
    keys = [b""] * len(values) if batch.keys is None else batch.keys.to_list()
    link = inbox._line.link
    assert link is not None
    stream: Any = link._stream
    for row, value in enumerate(values):
        again = command.redelivered is not None and bool(command.redelivered[row])
        attempt = 1 if command.attempts is None else int(command.attempts[row])
        arrival = Arrival(
            consumer.subscription,
            number_of(value),
            int(command.offsets[row]),
            int(command.due_ms[row]),
            keys[row].decode(),
            again or attempt > 1,
            stream.last,
            trio.current_time(),
            stream.host,
            stream.cable,
            consumer,
        )
        consumer.latest[arrival.offset] = arrival
        history.arrivals.append(arrival)
    history.counts["delivered"] += len(values)


def random_delay_ms(rng: random.Random, left_ms: int) -> int:
    """Return a delay: none, some minutes, hours or days, but at most ``left_ms``."""
    longest_ms = rng.choice([0, 0, 60_000, 3_600_000, 36_000_000, 20 * 86_400_000])
    return min(rng.randint(0, longest_ms), left_ms)
