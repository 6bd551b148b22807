"""How late the subscriptions have delivered, as `subscriptions.lateness` tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.side_port.openapi import path_of
from escapement.errors import AccessDenied, NotFound
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from escapement.testing.clock import START_MS
from support.roles import begin, connected, new_token
from support.side_ports import side_port
from support.storage.bundle_brokers import full
from support.storage.cluster import Cluster, cluster, named
from support.storage.cluster import connected as connected_to

MINUTE_MS = 60_000


async def deliver(
    broker: escapement.Broker, world: World | Cluster, topic: str, late_ms: int
) -> None:
    """Let the subscription s get a message that was due some time ago."""
    await broker.admin("subscriptions.create", topic=topic, subscription="s")
    async with await broker.producer(topic) as producer:
        await producer.send(b"")
    await world.clock.advance(ms=late_ms)
    async with broker.consumer(topic, "s") as inbox:
        assert await inbox.ack(await arrived(inbox), durable=True) == 1


def row(at_minute: int, delivered: int, p50_ms: int, p99_ms: int, max_ms: int) -> dict[str, int]:
    """Return a row of ``minutes``."""
    figures = {"delivered": delivered, "p50_ms": p50_ms, "p99_ms": p99_ms, "max_ms": max_ms}
    return {"at_ms": START_MS + at_minute * MINUTE_MS} | figures


async def minutes(
    broker: escapement.Broker, topic: str, name: str = "s", **given: Any
) -> list[dict[str, int]]:
    answer = await broker.admin("subscriptions.lateness", topic=topic, subscription=name, **given)
    assert (answer["topic"], answer["subscription"]) == (full(topic), name)
    return list(answer["minutes"])


async def worst(broker: escapement.Broker, **given: Any) -> dict[str, int]:
    """Return the p99 of the worst subscriptions by topic, in their order."""
    answer = await broker.admin("subscriptions.lateness", **given)
    return {one["topic"]: one["p99_ms"] for one in answer["worst"]}


async def test_minutes_have_the_lateness_of_first_deliveries(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B14: not of redeliveries. They stay if the topic becomes passive, and after a seek."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        assert await minutes(broker, "t") == []
        async with await broker.producer("t") as producer:
            for delay_ms in (1_000, 1_000, 1_000, 70_000):
                await producer.send(b"x", delay=(delay_ms, "ms"))
        await world.clock.advance(ms=1_030)
        async with broker.consumer("t", "s") as inbox:
            first = await arrived(inbox)
            assert len(first) == 3
            await world.clock.advance(ms=MINUTE_MS)
            again = await arrived(inbox)
            assert [one.redelivered for one in again] == [True] * 3
            await inbox.ack(again, durable=True)
            await world.clock.advance(ms=3 * MINUTE_MS)
            (late,) = await arrived(inbox)
            await inbox.ack([late], durable=True)
        on_time = await minutes(broker, "t")
        assert on_time == [row(0, 3, 30, 30, 30), row(1, 1, *[on_time[-1]["max_ms"]] * 3)]
        assert on_time[-1]["max_ms"] <= 10  # one tick
        await world.server.services.passivator.round()
        assert world.server.registry.active == {}
        assert await worst(broker) == {full("t"): 30}
        assert await minutes(broker, "t") == on_time
        await broker.admin("subscriptions.seek", topic="t", subscription="s", position="earliest")
        async with broker.consumer("t", "s") as inbox:
            assert len(await arrived(inbox)) == 4
        again = await minutes(broker, "t")
        assert again[:-1] == on_time
        assert (again[-1]["delivered"], again[-1]["max_ms"]) == (4, 0)  # since the seek


async def test_worst_subscriptions_of_a_time_come_first(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B14: those of a namespace, as many as asked for. Deleted ones are left out."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        for topic, late_ms in (("a/b/x", 5), ("a/b/y", 31), ("a/c/z", 7), ("a/b/gone", 30)):
            await deliver(broker, world, topic, late_ms)
        await broker.admin("subscriptions.create", topic="a/b/idle", subscription="s")
        await broker.admin("topics.delete", topic="a/b/gone")
        assert list((await worst(broker)).items()) == [("a/b/y", 31), ("a/c/z", 7), ("a/b/x", 5)]
        assert await worst(broker, count=1) == {"a/b/y": 31}
        assert await worst(broker, namespace="a/c") == {"a/c/z": 7}
        with pytest.raises(NotFound):
            await worst(broker, namespace="a/none")
        await world.clock.advance(ms=50 * MINUTE_MS)
        await deliver(broker, world, "a/c/later", 3)
        assert await worst(broker, within_ms=10 * MINUTE_MS) == {"a/c/later": 3}
        assert await minutes(broker, "a/b/y", within_ms=10 * MINUTE_MS) == []
        assert len(await minutes(broker, "a/b/y")) == 1
        assert await worst(broker, within_ms=1) == {"a/c/later": 3}, "in the minute that began"
        await world.clock.advance(ms=40 * MINUTE_MS)
        assert await worst(broker) == {"a/c/later": 3}
        everything = await broker.admin("subscriptions.lateness", within_ms=10**9)
        assert everything["within_ms"] == 120 * MINUTE_MS
        assert len(everything["worst"]) == 4
        await world.clock.advance(ms=120 * MINUTE_MS)
        assert await worst(broker, within_ms=10**9) == {}
        await world.stop()
        await world.restart()
        await world.clock.advance(seconds=5)
        assert await minutes(broker, "a/b/y", within_ms=10**9) == []


async def test_wrong_arguments_are_refused(mock_clock: trio.testing.MockClock) -> None:
    """B14: a topic without its subscription, names that do not exist."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        for given in (
            {"topic": "t"},
            {"subscription": "s"},
            {"subscription": "s", "namespace": "public/default"},
            {"topic": "t", "subscription": "s", "namespace": "public/default"},
        ):
            with pytest.raises(escapement.InvalidRequest, match="'topic' and 'subscription'"):
                await broker.admin("subscriptions.lateness", **given)
        for topic, name in (("t", "none"), ("none", "s")):
            with pytest.raises(NotFound):
                await minutes(broker, topic, name)


async def test_role_sees_the_lateness_of_its_topics(mock_clock: trio.testing.MockClock) -> None:
    """O1: the worst among those that it may peek at."""
    async with testing.start() as world, connected(world, await begin(world)) as root:
        for topic, late_ms in (("a/b/x", 5), ("a/b/y", 31), ("a/c/z", 7)):
            await deliver(root, world, topic, late_ms)
        for role, pattern in (("one", "a/b/x"), ("some", "a/c/*")):
            await root.admin("grants.add", role=role, pattern=pattern, actions=["peek"])
        async with connected(world, await new_token(root, "one")) as broker:
            assert await worst(broker) == {"a/b/x": 5}
            assert len(await minutes(broker, "a/b/x")) == 1
            for given in ({"namespace": "a/c"}, {"topic": "a/b/y", "subscription": "s"}):
                with pytest.raises(AccessDenied):
                    await broker.admin("subscriptions.lateness", **given)
        async with connected(world, await new_token(root, "some")) as broker:
            assert await worst(broker) == await worst(broker, namespace="a/c") == {"a/c/z": 7}


async def test_thousands_of_subscriptions_are_summed_up_in_steps(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V3: the steps together have the worst of all, whether their topics are active or not."""
    count = 2_500
    async with testing.start() as world, world.connect() as broker:
        names = [f"a/b/{number:05}" for number in range(count)]
        await broker.admin("topics.create_many", topics=names, subscription="s")
        registry = world.server.registry
        history = world.server.services.totals.lateness_history
        for number, name in enumerate(names):
            late_ms = np.array([number * 7_919 % count])
            (record,) = registry.subscriptions_of(registry.topics[name].id)
            history.add(world.clock.now_ms(), record.topic_id, record.origin_id, late_ms)
        found = await worst(broker, count=count)
        assert found.keys() == set(names)
        assert list(found.values()) == sorted(found.values(), reverse=True)
        right = sorted(names, key=lambda name: -(int(name[4:]) * 7_919 % count))
        assert list(found)[-32:] == right[-32:]
        assert list(await worst(broker, count=70)) == list(found)[:70]


async def test_brokers_of_all_bundles_are_asked_for_the_worst(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: over the protocol and over HTTP; for one topic, only its broker is asked."""
    async with cluster(engine, tmp_path) as found, connected_to(found) as client:
        of_bundle = [named(found, bundle_id, 2) for bundle_id in range(found.count)]
        topics = [full(name) for names in zip(*of_bundle, strict=True) for name in names]
        lateness = {topic: 1 + number * 7 % 16 for number, topic in enumerate(topics)}
        for topic, late_ms in lateness.items():
            await deliver(client, found, topic, late_ms)
        expected = sorted(lateness.items(), key=lambda one: -one[1])
        assert list((await worst(client)).items()) == expected
        assert list((await worst(client, count=3)).items()) == expected[:3]
        for topic, late_ms in lateness.items():
            (minute,) = await minutes(client, topic)
            assert minute["max_ms"] == late_ms
        brokers = [broker for node in found.nodes.values() for broker in node.brokers.values()]
        async with side_port(None, *brokers) as http:
            answer = await http.post(path_of("subscriptions.lateness"), json={"count": 3})
            rows = answer.json()["worst"]
            assert [(one["topic"], one["p99_ms"]) for one in rows] == expected[:3]
            ask = {"topic": topics[-1], "subscription": "s"}
            answer = await http.post(path_of("subscriptions.lateness"), json=ask)
            assert [one["p99_ms"] for one in answer.json()["minutes"]] == [lateness[topics[-1]]]
