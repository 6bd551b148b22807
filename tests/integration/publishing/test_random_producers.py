"""Random tests of producers that come back: after idle weeks, crashes and database failures."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import pytest
from trio.testing import MockClock

from escapement import testing
from escapement.broker.upkeep.housekeeper import PRODUCER_IDLE_MS
from escapement.client.broker import Broker
from escapement.client.producing.producer import Producer
from escapement.errors import StorageUnavailable
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World
from support.faults.dying_brokers import finish
from support.seeds import play, seeds
from support.storage.commit_pipelines import FaultyEngine, Once

STEPS: Final = 60
WEIGHTS: Final[Mapping[str, int]] = {
    "publish": 8, "repeat": 8, "open": 3, "leave": 3, "some_days": 4, "keep_house": 3,
    "checkpoint": 2, "crash": 2, "fail_deletions": 1,
}  # fmt: skip


class Comebacks:
    """Producers with given and generated names, and a model of what the broker has confirmed."""

    def __init__(self, world: World, broker: Broker, engine: FaultyEngine, rng: random.Random):
        self.world, self.broker, self.rng = world, broker, rng
        self.deletions = engine.before = Once("DELETE FROM producers", StorageUnavailable("away"))
        self.names: list[str | None] = ["p"]
        self.held: dict[str, Producer] = {}
        self.last: dict[str, tuple[int, bytes]] = {}  # the last confirmed message of each name
        self.used_ms: dict[str, int] = {}
        self.stored = 0  # the number of messages in the log

    async def opened(self) -> Producer:
        """Return a producer of a random name, which stays open."""
        name = self.rng.choice([*self.names, None] if len(self.names) < 4 else self.names)
        if name is None or name not in self.held:
            producer = await self.broker.producer("t", name=name)
            self.held[producer.name] = producer
            if name is None:
                self.names.append(producer.name)
            return producer
        return self.held[name]

    async def open(self) -> None:
        await self.opened()

    async def publish(self) -> None:
        producer = await self.opened()
        sequence, value = producer.next_sequence, b"%d" % self.stored
        receipt = await producer.send(value)
        assert not receipt.duplicate
        assert receipt.id.offset == self.stored, "a message was stored twice, or lost"
        self.stored += 1
        self.last[producer.name] = sequence, value
        self.used_ms[producer.name] = self.world.clock.now_ms()

    async def repeat(self) -> None:
        """Open the name again, as another process would, and send its last message again."""
        known = [
            name
            for name in self.last
            if self.world.clock.now_ms() < self.used_ms[name] + PRODUCER_IDLE_MS
        ]
        if known:
            name = self.rng.choice(known)
            await self.close(name)
            self.held[name] = producer = await self.broker.producer("t", name=name)
            sequence, value = self.last[name]
            assert producer.next_sequence == sequence + 1
            assert (await producer.send(value, sequence=sequence)).duplicate

    async def close(self, name: str) -> None:
        if (producer := self.held.pop(name, None)) is not None:
            await producer.aclose()

    async def leave(self) -> None:
        if self.held:
            await self.close(self.rng.choice(list(self.held)))

    async def some_days(self) -> None:
        await self.world.clock.advance(days=self.rng.choice([1, 8]))

    async def keep_house(self) -> None:
        """Let an hour pass, after which the housekeeper looks for idle producers."""
        await self.world.clock.advance(hours=1)
        await finish(self.world, self.world.server.services.housekeeper.round)

    async def checkpoint(self) -> None:
        with suppress(StorageUnavailable):
            await self.world.checkpoint()

    async def crash(self) -> None:
        await self.world.crash()
        await self.world.restart()
        await self.world.clock.advance(seconds=30)

    async def fail_deletions(self) -> None:
        """Let the next deletion of idle producers fail."""
        self.deletions.arm()


@pytest.mark.parametrize("seed", seeds(range(20)))
async def test_confirmed_message_of_a_producer_is_never_stored_twice(
    mock_clock: MockClock, seed: int
) -> None:
    """B3: a producer of the same name that repeats a sequence gets the answer "duplicate"."""
    rng = random.Random(seed)
    engine = FaultyEngine(SqliteEngine.in_memory())
    async with testing.start(engine=engine) as world, world.connect() as broker:
        comebacks = Comebacks(world, broker, engine, rng)
        await play(seed, rng, comebacks, WEIGHTS, STEPS)
        await comebacks.publish()
