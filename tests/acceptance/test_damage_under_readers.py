"""Damage to the index while clients read by offset: the broker rebuilds it each time."""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trio

import escapement
from escapement.errors import EscapementError
from support.faults.damaged_bytes import scramble
from support.processes.broker import PATIENT, BrokerProcess, broker_process, until

READERS: Final = 6
# Frequent checkpoints and no cache: the next delivery finds the damage.
LIMITS: Final[dict[str, Any]] = {"checkpoint_interval_s": 0.05, "index_cache_bytes": 0}


def repairs(broker: BrokerProcess) -> int:
    """Return how often this process has discarded and rebuilt its index."""
    errors = broker.data.with_name(broker.data.name + ".err").read_text(errors="replace")
    return errors.count("rebuilding the delayed index")


async def damage_again_and_again(broker: BrokerProcess, times: int) -> None:
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        await client.admin("subscriptions.create", topic="t", subscription="s")
        producer = await client.producer("t")
        await producer.send_many([bytes(1_000)] * 20_000, delay=timedelta(days=1))

        async def read(task_status: trio.TaskStatus[None]) -> None:
            async with escapement.connect(broker.url, settings=PATIENT) as reader:
                task_status.started()
                while True:
                    with suppress(EscapementError):
                        async for _ in reader.read("t", page_messages=500):
                            pass

        async def publish() -> None:
            for number in itertools.count():
                with suppress(EscapementError):
                    await producer.send(b"%d" % number, delay=timedelta(milliseconds=200))
                await trio.sleep(0.01)

        async def consume() -> None:
            async with client.consumer("t", "s") as inbox:
                async for message in inbox:
                    await message.ack()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            nursery.start_soon(consume)
            for _ in range(READERS):
                await nursery.start(read)
            for number in range(1, times + 1):
                done = repairs(broker)
                with trio.fail_after(60):
                    while repairs(broker) == done:
                        assert broker.running, f"{broker.process.returncode}: {number} damages"
                        scramble(broker.index)
                        await trio.sleep(0.05)
                print(f"damage {number} of {times} is repaired")
            nursery.cancel_scope.cancel()
    await until(broker.ready)
    assert broker.running
    assert broker.starts == 1


async def test_broker_survives_damage_while_clients_read(tmp_path: Path) -> None:
    """P6, invariant 4: the broker closes no database connection during a session's call."""
    with broker_process(tmp_path / "broker", limits=LIMITS) as broker:
        await damage_again_and_again(broker, times=5)
        assert broker.stop() == 0


@pytest.mark.long
async def test_broker_survives_two_hundred_damages_while_clients_read(tmp_path: Path) -> None:
    """P6, invariant 4: two hundred times, to find rare races."""
    with broker_process(tmp_path / "broker", limits=LIMITS) as broker:
        await damage_again_and_again(broker, times=200)
        assert broker.stop() == 0


@pytest.mark.long
async def test_broker_stops_while_clients_read(tmp_path: Path) -> None:
    """P6: SIGTERM ends the broker with exit code 0, a hundred times."""
    with broker_process(tmp_path / "broker", limits=LIMITS) as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await (await client.producer("t")).send_many([bytes(1_000)] * 20_000)

            async def read(task_status: trio.TaskStatus[None]) -> None:
                async with escapement.connect(broker.url, settings=PATIENT) as reader:
                    task_status.started()
                    while True:
                        with suppress(EscapementError):
                            async for _ in reader.read("t", page_messages=500):
                                pass

            async with trio.open_nursery() as nursery:
                for _ in range(READERS):
                    await nursery.start(read)
                for _ in range(100):
                    await trio.sleep(0.1)
                    assert await trio.to_thread.run_sync(broker.stop) == 0, broker.complaints()
                    await trio.to_thread.run_sync(broker.start)
                nursery.cancel_scope.cancel()
