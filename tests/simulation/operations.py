"""Clients that publish, cancel and reschedule messages at random."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from typing import Final

import trio

from escapement.errors import Disconnected, EscapementError, ProducerFenced
from histories.history import Message
from histories.recording import amend, send
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.world import World

KEYS: Final = 6
BATCH: Final = 6
# How long a client keeps trying to learn whether a batch is stored.
_TRIES: Final = 40
# The share of changes in which a second client changes the same message. These are its longest
# delays: none, during the commit of the first change, or until after a take-over.
_RACES: Final = 0.5
_HEADSTARTS_S: Final = (0.0, 0.05, 2.0, 20 * HOUR_S)


class Publisher:
    """A producer of one topic: numbered batches under a name, or dedup keys without one."""

    def __init__(self, world: World, topic: str, name: str | None, mean_s: float) -> None:
        self._world = world
        self._history = world.history
        self._topic = topic
        self._name = name
        self._mean_s = mean_s
        self._sequence = 0
        self._rng = world.chance(f"producer {topic} {name}")

    async def run(self, end_ms: int) -> None:
        """Publish until the end; a message may be due then at the latest."""
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * self._mean_s))
            await self._publish_surely(self._draw(end_ms), end_ms)

    def _draw(self, end_ms: int) -> list[tuple[Message, int]]:
        """Draw the messages of a batch, with their delays."""
        now_ms = self._history.now_ms()
        batch = []
        for _ in range(self._rng.randint(1, BATCH)):
            delay_ms = random_delay_ms(self._rng, max(end_ms - now_ms, 0))
            key = f"k{self._rng.randrange(KEYS)}"
            earliest_ms = now_ms + delay_ms - MOST_SKEW_MS
            batch.append((self._history.publish(self._topic, key, earliest_ms), delay_ms))
        return batch

    async def _publish_surely(self, batch: list[tuple[Message, int]], end_ms: int) -> None:
        """Publish a batch, again with the same sequence or dedup keys while its fate is unknown."""
        dedup = None if self._name else [f"d{message.number}" for message, _ in batch]
        sequence = self._sequence if self._name else None
        unknown = False
        for _ in range(_TRIES):
            try:
                async with self._world.connect() as client:
                    producer = await client.producer(self._topic, name=self._name)
                    if self._name and producer.next_sequence < self._sequence:
                        self._history.surprises.append(
                            f"1: {self._topic} forgot sequences from {producer.next_sequence} on"
                        )
                    await send(self._history, producer, batch, sequence=sequence, dedup=dedup)
                    self._sequence += len(batch)
                    if dedup is not None and self._rng.random() < 0.3:  # it changes nothing
                        await send(self._history, producer, batch, dedup=dedup)
                    return
            except (Disconnected, ProducerFenced):
                unknown = True
            except EscapementError as error:
                if not error.retryable:
                    raise
                if not unknown and self._rng.random() < 0.3:
                    for message, _ in batch:
                        message.refused = message.confirmed_ms > end_ms
                    return
            await trio.sleep(self._rng.uniform(1, 3 * HOUR_S))
        raise AssertionError("a batch could not be published in many tries")


class Amender:
    """Clients that cancel, reschedule and run some messages, also those just delivered.

    Often two clients change one message at the same time, or one after the other.

    Args:
      topics: the topics of these messages.
    """

    def __init__(self, world: World, topics: Collection[str], mean_s: float) -> None:
        self._world = world
        self._topics = topics
        self._history = world.history
        self._mean_s = mean_s
        self._rng = world.chance("amender")

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * self._mean_s))
            messages = [one for one in self._history.messages if one.topic in self._topics]
            known = [one for one in messages[-60:] if one.offset >= 0]
            soon = [one for one in known if one.earliest_ms > self._history.now_ms() - 1000]
            soon.sort(key=lambda one: one.earliest_ms)
            near = sorted(known, key=lambda one: abs(one.earliest_ms - self._history.now_ms()))
            if known:
                (some,) = self._rng.choices([soon[:6] or known, near[:6], known], [5, 3, 2])
                await self._amend(self._rng.choice(some), end_ms)

    async def _amend(self, message: Message, end_ms: int) -> None:
        """Change a message: alone, or in a race of two clients."""
        ahead_s = (message.earliest_ms - self._history.now_ms()) / 1000
        if self._rng.random() < 0.5 and 0 < ahead_s < 8 * HOUR_S:
            # Reach the broker just before or after the message falls due.
            await trio.sleep(max(ahead_s + MOST_SKEW_MS / 1000 + self._rng.uniform(-0.5, 0.5), 0))
        async with trio.open_nursery() as racing:
            racing.start_soon(self._change, message, end_ms, 0.0)
            if self._rng.random() < _RACES:
                longest_s = self._rng.choice(_HEADSTARTS_S)
                racing.start_soon(self._change, message, end_ms, self._rng.uniform(0, longest_s))

    async def _change(self, message: Message, end_ms: int, after_s: float) -> None:
        """Cancel, reschedule or run a message, as a client of its own."""
        try:
            async with self._world.connect() as client:
                await trio.sleep(after_s)
                now_ms = self._history.now_ms()
                due_ms = None
                if self._rng.random() < 0.5:
                    due_ms = now_ms + random_delay_ms(self._rng, max(end_ms - now_ms, 0))
                if due_ms is None:
                    await amend(self._history, client, message, None, client.cancel, "cancelled")
                elif due_ms == now_ms:
                    since_ms = now_ms - MOST_SKEW_MS
                    await amend(self._history, client, message, since_ms, client.run_now, "run now")
                else:
                    at = datetime.fromtimestamp(due_ms / 1000, UTC)
                    call = partial(client.reschedule, at=at)
                    await amend(self._history, client, message, due_ms, call, "rescheduled")
        except EscapementError as error:
            if not error.retryable:
                raise
            self._history.counts["amendments without an answer"] += 1
