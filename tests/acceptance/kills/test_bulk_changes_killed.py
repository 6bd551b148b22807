"""Kills of a broker while it reschedules 200,000 messages in bulk (B13)."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import trio

import escapement
from escapement import BulkChange
from escapement.clock import moment
from escapement.spread import places_ms, seeds
from support.processes.broker import PATIENT, BrokerProcess, broker_process

COUNT = 200_000
KILLS = 2
TIMEOUT_S = 120
HOUR_MS = 3_600_000


async def killed_at_each(
    process: BrokerProcess, client: escapement.Broker, change: BulkChange
) -> BulkChange:
    """Kill the broker when it has handled further thirds of the messages. Return the end."""
    kills = 0
    while not change.has_ended:
        await trio.sleep(0.02)
        change = await client.bulk.show(change.topic, change.id)
        if kills < KILLS and change.handled > COUNT * kills // 3 and not change.has_ended:
            handled = change.handled
            process.kill()
            await trio.to_thread.run_sync(process.start)
            kills += 1
            change = await client.bulk.show(change.topic, change.id)
            assert change.handled >= handled
    assert kills == KILLS
    return change


@pytest.mark.parametrize("kind", ["sqlite", "mysql"])
async def test_killed_broker_goes_on_and_moves_each_message_once(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """B13, B12: all 200,000 messages get their places in the span, which are known in advance."""
    url = request.getfixturevalue("mysql_url") if kind == "mysql" else None
    with broker_process(tmp_path / "data", url) as process, trio.fail_after(TIMEOUT_S):
        async with escapement.connect(process.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
            async with await client.producer("t") as producer:
                for _ in range(0, COUNT, 20_000):
                    await producer.send_many([b"x"] * 20_000, delay="2d")
            at_ms = int(time.time() * 1000) + 24 * HOUR_MS
            change = await client.bulk.reschedule(
                "t", everything=True, at=moment(at_ms), spread="1h"
            )
            change = await killed_at_each(process, client, change)
            assert (change.state, change.messages, change.done) == ("done", COUNT, COUNT)
            places = places_ms(seeds("public/default/t", np.arange(COUNT)), HOUR_MS)
            forecast = await client.forecast("t", by="1m", within="49h", origin=moment(at_ms))
            expected = np.bincount(places // 60_000, minlength=60)
            counts = np.array(forecast.counts)
            assert counts[counts > 0].tolist() == expected[expected > 0].tolist()
