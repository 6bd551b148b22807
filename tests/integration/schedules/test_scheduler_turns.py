"""Turns of the scheduler, which bound the share of the broker that many schedules take."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import LimitExceeded, NotFound
from escapement.testing import START_MS, World, arrived

REST_MS = 50
AT_MS = 1_000


def config(**limits: Any) -> BrokerConfig:
    return BrokerConfig(
        ack_wait_ms=10**9, limits=BrokerLimits(schedule_rest_ms=REST_MS, **limits), seed=0
    )


async def arrivals(world: World, broker: escapement.Broker, topics: int) -> dict[int, list[str]]:
    """Return the payloads that arrive, by time in ms, advancing the clock in steps of 10 ms."""
    found: dict[int, list[str]] = {}
    seen: set[str] = set()
    while world.clock.now_ms() < START_MS + AT_MS + 10 * REST_MS:
        for topic in range(topics):
            if await is_there(broker, f"t{topic}"):
                async with broker.consumer(f"t{topic}", "s", position="earliest") as inbox:
                    messages = await arrived(inbox)
                    await inbox.ack(messages, durable=True)
                for message in messages:
                    assert message.properties["schedule"] not in seen, (
                        "an occurrence was delivered twice"
                    )
                    seen.add(message.properties["schedule"])
                    at_ms = world.clock.now_ms() - START_MS - AT_MS
                    found.setdefault(at_ms, []).append(message.payload.decode())
        await world.clock.advance(ms=10)
    return found


async def is_there(broker: escapement.Broker, topic: str) -> bool:
    try:
        await broker.admin("topics.get", topic=topic)
    except NotFound:
        return False
    return True


async def create(broker: escapement.Broker, count: int, topics: int) -> None:
    """Create schedules with one occurrence each, all at the same moment."""
    for n in range(count):
        # A second after noon on 24 December, when the clock of the world starts.
        await broker.schedules.create(f"s{n}", f"t{n % topics}", b"%d" % n, cron="1 0 12 24 12 *")


@pytest.mark.parametrize(
    ("limits", "count", "topics", "per_turn"),
    [
        ({"schedule_turn_occurrences": 3}, 8, 1, [3, 3, 2]),
        ({"schedule_turn_topics": 2}, 5, 5, [2, 2, 1]),
        ({"schedule_turn_topics": 2}, 9, 3, [6, 3]),
        ({"schedule_turn_topics": 2, "schedule_topic_rest_ms": 25}, 5, 5, [2, 2, 1]),
        ({"schedule_turn_bytes": 2 * 1_100}, 5, 2, [2, 2, 1]),
        ({"schedule_turn_bytes": 1}, 3, 1, [1, 1, 1]),
        ({}, 8, 3, [8]),
    ],
    ids=[
        "occurrences",
        "topics",
        "all of some topics",
        "rest by topics",
        "bytes",
        "one larger than a turn",
        "default",
    ],
)
async def test_schedules_that_are_due_together_are_published_in_turns_with_a_rest_between(
    mock_clock: trio.testing.MockClock,
    limits: dict[str, int],
    count: int,
    topics: int,
    per_turn: list[int],
) -> None:
    """B2: a turn publishes up to its bounds, the next turn goes on; each occurrence comes once."""
    async with testing.start(config=config(**limits)) as world, world.connect() as broker:
        await create(broker, count, topics)
        found = await arrivals(world, broker, topics)
        assert [len(some) for some in found.values()] == per_turn
        assert sorted(int(one) for some in found.values() for one in some) == list(range(count))
        assert all(later - earlier == REST_MS for earlier, later in pairwise(found))
        # A turn writes one inbox entry per topic, for any number of occurrences.
        stats = await broker.admin("broker.stats")
        most = sum(min(some, topics) for some in per_turn)
        assert stats["inbox_moved"] <= most


async def test_occurrences_of_one_topic_are_published_in_order_of_their_times(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2: several schedules publish to the topic in one turn."""
    async with testing.start(config=config()) as world:
        async with world.connect() as broker:
            for name, every in (("a", 2), ("b", 3), ("c", 5)):
                await broker.schedules.create(name, "t", name.encode(), every=(every, "s"))
        await world.stop()
        await world.clock.advance(seconds=30)
        await world.restart()
        await world.clock.settle()
        async with (
            world.connect() as broker,
            broker.consumer("t", "s", kind="exclusive", position="earliest") as inbox,
        ):
            messages = await arrived(inbox)
        found = [(message.properties["occurrence_ms"], message.payload) for message in messages]
        assert found == sorted(
            (START_MS + second * 1_000, name)
            for name, every in ((b"a", 2), (b"b", 3), (b"c", 5))
            for second in range(every, 31, every)
        )


async def test_a_namespace_has_no_more_schedules_than_its_policy_allows(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2: the error names the limit. Deleting a schedule makes room. Others are independent."""
    async with testing.start(config=config()) as world:
        async with world.connect() as broker:
            for namespace in ("shop/eu", "shop/us"):
                await broker.admin("namespaces.create", namespace=namespace)
            assert (await broker.admin("namespaces.get", namespace="shop/eu"))[
                "max_schedules"
            ] == 10_000
            await broker.admin(
                "namespaces.update", namespace="shop/eu", policy={"max_schedules": 2}
            )
            for name in ("a", "b"):
                await broker.schedules.create(f"shop/eu/{name}", "shop/eu/t", every="1m")
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            with pytest.raises(LimitExceeded, match=r"shop/eu has 2 .* max_schedules is 2: delete"):
                await broker.schedules.create("shop/eu/c", "shop/us/t", every="1m")
            await broker.schedules.create("shop/us/c", "shop/eu/t", every="1m")
            # Changes of an existing schedule do not count.
            await broker.schedules.pause("shop/eu/a")
            await broker.schedules.resume("shop/eu/a")
            await broker.schedules.delete("shop/eu/a")
            await broker.schedules.create("shop/eu/c", "shop/eu/t", every="1m")
            with pytest.raises(LimitExceeded):
                await broker.schedules.create("shop/eu/d", "shop/eu/t", every="1m")
            await broker.admin(
                "namespaces.update", namespace="shop/eu", policy={"max_schedules": 0}
            )
            await broker.schedules.create("shop/eu/d", "shop/eu/t", every="1m")
