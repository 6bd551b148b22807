"""Runtimes that are created from stored state, compared with the runtimes that they replace."""

from __future__ import annotations

import random

import pytest
import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from support.seeds import named, seeds
from support.topic_changes import TopicChanges, state_of


@pytest.mark.parametrize("seed", seeds(range(25)))
async def test_topic_that_becomes_active_again_has_the_state_of_its_earlier_runtime(
    seed: int, mock_clock: trio.testing.MockClock
) -> None:
    """P6, B1: with the changes that leave a topic idle. It then changes further."""
    kinds = ["publish", "acknowledge", "cancel", "reschedule", "advance"]
    rng = random.Random(seed)
    with named(seed, []):
        async with testing.start(config=BrokerConfig(seed=0)) as world:
            services = world.server.services
            async with world.connect() as broker:
                changes = TopicChanges(world, broker, rng)
                await changes.begin(exclusive=False)
                for _ in range(3):
                    await changes.change(kinds, rng.randrange(1, 12))
                    before = state_of(world)
                    await services.passivator.round()
                    assert not services.registry.active
                    assert not services.activation.subscriptions
                    assert state_of(world) == before


async def test_topic_is_active_only_once(mock_clock: trio.testing.MockClock) -> None:
    """Two runtimes would deliver the same messages."""
    async with testing.start(config=BrokerConfig(seed=0)) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        registry, activation = world.server.registry, world.server.services.activation
        (topic,) = registry.active.values()
        assert registry.activate(topic.id) is topic
        assert list(topic.subscriptions()) == list(activation.subscriptions.values())


async def test_subscription_that_seeks_keeps_its_consumers_and_nothing_else(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3: the acknowledgements and attempts of the earlier position are void."""
    async with testing.start(config=BrokerConfig(seed=0)) as world, world.connect() as broker:
        activation = world.server.services.activation
        async with await broker.producer("t") as producer:
            async with broker.consumer("t", "s") as inbox:
                await producer.send_many([b"a", b"b"])
                first, second = await testing.arrived(inbox)
                await inbox.ack(first, durable=True)
                await inbox.nack(second, "1h")
                await inbox.flush_acks()
                (old,) = activation.subscriptions.values()
                consumers = list(old.consumers)
                await inbox.seek("earliest")
                (new,) = activation.subscriptions.values()
                assert new is not old
                assert list(new.consumers) == consumers
                assert not old.consumers
                assert not len(new.acked)
                assert not new.retries.waiting()[0].height
                again = await testing.arrived(inbox)
                assert [(m.payload, m.attempt) for m in again] == [(b"a", 1), (b"b", 1)]
