"""Kills of a broker during seeks: each seek takes effect as a whole or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import trio

import escapement
from support.processes.broker import PATIENT, broker_process

COUNT = 200
ROUNDS = 4


@pytest.fixture(params=["sqlite", "mysql"])
def log_url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("mysql_url") if request.param == "mysql" else None


async def take(client: escapement.Broker, name: str, count: int) -> list[int]:
    """Receive and durably acknowledge ``count`` messages, and return their offsets."""
    found: list[int] = []
    async with client.consumer("t", name) as inbox:
        with trio.fail_after(60):
            while len(found) < count and (batch := await inbox.next_batch()) is not None:
                assert await batch.ack(durable=True) == len(batch)
                found += batch.offsets.tolist()
    return sorted(found)


async def seek(client: escapement.Broker, name: str, offset: int, answered: set[str]) -> None:
    """Seek to an offset, and add the name to ``answered`` if the broker answers."""
    asked = {"topic": "t", "subscription": name, "position": f"offset:{offset}"}
    with contextlib.suppress(escapement.Disconnected):
        await client.admin("subscriptions.seek", **asked)
        answered.add(name)


async def unacknowledged(client: escapement.Broker) -> dict[str, int]:
    """Return the number of unacknowledged messages by subscription."""
    rows = await client.admin("subscriptions.list", topic="t")
    return {row["subscription"]: row["unacknowledged"] for row in rows}


async def test_seek_is_atomic_across_a_kill(tmp_path: Path, log_url: str | None) -> None:
    """N3, P6: all messages stay acknowledged, or all from the new position are redelivered."""
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
            offsets = {name: int(chance.integers(0, COUNT)) for name in names}
            answered: set[str] = set()
            async with escapement.connect(broker.url, settings=PATIENT) as client:
                async with trio.open_nursery() as nursery:
                    for name, offset in offsets.items():
                        nursery.start_soon(seek, client, name, offset, answered)
                    await trio.sleep(chance.uniform(0, 0.01))
                    broker.kill()
            broker.start()
            # A new connection, because the old one may not have noticed the kill yet.
            async with escapement.connect(broker.url, settings=PATIENT) as client:
                left = await unacknowledged(client)
                for name, offset in offsets.items():
                    assert left[name] == COUNT or (left[name] == 0 and name not in answered)
                    if left[name]:
                        expected = list(range(offset, COUNT))
                        assert await take(client, name, COUNT - offset) == expected
                # Acknowledge the messages before the new position too, for the next round.
                for name in names:
                    async with client.consumer("t", name) as inbox:
                        await inbox.ack_range(0, COUNT - 1, durable=True)
