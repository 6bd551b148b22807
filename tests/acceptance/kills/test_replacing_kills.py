"""Kills of a broker while producers replace pending messages."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
import trio

import escapement
from support.processes.broker import PATIENT, BrokerProcess, broker_process

KEYS = [f"k{n}" for n in range(8)]
KILLS = 3
HOUR = timedelta(hours=1)


async def replace(
    process: BrokerProcess,
    number: int,
    stop: trio.Event,
    chains: dict[str, set[int]],
    task_status: trio.TaskStatus[None],
) -> None:
    """Send messages that replace each other. Note the ids of replaced ones, by key."""
    rng = random.Random(number)
    async with escapement.connect(process.url, settings=PATIENT) as client:
        task_status.started()
        producer = await client.producer("t")
        while not stop.is_set():
            keys = rng.sample(KEYS, 3)
            receipts = await producer.send_many(
                [b"%d" % number] * 3, delay=HOUR, keys=keys, replace=list(keys)
            )
            for key, receipt in zip(keys, receipts, strict=True):
                if receipt.replaced is not None:
                    assert receipt.replaced.offset not in chains[key], "replaced twice"
                    chains[key].add(receipt.replaced.offset)


@pytest.mark.parametrize("database", ["sqlite", "mysql"])
async def test_one_message_of_each_key_is_left_after_kills(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """B11: neither none nor two, also after an index rebuild."""
    url = request.getfixturevalue("mysql_url") if database == "mysql" else None
    chains: dict[str, set[int]] = {key: set() for key in KEYS}
    rng, stop = random.Random(7), trio.Event()
    with broker_process(tmp_path / "data", url) as process:
        async with escapement.connect(process.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
        async with trio.open_nursery() as nursery:
            for number in range(3):
                await nursery.start(replace, process, number, stop, chains)
            for _ in range(KILLS):
                await trio.sleep(rng.uniform(0.3, 1.2))
                process.kill()
                await trio.to_thread.run_sync(process.start)
            await trio.sleep(0.5)
            stop.set()
        process.kill()
        shutil.rmtree(process.index)
        process.start()
        async with escapement.connect(process.url, settings=PATIENT) as client:
            for key in KEYS:
                (left,) = (await client.select("t", key=key)).offsets.tolist()
                assert chains[key]
                assert left > max(chains[key])
            assert (await client.run_now(await client.select("t"))).done.all()
            async with client.consumer("t", "s") as inbox:
                with trio.fail_after(60):
                    got = [await anext(inbox) for _ in KEYS]
                assert sorted(message.key or "" for message in got) == KEYS
                with trio.move_on_after(0.3):
                    pytest.fail(f"{await anext(inbox)} was delivered besides")
