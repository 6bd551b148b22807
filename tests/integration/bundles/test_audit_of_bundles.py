"""The audit log of several bundles: one table, which every broker writes and reads (B17)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

import escapement
from escapement.broker.access.caller import Caller
from escapement.broker.admin import Admin
from escapement.errors import WrongBundle
from escapement.storage.engine.base import Engine
from support.storage.bundle_brokers import full
from support.storage.cluster import cluster, connected, named


async def test_actions_at_all_brokers_are_listed_at_any(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B17: requests that went to a wrong broker first have one row, of the broker that acted."""
    async with cluster(engine, tmp_path) as found:
        topics = [named(found, bundle)[0] for bundle in range(found.count)]
        async with connected(found) as client:
            for number, topic in enumerate(topics):
                await client.because(f"ticket {number}").admin("topics.create", topic=topic)
            await client.admin(
                "schedules.create", schedule="a/b/beat", topic=topics[-1], cron="0 9 * * *"
            )
            await client.admin("schedules.pause", schedule="a/b/beat")
            with pytest.raises(escapement.NotFound):
                await client.admin("schedules.pause", schedule="a/b/unknown")
        wrong = found.nodes["a:7650"].brokers[0]
        caller = Caller(wrong.services.access)
        await caller.admit("")
        with pytest.raises(WrongBundle):
            await Admin(wrong).carry_out("topics.create", {"topic": topics[1]}, caller)
        expected = [("schedules.pause", "a/b/beat"), ("schedules.create", "a/b/beat")]
        expected += [("topics.create", full(topic)) for topic in reversed(topics)]
        owners = [found.count - 1] * 2 + list(reversed(range(found.count)))
        for address in found.nodes:
            async with connected(found, address.partition(":")[0]) as client:
                rows = (await client.admin("audit.list"))["actions"]
            by_id = [(row["verb"], row["object"]) for row in rows]
            assert sorted(by_id) == sorted(expected)
            bundles = {(row["verb"], row["object"]): row["bundle"] for row in rows}
            assert [bundles[one] for one in expected] == owners
            assert {row["outcome"] for row in rows} == {"done"}
            reasons = {row["object"]: row["reason"] for row in rows if "create" in row["verb"]}
            tickets = {full(topic): f"ticket {number}" for number, topic in enumerate(topics)}
            assert reasons == tickets | {"a/b/beat": None}
