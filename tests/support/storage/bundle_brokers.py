"""Brokers of several bundles on one database, and the topics that belong to each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.names import TopicName
from escapement.storage.blocking import inline
from escapement.storage.bundles import bundle_of_name, set_bundle_count
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.base import Engine
from escapement.testing import World

BUNDLES = 3


def full(topic: str) -> str:
    """Return the full name of a topic."""
    return TopicName.parse(topic).full


def home(topic: str) -> int:
    """Return the bundle to which a topic's name belongs."""
    return bundle_of_name(full(topic), BUNDLES)


def names(prefix: str, bundle_id: int, count: int) -> list[str]:
    """Return the first names of this form that belong to a bundle."""
    found = (f"{prefix}{number}" for number in range(10**6))
    return list(islice((name for name in found if home(name) == bundle_id), count))


@asynccontextmanager
async def brokers(
    engine: Engine, data: Path, config: BrokerConfig, count: int = BUNDLES
) -> AsyncIterator[list[World]]:
    """Run a broker for each bundle, all on one database, with their indexes in one directory."""
    async with testing.start(config=config, engine=engine) as first:
        await first.stop()
        set_bundle_count(engine, count)
        first.index_directory = index_directory(data, 0)
        worlds = [first]
        async with trio.open_nursery() as nursery:
            for bundle_id in range(1, count):
                directory = index_directory(data, bundle_id)
                worlds.append(
                    World(nursery, first.clock, engine, directory, first.config, inline, bundle_id)
                )
            for world in worlds:
                await world.restart()
            yield worlds
            nursery.cancel_scope.cancel()


async def publish_everywhere(worlds: list[World]) -> list[str]:
    """Publish to a topic of each bundle, acknowledge some, and stop. Return the topics."""
    topics = [names("x", bundle_id, 1)[0] for bundle_id in range(len(worlds))]
    for topic, world in zip(topics, worlds, strict=True):
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
            async with await broker.producer(topic) as producer:
                await producer.send_many([b"%d" % number for number in range(10)])
                await producer.send_many([b"later"] * 10, delay="1h")
            async with broker.consumer(topic, "s") as inbox:
                await testing.arrived(inbox)
                await inbox.ack(range(4), durable=True)
        await world.stop()
    return topics
