"""The console of several brokers, which own different topics."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import trio.testing

from escapement.storage.engine.base import Engine
from support.console.visitor import text_of, visiting_at
from support.storage.bundle_brokers import full
from support.storage.cluster import cluster, connected, named

BROKERS = ("a:7650", "b:7650")


async def test_pages_have_the_topics_of_all_brokers(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B14: an action changes messages at each of them."""

    def connect(token: str) -> Any:
        return connected(found, *BROKERS)

    async with (
        cluster(engine, tmp_path, addresses=BROKERS) as found,
        connected(found) as broker,
        visiting_at(connect, found.clock) as visitor,
    ):
        topics = [full(named(found, bundle_id)[0]) for bundle_id in range(found.count)]
        for topic, count in zip(topics, (3, 4), strict=True):
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
            async with await broker.producer(topic) as producer:
                await producer.send_many([b"m"] * count, delay=timedelta(hours=1))
        listed, matching = await visitor.text("/subscriptions"), await visitor.text("/find")
        for topic in topics:
            assert f"s {topic}" in listed
            assert f"{topic}@0" in matching
        await broker.admin("namespaces.forecast")  # a page does not wait for the first count
        assert "7 fall due in this time" in await visitor.text("/?where=public/default")
        ids = [f"{topic}@0" for topic in topics]
        form = {"action": "cancel", "id": ids, "sure": "true"}
        assert "Cancelled: 2" in text_of(await visitor.send("/act/now", form))
        assert "5 fall due in this time" in await visitor.text("/")
