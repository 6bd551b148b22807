"""The replay of the journal, compared with the state of the broker that wrote it."""

from __future__ import annotations

import random

import pytest
import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from support.seeds import named, seeds
from support.topic_changes import ALL_CHANGES, TopicChanges, state_of


@pytest.mark.parametrize("seed", seeds(range(25)))
async def test_replayed_state_is_the_state_before_the_crash(
    seed: int, mock_clock: trio.testing.MockClock
) -> None:
    """P6, B1, B3, V4: also behind a checkpoint, and after a checkpoint of the replayed state."""
    rng = random.Random(seed)
    with named(seed, []):
        async with testing.start(config=BrokerConfig(seed=0)) as world:
            async with world.connect() as broker:
                changes = TopicChanges(world, broker, rng)
                await changes.begin(exclusive=True)
                await changes.change(ALL_CHANGES, rng.randrange(20))
                if rng.random() < 0.5:
                    await world.checkpoint()
                await changes.change(ALL_CHANGES, rng.randrange(20))
            before = state_of(world)
            for _ in range(3):
                await world.crash()
                await world.restart()
                assert state_of(world) == before
                if rng.random() < 0.5:
                    await world.checkpoint()  # this trims the journal that was replayed
