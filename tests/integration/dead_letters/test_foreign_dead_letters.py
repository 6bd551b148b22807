"""Messages in a dead-letter topic that a publisher sent there, with any properties."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from support.faults.held_calls import Held

CALM = BrokerConfig(ack_wait_ms=10_000, seed=0)
NAMES = {"topic": "x", "subscription": "s"}
TOPIC, DLQ = "public/default/x", "public/default/x-s-DLQ"


async def fail_one(world: testing.World, broker: escapement.Broker) -> None:
    """Create the dead-letter topic, with one dead letter."""
    await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
    await (await broker.producer("x")).send(b"dead")
    async with broker.consumer("x", "s") as inbox:
        await inbox.nack([m.id for m in await testing.arrived(inbox)])
        for _ in range(3):
            await world.clock.advance(seconds=1)


async def test_list_of_dead_letters_leaves_out_large_values_of_publishers(
    mock_clock: MockClock,
) -> None:
    """V1, invariant 9: it has only values that the broker could have noted, and short keys."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await fail_one(world, broker)
        (dead,) = await broker.admin("dlq.list", **NAMES)
        noted = (await broker.admin("dlq.show", **NAMES, offset=0))["properties"]
        foreign = noted | {
            "dead_letter_reason": "r" * 10_000,
            "dead_letter_attempts": ["many"],
            "dead_letter_note": {"a": [str(number) for number in range(10_000)]},
        }
        await (await broker.producer(DLQ)).send(b"dead", key="k" * 10_000, properties=foreign)
        first, second = await broker.admin("dlq.list", **NAMES)
        assert first == dead
        assert second == {n: v for n, v in dead.items() if n not in ("reason", "attempts")} | {
            "offset": 1,
            "due_at_ms": world.clock.now_ms(),
            "key": "k" * 512,
        }
        dead_letter = await broker.admin("dlq.show", **NAMES, offset=1)
        assert dead_letter["key"] == "k" * 10_000
        assert len(dead_letter["properties"]["dead_letter_note"]["a"]) == 10_000


async def test_properties_of_dead_letters_are_decoded_beside_the_event_loop(
    mock_clock: MockClock,
) -> None:
    """V1, invariant 9."""
    held = Held()
    async with testing.start(config=CALM, run=held) as world, world.connect() as broker:
        await fail_one(world, broker)
        listed: list[Any] = []

        async def look() -> None:
            listed.extend(await broker.admin("dlq.list", **NAMES))

        async with trio.open_nursery() as nursery:
            with held.hold("origins"):
                nursery.start_soon(look)
                await held.reached()
        assert [one["payload"] for one in listed] == [b"dead"]
