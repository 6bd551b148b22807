"""Clients that publish, cancel and reschedule messages at random."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import trio

import escapement
from escapement import AmendStatus, MessageId
from escapement.errors import Disconnected, EscapementError, ProducerFenced
from escapement.names import TopicName
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.history import Amendment, Message, payload_of
from simulation.world import World

KEYS: Final = 6
BATCH: Final = 6
# How long a client keeps trying to learn whether a batch is stored.
_TRIES: Final = 40


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
                async with self._world.connect(self._world.bundle_of(self._topic)) as client:
                    producer = await client.producer(self._topic, name=self._name)
                    if self._name and producer.next_sequence < self._sequence:
                        self._history.surprises.append(
                            f"1: {self._topic} forgot sequences from {producer.next_sequence} on"
                        )
                    await self._send(producer, batch, sequence, dedup)
                    self._sequence += len(batch)
                    if dedup is not None and self._rng.random() < 0.3:  # it changes nothing
                        await self._send(producer, batch, sequence, dedup)
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

    async def _send(
        self,
        producer: escapement.Producer,
        batch: Sequence[tuple[Message, int]],
        sequence: int | None,
        dedup: list[str | None] | None,
    ) -> None:
        receipts = await producer.send_many(
            [payload_of(message.number) for message, _ in batch],
            delay=np.array([delay_ms for _, delay_ms in batch]),
            keys=[message.key for message, _ in batch],
            sequence=sequence,
            dedup=dedup,
        )
        for (message, _), receipt in zip(batch, receipts, strict=True):
            self._history.confirm(message, receipt.id.offset if receipt.id else message.offset)


class Amender:
    """A client that cancels, reschedules and runs some messages, also those just delivered.

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
        now_ms = self._history.now_ms()
        ahead_s = (message.earliest_ms - now_ms) / 1000
        if self._rng.random() < 0.5 and 0 < ahead_s < 8 * HOUR_S:
            # Reach the broker just before or after the message falls due.
            await trio.sleep(max(ahead_s + MOST_SKEW_MS / 1000 + self._rng.uniform(-0.5, 0.5), 0))
        now_ms = self._history.now_ms()
        due_ms, is_now = None, False
        if self._rng.random() < 0.5:
            due_ms = now_ms + random_delay_ms(self._rng, max(end_ms - now_ms, 0))
            is_now = due_ms == now_ms
        if is_now:
            due_ms = now_ms - MOST_SKEW_MS
        amendment = Amendment(due_ms, now_ms)
        message.amendments.append(amendment)
        try:
            async with self._world.connect(self._world.bundle_of(message.topic)) as client:
                id = MessageId(TopicName.parse(message.topic).full, message.offset)
                if due_ms is None:
                    (outcome,) = await client.cancel([id])
                elif is_now:
                    (outcome,) = await client.run_now([id])
                else:
                    at = datetime.fromtimestamp(due_ms / 1000, UTC)
                    (outcome,) = await client.reschedule([id], at=at)
        except EscapementError as error:
            if not error.retryable:
                raise
            self._history.counts["amendments without an answer"] += 1
            return
        amendment.answered_ms = self._history.now_ms()
        cancelled = due_ms is None and outcome.status is AmendStatus.CANCELLED
        amendment.done = outcome.status is AmendStatus.DONE or cancelled
        amendment.handed = frozenset(outcome.handed)
        kind = "cancelled" if due_ms is None else "run now" if is_now else "rescheduled"
        self._history.counts[kind] += amendment.done
