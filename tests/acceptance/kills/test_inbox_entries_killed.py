"""Kills of a broker while inbox entries arrive and schedules fire: each is published once.

Real processes on MariaDB or MySQL. Another program writes inbox entries directly into the
database, and a schedule fires every second. The broker is killed repeatedly, or hangs until another
broker has taken over.
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
from support.processes.broker import (
    PATIENT,
    BrokerProcess,
    broker_process,
    until,
    until_it_takes_over,
)
from support.storage.inbox_entries import inbox_entry

KILLS: Final = 5
TOPICS: Final = 3
ROUNDS: Final = 600
SHORT_LEASE: Final[dict[str, Any]] = {"lease_ms": 1_500}
TIMEOUT_S: Final = 60


def write_entries(url: str, data: Path) -> None:
    """Write inbox entries, some in each transaction and each entry twice."""
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
    """Insert entries twice. Return False if a lock of a hanging broker aborted the transaction."""
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


async def messages_in_log(broker: escapement.Broker, topic: str) -> list[escapement.Message]:
    """Return all messages in the log of a topic, in order."""
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
    """Pause the schedule, wait for an empty inbox, and check the messages of all topics."""
    ended = await broker.schedules.pause("beat")
    with trio.fail_after(TIMEOUT_S):
        while await broker.admin("inbox.list"):  # noqa: ASYNC110 (another process changes it)
            await trio.sleep(0.1)
    for n in range(TOPICS):
        values = [int(m.payload) for m in await messages_in_log(broker, f"shop/eu/{n}")]
        assert values == list(range(ROUNDS)), "lost, duplicated or out of order"
    beats = await messages_in_log(broker, "shop/eu/beats")
    times = [beat.properties["occurrence_ms"] for beat in beats]
    assert len(times) == ended.published > 0
    first_ms = round(made.created.timestamp() * 1000) + 1000
    assert times == list(range(first_ms, first_ms + 1000 * len(times), 1000))


async def create(process: BrokerProcess) -> escapement.Schedule:
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        return await broker.schedules.create("beat", "shop/eu/beats", every="1s", missed="all")


async def test_broker_killed_at_any_time_moves_each_inbox_entry_and_occurrence_once(
    mysql_url: str, tmp_path: Path
) -> None:
    """B2, and the basis of N7 and B7."""
    with broker_process(tmp_path / "data", mysql_url) as process:
        made = await create(process)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, write_entries, mysql_url, tmp_path)
            await kill_again_and_again(process, random.Random(7))
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            await check_everything(broker, made)


async def test_successor_continues_and_the_fenced_broker_moves_nothing(
    mysql_url: str, tmp_path: Path
) -> None:
    """B2 across a takeover, B8."""
    successor = BrokerProcess(tmp_path / "second", mysql_url, limits=SHORT_LEASE)
    try:
        with broker_process(tmp_path / "first", mysql_url, limits=SHORT_LEASE) as fenced:
            made = await create(fenced)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, write_entries, mysql_url, tmp_path)
                await trio.sleep(1.3)
                fenced.pause()
                await until_it_takes_over(successor)
                fenced.resume()
                await until(lambda: "the broker of bundle 0 ends" in fenced.complaints())
        async with escapement.connect(successor.url, settings=PATIENT) as broker:
            await check_everything(broker, made)
    finally:
        successor.remove()
