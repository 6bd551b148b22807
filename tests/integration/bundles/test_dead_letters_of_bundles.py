"""Dead letters whose original topic is in another bundle: listing, redrive and purge."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio.testing

import escapement
from escapement.broker.side_port.openapi import path_of
from escapement.errors import DelaysDisabled, NotFound
from escapement.names import TopicName
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.side_ports import refusal, side_port
from support.storage.bundle_brokers import full
from support.storage.cluster import Cluster, cluster, connected, named, result, settle

FAILING = {"max_deliveries": 1}


def apart(found: Cluster) -> str:
    """Return a topic of bundle 0 whose dead-letter topic for "s" belongs to bundle 1."""
    return next(name for name in named(found, 0, 64) if found.bundle_of(full(f"{name}-s-DLQ")) == 1)


def stored(found: Cluster, topic: str) -> int:
    """Return how many messages the log of a topic has."""
    bundle_id = found.bundle_of(full(topic))
    registry = found.nodes[found.owner_of(bundle_id).address].brokers[bundle_id].registry
    record = registry.topics.get(full(topic))
    return 0 if record is None else registry.activate(record.id).next_offset


async def die(found: Cluster, client: escapement.Broker, topic: str, count: int) -> None:
    """Publish messages, fail each, and wait until they are dead letters."""
    await client.admin("subscriptions.create", topic=topic, subscription="s", policy=FAILING)
    async with await client.producer(topic) as producer:
        for number in range(count):
            await producer.send(
                b"%d" % number,
                key=f"k{number % 3}",
                priority=number % 2,
                properties={"number": number},
            )
    async with client.consumer(topic, "s") as inbox:
        while messages := await arrived(inbox):
            await inbox.nack([one.id for one in messages])
    await settle(found, lambda: stored(found, f"{topic}-s-DLQ") == count)


async def taken(client: escapement.Broker, topic: str) -> list[tuple[Any, ...]]:
    """Take all messages of a topic, and return them."""
    got = []
    async with client.consumer(topic, "s") as inbox:
        while messages := await arrived(inbox):
            got += [(m.value, m.key, m.priority, dict(m.properties)) for m in messages]
            await inbox.ack([one.id for one in messages], durable=True)
    return got


async def test_dead_letters_in_another_bundle_are_listed_redriven_and_purged(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """V1: the broker of their own topic does it. Each goes back as it was, once."""
    async with cluster(engine, tmp_path) as found, connected(found) as client:
        topic = apart(found)
        await die(found, client, topic, 12)
        ask = partial(client.admin, topic=topic, subscription="s")
        assert await ask("dlq.count") == {"dead_letters": 12, "next": None}
        listed = await ask("dlq.list", count=100)
        assert [one["original_offset"] for one in listed] == list(range(12))
        shown = await ask("dlq.show", offset=listed[3]["offset"])
        assert (shown["payload"], shown["original_topic"]) == (b"3", full(topic))
        (of_seven,) = (await ask("dlq.find", offset=7, key="k1"))["dead_letters"]
        assert of_seven == listed[7]
        few = [one["offset"] for one in listed[:4]]
        assert await ask("dlq.redrive", offsets=few) == {"redriven": 4}
        assert await ask("dlq.redrive", offsets=few) == {"redriven": 0}
        assert await ask("dlq.redrive", spread_ms=60_000) == {"redriven": 8}
        await settle(found, lambda: stored(found, topic) == 24)
        await found.clock.advance(minutes=2)
        expected = [(b"%d" % n, f"k{n % 3}", n % 2, {"number": n}) for n in range(12)]
        assert sorted(await taken(client, topic)) == sorted(expected)
        assert await ask("dlq.purge") == {"purged": 0}
        await client.admin("subscriptions.delete", topic=topic, subscription="s")
        with pytest.raises(NotFound, match="no subscription s"):
            await ask("dlq.count")
        named_topic = partial(ask, dead_letter_topic=f"{topic}-s-DLQ")
        assert (await named_topic("dlq.count"))["dead_letters"] == 0
        await client.admin("topics.delete", topic=topic)
        with pytest.raises(NotFound, match="does not exist"):
            await named_topic("dlq.redrive")


async def test_a_redrive_is_exactly_once_across_crashes_of_either_broker(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """V1: a dead letter is either pending, or its message is published again, never both."""
    async with cluster(engine, tmp_path) as found, connected(found) as client:
        topic = apart(found)
        await die(found, client, topic, 20)
        ask = partial(client.admin, topic=topic, subscription="s")
        assert await ask("dlq.redrive", count=10) == {"redriven": 10}
        for bundle_id, address in ((1, "b:7650"), (0, "a:7650")):  # the entries are not moved yet
            await found.crash(bundle_id)
            await found.start(bundle_id, address)
        left = await result(found, partial(ask, "dlq.redrive"))
        assert left == {"redriven": 10}
        await found.move(0, "b:7650")
        await settle(found, lambda: stored(found, topic) == 40)
        got = await result(found, partial(taken, client, topic))
        assert sorted(int(value) for value, *_ in got) == list(range(20))
        assert await ask("dlq.count") == {"dead_letters": 0, "next": None}


async def test_a_bulk_redrive_runs_at_the_broker_of_the_dead_letters(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B13: it is previewed, shown and stopped by the name of the original topic."""
    async with cluster(engine, tmp_path) as found, connected(found) as client:
        topic = apart(found)
        await die(found, client, topic, 9)
        assert (await client.bulk.preview(topic, "s", key="k1")).messages == 3
        change = await client.bulk.redrive(topic, "s", key="k1")
        assert (change.topic, change.dead_letter_topic) == (full(topic), full(f"{topic}-s-DLQ"))
        assert change.id in found.nodes["b:7650"].brokers[1].services.bulk_changes._by_id
        shown = await result(found, partial(client.bulk.wait, change))
        assert (shown.state, shown.done, shown.skipped) == ("done", 3, 0)
        assert (await client.bulk.stop(topic, change.id)).state == "done"
        assert [one.id for one in await client.bulk.list()] == [change.id]
        await settle(found, lambda: stored(found, topic) == 12)
        assert sorted(value for value, *_ in await taken(client, topic)) == [b"1", b"4", b"7"]
        with pytest.raises(NotFound, match="no bulk change"):
            await client.bulk.show(topic, change.id + 1)


async def test_a_redrive_to_another_bundle_keeps_to_the_delays_of_its_namespace(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B12: a spread is a delay, which the namespace of the original topic may refuse."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        topic = apart(found)
        await die(found, client, topic, 1)
        space = TopicName.parse(topic).namespace_full
        await client.admin("namespaces.disable_delayed_message", namespace=space)
        ask = partial(client.admin, "dlq.redrive", topic=topic, subscription="s")
        with pytest.raises(DelaysDisabled, match=space):
            await ask(spread_ms=1000)
        assert await ask() == {"redriven": 1}


async def test_the_side_port_finds_the_dead_letters_among_the_brokers_of_its_process(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """O4: a process that does not own their bundle refuses the request."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        topic = apart(found)
        await die(found, client, topic, 3)
        here, there = (node.brokers for node in found.nodes.values())
        ask = {"topic": topic, "subscription": "s"}
        async with side_port(None, here[0], there[1]) as http:
            answer = await http.post(path_of("dlq.count"), json=ask)
            assert answer.json() == {"dead_letters": 3, "next": None}
            answer = await http.post(path_of("dlq.redrive"), json=ask)
            assert answer.json() == {"redriven": 3}
        async with side_port(None, here[0]) as http:
            answer = await http.post(path_of("dlq.count"), json=ask)
            assert await refusal(answer) == (421, "wrong_bundle")
