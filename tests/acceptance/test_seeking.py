"""kill -9 while subscriptions are sought: each seek happened as a whole, or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import trio

import escapement
from support.broker_processes import PATIENT, broker_process

COUNT = 200
ROUNDS = 4


@pytest.fixture(params=["sqlite", "mysql"])
def log_url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("mysql_url") if request.param == "mysql" else None


async def take(client: escapement.Broker, name: str, count: int) -> list[int]:
    """The next ``count`` messages of a subscription, acknowledged durably."""
    found: list[int] = []
    async with client.consumer("t", name) as inbox:
        with trio.fail_after(60):
            while len(found) < count and (batch := await inbox.next_batch()) is not None:
                assert await batch.ack(durable=True) == len(batch)
                found += batch.offsets.tolist()
    return sorted(found)


async def seek(client: escapement.Broker, name: str, place: int, answered: set[str]) -> None:
    """Ask for it, and note if an answer came."""
    asked = {"topic": "t", "subscription": name, "position": f"offset:{place}"}
    with contextlib.suppress(escapement.Disconnected):
        await client.admin("subscriptions.seek", **asked)
        answered.add(name)


async def unacknowledged(client: escapement.Broker) -> dict[str, int]:
    """By subscription; one that was sought has nothing acknowledged."""
    rows = await client.admin("subscriptions.list", topic="t")
    return {row["subscription"]: row["unacknowledged"] for row in rows}


async def test_a_seek_is_whole_across_kill_minus_nine(tmp_path: Path, log_url: str | None) -> None:
    """N3, P6: either all stays acknowledged, or all from the new place on comes again."""
    chance = np.random.default_rng(5)
    names = ["a", "b", "c"]
    with broker_process(tmp_path / "broker", log_url) as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            for name in names:
                await client.admin("subscriptions.create", topic="t", subscription=name)
            producer = await client.producer("t")
            await producer.send_many([b"x"] * COUNT)
            for name in names:
                assert await take(client, name, COUNT) == list(range(COUNT))
        for _ in range(ROUNDS):
            places = {name: int(chance.integers(0, COUNT)) for name in names}
            answered: set[str] = set()
            async with escapement.connect(broker.url, settings=PATIENT) as client:
                async with trio.open_nursery() as nursery:
                    for name, place in places.items():
                        nursery.start_soon(seek, client, name, place, answered)
                    await trio.sleep(chance.uniform(0, 0.01))
                    broker.kill()
            broker.start()
            # A connection of its own: the old one may not have noticed the kill yet.
            async with escapement.connect(broker.url, settings=PATIENT) as client:
                left = await unacknowledged(client)
                for name, place in places.items():
                    assert left[name] == COUNT or (left[name] == 0 and name not in answered)
                    if left[name]:
                        expected = list(range(place, COUNT))
                        assert await take(client, name, COUNT - place) == expected
                # What lies before the place is not to come: it counts as done from here on.
                for name in names:
                    async with client.consumer("t", name) as inbox:
                        await inbox.ack_range(0, COUNT - 1, durable=True)
