"""Repeated kills of a broker while groups are filled, closed and completed (Q10).

Real processes on MariaDB or MySQL.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import trio

import escapement
from escapement import FollowUp
from support.processes.broker import PATIENT, BrokerProcess, broker_process

KILLS: Final = 3
TIMEOUT_S: Final = 60


async def kill_again_and_again(
    process: BrokerProcess, rng: random.Random, over: trio.Event
) -> None:
    for _ in range(KILLS):
        await trio.sleep(rng.uniform(0.3, 0.9))
        process.kill()
        await trio.to_thread.run_sync(process.start)
    over.set()


async def import_until(client: escapement.Broker, over: trio.Event, closed: list[int]) -> None:
    """Publish and close groups until ``over`` is set. Groups complete while the next ones begin."""
    async with await client.producer("work") as producer:
        while not over.is_set():
            group = f"import-{len(closed)}"
            await producer.send_many([b"x"] * 40, groups=group)
            await producer.close_group(group, "s", FollowUp(b"%d" % len(closed), "after"))
            closed.append(len(closed))


async def work(client: escapement.Broker) -> None:
    """Acknowledge all messages, forever."""
    async with client.consumer("work", "s") as inbox:
        async for message in inbox:
            await message.ack()


async def fired(client: escapement.Broker) -> int:
    """Return the number of follow-ups."""
    count: int = (await client.admin("topics.stats", topic="after"))["next_offset"]
    return count


async def test_broker_killed_at_any_time_fires_each_follow_up_once(
    mysql_url: str, tmp_path: Path
) -> None:
    """Q10."""
    with broker_process(tmp_path / "data", mysql_url) as process:
        async with escapement.connect(process.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="work", subscription="s")
            await client.admin("topics.create", topic="after")
            over = trio.Event()
            closed: list[int] = []
            async with trio.open_nursery() as workers:
                workers.start_soon(work, client)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(import_until, client, over, closed)
                    nursery.start_soon(kill_again_and_again, process, random.Random(7), over)
                with trio.fail_after(TIMEOUT_S):
                    while await fired(client) < len(closed):  # noqa: ASYNC110 (another process changes it)
                        await trio.sleep(0.1)
                await trio.sleep(0.5)  # a second follow-up would arrive soon
                workers.cancel_scope.cancel()
            found = [int(m.payload) async for page in client.read("after") for m in page]
            assert sorted(found) == closed
            states = {one.completions[0].state for one in await client.groups.list("work")}
            assert states == {"fired"}
