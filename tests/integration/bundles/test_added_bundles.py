"""Bundles that are added to a database with topics, while brokers run."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

from escapement.errors import NotFound, WrongBundle
from escapement.names import TopicName
from escapement.storage.bundles import bundle_of_name
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.storage.bundle_brokers import full
from support.storage.cluster import cluster, connected

COUNT = 4


def moved(prefix: str, count: int) -> list[str]:
    """Return names whose hashes belong to bundle 2 or 3 of four, and to 0 or 1 of two."""
    names = (f"{prefix}{number}" for number in range(1000))
    return [name for name in names if bundle_of_name(full(name), COUNT) >= 2][:count]


async def test_topics_stay_in_their_bundles_and_every_broker_names_these(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: also brokers that started before, and clients that know the old number only."""
    async with cluster(engine, tmp_path) as found, connected(found) as old:
        stays, fresh = moved("t", 2)
        await old.admin("subscriptions.create", topic=stays, subscription="s")
        there = found.bundle_of(full(stays))
        await found.add_bundles(COUNT, "b:7650")
        assert found.bundle_of(full(stays)) == there < 2 <= found.bundle_of(full(fresh))
        async with connected(found, "b") as client:
            for one in (old, client):
                await (await one.producer(stays)).send(b"")
                await one.admin("topics.get", topic=stays)
                await one.admin("topics.get", topic=(await one.producer(fresh)).topic)
            async with client.consumer(stays, "s") as inbox:
                assert len(await arrived(inbox)) == 2
        for node in found.nodes.values():
            for bundle_id, broker in node.brokers.items():
                for topic in (stays, fresh):
                    if found.bundle_of(full(topic)) != bundle_id:
                        with pytest.raises(WrongBundle) as refusal:
                            broker.registry.topic(TopicName.parse(topic))
                        assert refusal.value.bundle == found.bundle_of(full(topic))
        assert sum(len(node.brokers) for node in found.nodes.values()) == COUNT
        version = found.place_topics()
        await old.admin("topics.delete", topic=stays)
        with pytest.raises(NotFound):
            await old.admin("topics.get", topic=stays)
        assert found.place_topics() > version  # so nodes read the bundles of topics again
        assert found.bundle_of(full(stays)) == bundle_of_name(full(stays), COUNT)
        await old.admin("topics.create", topic=stays)
        async with connected(found) as client:
            await client.admin("topics.get", topic=stays)
