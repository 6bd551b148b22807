"""Requests over HTTP that are about the topics of several bundles (O4)."""

from __future__ import annotations

from pathlib import Path

import trio.testing

from escapement.broker.side_port.openapi import path_of
from escapement.storage.engine.base import Engine
from support.side_ports import refusal, side_port
from support.storage.bundle_brokers import full
from support.storage.cluster import cluster, connected, named


async def test_lists_have_the_topics_and_schedules_of_all_bundles(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        topics = [named(found, bundle_id, 1)[0] for bundle_id in range(found.count)]
        for topic in topics:
            await client.admin("topics.create", topic=topic)
            schedule = f"public/default/of-{topic}"
            await client.admin("schedules.create", schedule=schedule, topic=topic, cron="0 9 * * *")
        brokers = [broker for node in found.nodes.values() for broker in node.brokers.values()]
        async with side_port(None, *brokers) as http:
            answer = await http.post(path_of("topics.list"), json={"namespace": "public/default"})
            assert answer.json() == {"topics": sorted(map(full, topics)), "total": len(topics)}
            answer = await http.post(path_of("schedules.list"), json={})
            listed = {row["schedule"] for row in answer.json()}
            assert listed == {f"public/default/of-{topic}" for topic in topics}
            ask = {"schedule": f"public/default/of-{topics[-1]}"}
            answer = await http.post(path_of("schedules.pause"), json=ask)
            assert answer.status_code == 200
            answer = await http.post(path_of("schedules.get"), json={"schedule": "a/b/unknown"})
            assert await refusal(answer) == (404, "not_found")


async def test_a_process_without_all_bundles_does_not_answer_for_them(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    async with cluster(sqlite, tmp_path) as found:
        own = next(iter(found.nodes.values())).brokers
        assert len(own) < found.count
        async with side_port(None, *own.values()) as http:
            for verb, ask in (
                ("topics.list", {"namespace": "public/default"}),
                ("schedules.list", {}),
                ("schedules.get", {"schedule": "a/b/unknown"}),
            ):
                answer = await http.post(path_of(verb), json=ask)
                assert await refusal(answer) == (421, "wrong_bundle")
