"""Brokers die while letters arrive and schedules fire: each reaches its topic once.

Real processes on MariaDB or MySQL. Another program writes letters straight into the
database; a schedule fires every second; the broker is killed again and again, or hangs until
another has taken over.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Final

import trio

import escapement
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.engine.open import open_engine
from escapement.storage.inbox import inbox
from escapement.storage.inbox.entry import InboxEntry
from support.broker_processes import PATIENT, BrokerProcess, broker_process, until, until_it_starts
from support.inbox_entries import inbox_entry

KILLS: Final = 5
TOPICS: Final = 3
ROUNDS: Final = 600
SHORT_LEASE: Final[dict[str, Any]] = {"lease_ms": 1_500}
TIMEOUT_S: Final = 60


def write_entries(url: str, data: Path) -> None:
    """Some letters at a time, in a transaction of this program's; every one of them twice."""
    engine = open_engine(url, data)
    connection = engine.connect()
    for number in range(ROUNDS):
        some = [inbox_entry(f"shop/eu/{n}", f"{number}", b"%d" % number) for n in range(TOPICS)]
        while not written(engine, connection, some):
            pass
        time.sleep(0.005)
    connection.close()
    engine.close()


def written(engine: Engine, connection: Connection, some: list[InboxEntry]) -> bool:
    """Once and again, unless a lock that a hanging broker holds ended the transaction."""
    connection.begin()
    try:
        inbox.insert(engine, connection, some, 0)
        inbox.insert(engine, connection, some, 0)
        connection.commit()
    except TransactionAborted:
        connection.rollback()
        return False
    return True


async def kill_again_and_again(broker: BrokerProcess, rng: random.Random) -> None:
    for _ in range(KILLS):
        await trio.sleep(rng.uniform(0.4, 1.5))
        broker.kill()
        await trio.to_thread.run_sync(broker.start)


async def received(broker: escapement.Broker, topic: str) -> list[escapement.Message]:
    """All that a topic's log has, in order."""
    count = (await broker.admin("topics.stats", topic=topic))["next_offset"]
    found: list[escapement.Message] = []
    with trio.fail_after(TIMEOUT_S):
        async with broker.consumer(
            topic, "look", kind="exclusive", position="earliest"
        ) as messages:
            async for message in messages:
                found.append(message)
                if len(found) == count:
                    break
    return found


async def check_everything(broker: escapement.Broker, made: escapement.Schedule) -> None:
    """Stop the schedule, wait for the inbox to be empty, and look at all topics."""
    ended = await broker.schedules.pause("beat")
    with trio.fail_after(TIMEOUT_S):
        while await broker.admin("inbox.list"):  # noqa: ASYNC110 (it is elsewhere)
            await trio.sleep(0.1)
    for n in range(TOPICS):
        values = [int(m.payload) for m in await received(broker, f"shop/eu/{n}")]
        assert values == list(range(ROUNDS)), "lost, doubled or out of order"
    beats = await received(broker, "shop/eu/beats")
    times = [beat.properties["occurrence_ms"] for beat in beats]
    assert len(times) == ended.published > 0
    first_ms = round(made.created.timestamp() * 1000) + 1000
    assert times == list(range(first_ms, first_ms + 1000 * len(times), 1000))


async def create(process: BrokerProcess) -> escapement.Schedule:
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        return await broker.schedules.create("beat", "shop/eu/beats", every="1s", missed="all")


async def test_killed_at_any_time_a_broker_moves_every_letter_and_occurrence_once(
    mysql_url: str, tmp_path: Path
) -> None:
    """B2, and what N7 and B7 will stand on."""
    with broker_process(tmp_path / "data", mysql_url) as process:
        made = await create(process)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, write_entries, mysql_url, tmp_path)
            await kill_again_and_again(process, random.Random(7))
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            await check_everything(broker, made)


async def test_a_successor_goes_on_and_a_zombie_moves_nothing(
    mysql_url: str, tmp_path: Path
) -> None:
    """B2 across a take-over, B8."""
    successor = BrokerProcess(tmp_path / "second", mysql_url, limits=SHORT_LEASE)
    try:
        with broker_process(tmp_path / "first", mysql_url, limits=SHORT_LEASE) as zombie:
            made = await create(zombie)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, write_entries, mysql_url, tmp_path)
                await trio.sleep(1.3)
                zombie.pause()
                await until_it_starts(successor)
                zombie.resume()
                await until(lambda: not zombie.running)
        async with escapement.connect(successor.url, settings=PATIENT) as broker:
            await check_everything(broker, made)
    finally:
        successor.remove()
