"""Kills of a broker while it fills its lost index from the log, on both engines (P5, P6, B8)."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import trio

import escapement
from support.processes.broker import PATIENT, BrokerProcess, broker_process, until

ROWS, BATCH, OVERDUE = 200, 250, 40
# Each log row is a step of the fill, and checkpoints are written meanwhile.
LIMITS = {"backfill_step_bytes": 1, "lease_ms": 600_000, "checkpoint_interval_s": 0.1}
TIMEOUT_S = 120


async def publish(client: escapement.Broker) -> None:
    """Publish messages for later, with one that is due at once in some of the log rows."""
    await client.admin("subscriptions.create", topic="t", subscription="s")
    async with await client.producer("t") as producer:
        for row in range(ROWS):
            delays = ["1h"] * BATCH
            if row < 2 * OVERDUE and row % 2:
                delays[0] = "0s"
            values = [b"%d" % value for value in range(row * BATCH, (row + 1) * BATCH)]
            await producer.send_many(values, delay=delays)


def is_filled(process: BrokerProcess) -> bool:
    """Return whether the broker has filled its index since the last start."""
    said = process.complaints().rpartition("-- start ")[2]
    assert "serving without an index" in said
    return "the index is complete" in said


async def killed_while_filling(process: BrokerProcess, step: int) -> None:
    """Start the broker, which is killed when it adds so many rows to its index."""
    process.failpoints = f"backfill=kill@{step}"
    process.launch()
    await until(lambda: not process.running)
    assert process.process.returncode == -signal.SIGKILL
    assert not is_filled(process)


@pytest.mark.parametrize("kind", ["sqlite", "mysql"])
async def test_kills_in_the_middle_of_a_fill_lose_and_repeat_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """P5, P6, invariants 2 and 3: no message is lost, early, or delivered after its ack."""
    url = request.getfixturevalue("mysql_url") if kind == "mysql" else None
    with (
        broker_process(tmp_path / "data", url, limits=LIMITS) as process,
        trio.fail_after(TIMEOUT_S),
    ):
        async with escapement.connect(process.url, settings=PATIENT) as client:
            await publish(client)
            got: list[int] = []
            async with client.consumer("t", "s") as inbox:
                while len(got) < OVERDUE // 2:
                    message = await inbox.receive()
                    assert message is not None
                    await inbox.ack([message.id], durable=True)
                    got.append(message.offset)
            process.kill()
            shutil.rmtree(process.index)
            for step in (5, 60, 120):
                await killed_while_filling(process, step)
            process.failpoints = ""
            process.start()
            async with client.consumer("t", "s") as inbox:
                while len(got) < OVERDUE:
                    message = await inbox.receive()
                    assert message is not None
                    await inbox.ack([message.id], durable=True)
                    got.append(message.offset)
                assert await inbox.receive(1) is None
            assert sorted(got) == [row * BATCH for row in range(1, 2 * OVERDUE, 2)]
            await until(lambda: is_filled(process))
            forecast = await client.forecast("t", by="1h", within="2h")
            assert sum(forecast.counts) == ROWS * BATCH - OVERDUE
