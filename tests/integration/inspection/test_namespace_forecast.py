"""Tests of the forecast of a namespace, and of the census from which it comes."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.side_port.shown import Shown
from escapement.broker.upkeep import census
from escapement.storage.engine.base import Engine
from support.faults.held_calls import Held
from support.seeds import seeds
from support.storage.cluster import cluster, connected, named

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
NAMESPACES = ("a/b", "a/c", "z/z")
CONFIG = BrokerConfig(ack_wait_ms=HOUR_MS, seed=0, limits=BrokerLimits(active_topics=4))


@pytest.mark.parametrize("seed", seeds(range(2)))
async def test_forecast_of_a_namespace_equals_a_recount(
    seed: int, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B6: of active and passive topics, from memory and disk, and by any span of time."""
    monkeypatch.setattr(census, "_STEP_TOPICS", 2)
    monkeypatch.setattr(census, "_STEP_KEYS", 64)
    rng = random.Random(seed)
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        due_ms: dict[str, list[int]] = {name: [] for name in NAMESPACES}
        # The topics of a/b will be active, and those of a/c passive.
        for topic in [f"{name}/t{n}" for name in NAMESPACES[:2] for n in range(4)]:
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
            async with await broker.producer(topic) as producer:
                delays_ms = [rng.randrange(1, 5 * DAY_MS) for _ in range(150)]
                receipts = await producer.send_many(
                    [b""] * 150, delay=[timedelta(milliseconds=one) for one in delays_ms]
                )
            namespace = topic.rpartition("/")[0]
            gone = rng.sample(range(150), 20) if namespace == "a/b" else []
            if gone:
                await broker.cancel([receipts[one] for one in gone])
            kept = [one for at, one in enumerate(delays_ms) if at not in gone]
            due_ms[namespace] += [world.clock.now_ms() + one for one in kept]
            if rng.random() < 0.5:
                await world.checkpoint()
        await broker.admin("namespaces.create", namespace="z/z")
        await world.server.services.passivator.round()
        assert not world.server.registry.active
        await world.clock.advance(minutes=rng.randrange(1, 300))
        for number in range(4):
            await broker.admin("topics.stats", topic=f"a/b/t{number}")
        for namespace in (*NAMESPACES, None):
            pending = (
                due_ms[namespace]
                if namespace
                else [one for some in due_ms.values() for one in some]
            )
            now_ms = world.clock.now_ms()
            late = sum(one <= now_ms for one in pending)
            for by_ms, days in ((MINUTE_MS, 1), (HOUR_MS, 6), (DAY_MS, 6)):
                found = await broker.forecast_namespace(
                    namespace, by=timedelta(milliseconds=by_ms), within=(days, "days")
                )
                first_ms = round(found.first.timestamp() * 1000)
                spans = Counter((one - first_ms) // by_ms for one in pending if one > now_ms)
                assert found.counts == [spans[at] for at in range(len(found.counts))]
                assert found.namespace == namespace
                assert found.scheduled == len(pending) - late
                assert found.exact == (namespace not in (None, "a/c") or not late)
                if found.exact:
                    assert (found.due, found.overdue, found.retrying) == (late, late, 0)


async def test_overdue_messages_are_due_or_in_retry(mock_clock: trio.testing.MockClock) -> None:
    """B6: each subscription has its own. Messages in flight are not overdue."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        for name in ("s", "t"):
            await broker.admin("subscriptions.create", topic="x", subscription=name)
        producer = await broker.producer("x")
        await producer.send_many([b""] * 5)
        async with broker.consumer("x", "s", permits=3) as inbox:
            first, *_ = await testing.arrived(inbox)
            await first.nack(timedelta(minutes=5))
            await testing.arrived(inbox)
            await world.clock.advance(minutes=1)
            found = await broker.forecast_namespace()
        assert (found.due, found.retrying, found.in_flight) == (5, 1, 4)
        assert found.overdue == 6
        assert found.oldest_due is not None
        assert round(found.oldest_due.timestamp() * 1000) == testing.START_MS
        assert (found.exact, found.scheduled, found.total) == (True, 0, 0)
        with pytest.raises(escapement.NotFound, match="no namespace"):
            await broker.forecast_namespace("no/body")
        with pytest.raises(escapement.InvalidRequest, match="at most 20000 spans"):
            await broker.forecast_namespace(by=(1, "ms"))


async def test_due_messages_of_a_passive_topic_are_an_estimate(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B6: the answer tells it, and no topic becomes active for it."""
    config = BrokerConfig(seed=0, limits=BrokerLimits(active_topics=0))
    async with testing.start(config=config) as world, world.connect() as broker:
        for namespace in ("a/b", "a/c"):
            topic = f"{namespace}/x"
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
            async with await broker.producer(topic) as producer:
                await producer.send_many([b""] * 3, delay=[(h, "h") for h in (1, 2, 3)])
        await world.server.services.passivator.round()
        assert (await broker.forecast_namespace("a/b")).exact
        await world.crash()
        await world.clock.advance(hours=1, minutes=30)
        await world.restart()
        await world.clock.advance(minutes=1)
        async with world.connect() as after:
            await world.server.services.passivator.round()
            found = await after.forecast_namespace("a/b")
            assert not world.server.registry.active
        assert (found.scheduled, found.due, found.exact) == (2, 1, False)


async def test_forecast_does_not_wait_for_a_long_census(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B6: a request waits up to 5 s if there is no census of late, and else only for short ones."""
    held = Held()
    async with testing.start(config=CONFIG, run=held) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send(b"", delay=(1, "h"))
        with held.hold("_read_plans"):
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def refused() -> None:
                    with pytest.raises(escapement.Busy, match="no recent count"):
                        await broker.forecast_namespace()

                await held.reached()
                await world.clock.advance(seconds=6)
        assert (await broker.forecast_namespace()).scheduled == 1
        await producer.send(b"", delay=(1, "h"))
        assert (await broker.forecast_namespace()).scheduled == 1, "it rests for 180 s"
        await world.clock.advance(seconds=190)
        assert (await broker.forecast_namespace()).scheduled == 1, "it does not wait for a new one"
        await world.clock.advance(seconds=1)
        counted = await broker.forecast_namespace()
        assert counted.scheduled == 2
        with held.hold("_read_plans"):
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def stale() -> None:
                    assert await broker.forecast_namespace() == counted

                await held.reached()
                await world.clock.advance(seconds=1)
        await producer.send(b"", delay=(9, "h"))
        await world.clock.advance(hours=2)
        assert (await broker.forecast_namespace()).scheduled == 1, "not the old count of 2"


async def test_forecasts_of_all_bundles_are_added(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B6, B8: a broker without topics in the namespace has nothing to add."""
    async with cluster(engine, tmp_path) as found, connected(found, "b") as client:
        topics = [*named(found, 0, 2, prefix="a/b/x"), *named(found, 1, 1, prefix="a/b/y")]
        for hours, topic in enumerate(topics, 1):
            await client.admin("subscriptions.create", topic=topic, subscription="s")
            producer = await client.producer(topic)
            await producer.send(b"", delay=(hours, "h"))
            await producer.send(b"")
        forecast = await client.forecast_namespace("a/b", within="5h")
        assert (sum(forecast.counts), forecast.scheduled, forecast.due) == (3, 3, 3)
        assert (await client.forecast_namespace()).counts[:5] == forecast.counts[:5]


async def test_scrape_asks_all_brokers_of_a_node_for_a_census(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: those that come later too, although the first ones take all the time of the scrape."""
    async with cluster(engine, tmp_path, addresses=("a:7650",)) as found:
        shown = Shown()
        for node in found.nodes.values():
            for broker in node.brokers.values():
                shown.show(broker)
        await shown.freshen_census(0)
        await found.clock.settle()
        assert [broker.services.census.last is None for broker in shown.brokers] == [False] * 2
