"""Tests of the figures of subscriptions: of many topics in pages, and of one topic with counts."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.admin import overview
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.upkeep import due_counts
from escapement.storage.engine.base import Engine
from support.seeds import seeds
from support.storage.cluster import cluster, connected, named

HOUR_MS = 3_600_000
CONFIG = BrokerConfig(ack_wait_ms=HOUR_MS, seed=0, limits=BrokerLimits(active_topics=4))
Place = tuple[str, str]


async def all_pages(broker: escapement.Broker, **asked: Any) -> list[dict[str, Any]]:
    """Return the rows of all pages of an overview."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = await broker.admin("subscriptions.overview", after=after, **asked)
        assert len(page["subscriptions"]) <= page["count"]
        found += page["subscriptions"]
        after = page["next"]
        if after is None:
            return found


def places(rows: list[dict[str, Any]]) -> list[Place]:
    return [(row["topic"], row["subscription"]) for row in rows]


@pytest.mark.parametrize("seed", seeds(range(2)))
async def test_overview_shows_all_subscriptions_in_pages_by_name(
    seed: int, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B6: of a namespace, or with a text in their names. No topic becomes active."""
    monkeypatch.setattr(overview, "_STEP_NAMES", 3)
    monkeypatch.setattr(overview, "_STEP_SUBSCRIPTIONS", 4)
    monkeypatch.setattr(overview, "_STEP_ROWS", 2)
    rng = random.Random(seed)
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        there: list[Place] = []
        topics = [f"a/{namespace}/t{n}" for namespace in "bc" for n in range(12)]
        for topic in rng.sample(topics, len(topics)):
            await broker.admin("topics.create", topic=topic)
            for name in rng.sample(["one", "two", "t5"], rng.randrange(4)):
                await broker.admin("subscriptions.create", topic=topic, subscription=name)
                there.append((topic, name))
        there.sort()
        await world.server.services.passivator.round()
        for count in (1, 2, 7, len(there), 1000):
            assert places(await all_pages(broker, count=count)) == there
        for asked in ({"namespace": "a/b"}, {"search": "t5"}, {"namespace": "a/c", "search": "wo"}):
            prefix, text = asked.get("namespace", "") + "/", asked.get("search", "")
            assert places(await all_pages(broker, count=3, **asked)) == [
                (topic, name)
                for topic, name in there
                if topic.startswith(prefix.lstrip("/")) and (text in topic or text in name)
            ]
        after = rng.choice(there)
        page = await broker.admin("subscriptions.overview", after=list(after), count=5)
        following = there.index(after) + 1
        assert places(page["subscriptions"]) == there[following : following + 5]
        assert not world.server.registry.active
        with pytest.raises(escapement.NotFound):
            await broker.admin("subscriptions.overview", namespace="no/body")
        with pytest.raises(escapement.InvalidRequest, match="at most 1000 subscriptions"):
            await broker.admin("subscriptions.overview", count=1001)
        with pytest.raises(escapement.InvalidRequest, match="'after'"):
            await broker.admin("subscriptions.overview", after=["a/b/t1"])


async def test_figures_of_a_passive_topic_are_those_of_the_active_one(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B6: with the counters and the number of unacknowledged messages. Pauses are shown."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        policy = {"paused_until_ms": "forever"}
        await broker.admin("subscriptions.create", topic="y", subscription="p", policy=policy)
        async with broker.consumer("x", "s", permits=4) as inbox:
            async with await broker.producer("x") as producer:
                await producer.send_many([b""] * 4)
                await producer.send_many([b""] * 3, delay="1h")
            messages = await testing.arrived(inbox)
            used, paused = await all_pages(broker)
            (listed,) = await broker.admin("subscriptions.list", topic="x")
            for message in messages:
                await message.ack(durable=True)
        assert (used["consumers"], used["in_flight"], used["delivered"]) == (1, 4, 4)
        assert (used["unacknowledged"], used["active"], used["paused_until_ms"]) == (7, True, 0)
        assert paused["paused_until_ms"] > 1 << 60
        both = (listed.keys() & used.keys()) - {"consumers"}
        assert {name: listed[name] for name in both} == {name: used[name] for name in both}
        (idle,) = await all_pages(broker, search="/x")
        assert (idle["unacknowledged"], idle["acknowledged"], idle["in_flight"]) == (3, 4, 0)
        await world.server.services.passivator.round()
        assert not world.server.registry.active
        assert await all_pages(broker, search="/x") == [idle | {"active": False}]


async def test_overview_merges_the_pages_of_all_bundles(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B6, B8: as if there were one broker."""
    async with cluster(engine, tmp_path) as found, connected(found, "b") as client:
        topics = [*named(found, 0, 3, prefix="a/b/x"), *named(found, 1, 3, prefix="a/b/x")]
        await client.admin("topics.create_many", topics=topics, subscription="s")
        for count in (1, 2, 4, 6):
            rows = await all_pages(client, namespace="a/b", count=count)
            assert [row["topic"] for row in rows] == sorted(topics)


@pytest.mark.parametrize("seed", seeds(range(2)))
@pytest.mark.parametrize("most", [due_counts._EXACT_KEYS, 0])
async def test_subscriptions_have_the_numbers_of_their_due_and_scheduled_messages(
    most: int, seed: int, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B6: exact, or estimates if there are too many keys to look at."""
    monkeypatch.setattr(due_counts, "_EXACT_KEYS", most)
    monkeypatch.setattr(due_counts, "_STEP_KEYS", 16)
    rng = random.Random(seed)
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        kinds = {"s": "shared", "t": "shared", "o": "failover"}
        for name, kind in kinds.items():
            await broker.admin("subscriptions.create", topic="x", subscription=name, kind=kind)
        producer = await broker.producer("x")
        hours = [rng.randrange(1, 9) for _ in range(200)]
        receipts = await producer.send_many([b""] * 200, delay=[(one, "h") for one in hours])
        gone = set(rng.sample(range(200), 30))
        await broker.cancel([receipts[one] for one in gone])
        await world.checkpoint()
        await world.clock.advance(hours=4.5)
        late = {at for at, one in enumerate(hours) if one <= 4} - gone
        async with broker.consumer("x", "s", permits=20) as inbox:
            messages = await testing.arrived(inbox)
            for message in messages[:5]:
                await message.nack(timedelta(hours=1))
            for message in messages[5:15]:
                await message.ack(durable=True)
            await testing.arrived(inbox)
            rows = {row["subscription"]: row for row in await broker.admin(
                "subscriptions.list", topic="x"
            )}  # fmt: skip
        ahead = 200 - len(gone) - len(late)
        assert rows["s"]["retrying"] == 5
        assert rows["o"]["due"] == 200 - len(gone)
        assert rows["o"]["scheduled"] == 0
        for name, finished in (("s", 10 + 5 + rows["s"]["in_flight"]), ("t", 0)):
            row = rows[name]
            assert row["exact"] == bool(most)
            if most:
                assert (row["due"], row["scheduled"]) == (len(late) - finished, ahead)
            else:
                assert abs(row["due"] - (len(late) - finished)) <= len(gone)
                assert abs(row["scheduled"] - ahead) <= len(gone)
