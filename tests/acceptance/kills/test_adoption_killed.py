"""Repeated kills of a broker while it adopts a bulk job into its topics.

Real broker processes on MariaDB or MySQL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import trio

import escapement
from escapement.storage.engine.base import Connection
from escapement.storage.engine.open import open_engine
from escapement.storage.inbox import inbox, job
from support.processes.broker import PATIENT, BrokerProcess, broker_process
from support.storage.inbox_entries import inbox_entry
from support.storage.staged_jobs import commit, stage_entries

TOPICS: Final = 2
ENTRIES: Final = 100
KILLS: Final = 3
# Small steps, so that each kill interrupts the adoption.
SMALL: Final[dict[str, Any]] = {"inbox_step_bytes": 2_000, "inbox_round_bytes": 4_000}


async def kill_during_adoption(process: BrokerProcess, connection: Connection) -> None:
    """Kill the broker each time that it has moved a part of the remaining entries."""
    left = waiting(connection)
    for kill in range(KILLS):
        goal = left - left // (KILLS + 1 - kill)
        with trio.fail_after(60):
            while waiting(connection) > goal:  # noqa: ASYNC110 (another process changes it)
                await trio.sleep(0.002)
        process.kill()
        left = waiting(connection)
        await trio.to_thread.run_sync(process.start)


def waiting(connection: Connection) -> int:
    return sum(one.entries for one in inbox.waiting(connection, 99))


async def numbers_in_log(broker: escapement.Broker, topic: str) -> list[int]:
    return [int(one.payload) async for page in broker.read(topic) for one in page]


async def test_broker_killed_while_adopting_a_job_adds_nothing_twice(
    mysql_url: str, tmp_path: Path
) -> None:
    """B7, P6."""
    engine = open_engine(mysql_url, tmp_path)
    with broker_process(tmp_path / "data", mysql_url, limits=SMALL) as process:
        connection = engine.connect()
        load = job.enter(engine, connection, "load", 0)
        inbox_entries = [
            inbox_entry(
                f"shop/eu/{n % TOPICS}", f"{n}", *(b"%d" % m for m in range(10 * n, 10 * n + 10))
            )
            for n in range(TOPICS * ENTRIES)
        ]
        counted = stage_entries(engine, connection, load, 0, "a", inbox_entries)
        commit(engine, connection, load, counted)
        await kill_during_adoption(process, connection)
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            with trio.fail_after(60):
                while (await broker.admin("jobs.list"))[0]["state"] != "adopted":  # noqa: ASYNC110
                    await trio.sleep(0.05)
            for topic in range(TOPICS):
                wanted = [
                    m
                    for n in range(topic, TOPICS * ENTRIES, TOPICS)
                    for m in range(10 * n, 10 * n + 10)
                ]
                assert await numbers_in_log(broker, f"shop/eu/{topic}") == wanted
        connection.close()
    engine.close()
