"""The check of the memory of brokers, which a history does not show (invariant 9)."""

from __future__ import annotations

import pytest

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.priorities.ready import Ready
from escapement.storage.engine.sqlite import SqliteEngine
from simulation.memory import over_bounds

LIMITS = BrokerLimits(ready_messages=6)
PERMITS = 4


async def backlog() -> list[str]:
    """Publish more due messages than fit, for a consumer that takes none, and check the broker."""
    engine = SqliteEngine.in_memory()
    config = BrokerConfig(limits=LIMITS)
    async with testing.start(engine=engine, config=config) as world, world.connect() as broker:
        async with broker.consumer("t", "s", permits=PERMITS):
            producer = await broker.producer("t")
            await producer.send_many([b"x"] * 20)
            await world.clock.advance(seconds=1)
            return list(over_bounds(world.server.services, LIMITS, PERMITS))


def test_backlog_of_a_slow_consumer_keeps_the_bounds() -> None:
    """Invariant 9: further due messages stay in the index."""
    assert testing.run(backlog) == []


def test_ready_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug makes all due messages ready at once."""
    monkeypatch.setattr(Ready, "room", property(lambda self: 1_000_000))
    assert testing.run(backlog) == ["9: 16 ready messages of s, and the bound is 10"]
