"""Clients of a message table: one inserts rows, and others consume them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import pymysql
import trio

import escapement
from escapement.errors import EscapementError
from stress.application import Application, Cursor, Session
from stress.producing import draw_delay_ms
from stress.world import World, passes
from support.processes.broker import PATIENT

_BATCH: Final = 6
_ROLLED_BACK_SHARE: Final = 0.15
_PERMITS: Final = 10


async def insert_rows(world: World, application: Application) -> None:
    """Insert rows into the table until the run is over."""
    history, rows, session = world.history, application.rows, Session(application.shop)
    while not world.over:
        batch = []
        for _ in range(world.chance.randint(1, _BATCH)):
            due_ms = history.now_ms() + draw_delay_ms(world)
            batch.append((rows.insert(due_ms), due_ms))
        commits = world.chance.random() >= _ROLLED_BACK_SHARE
        insert = partial(session.transact, partial(_insert, batch), commits=commits)
        stored = await trio.to_thread.run_sync(insert)
        for number, _ in batch:
            rows.rows[number].stored = stored
        history.counts["rows inserted"] += bool(stored) * len(batch)
        await trio.sleep(world.chance.uniform(0, 2 * world.publish_pause_s))
    session.close()


def _insert(batch: Sequence[tuple[int, int]], cursor: Cursor) -> None:
    values = [(number, due_ms * 1_000_000) for number, due_ms in batch]
    cursor.executemany("INSERT INTO mails (tenant_id, time_next) VALUES (%s, %s)", values)


async def consume_rows(world: World, application: Application) -> None:
    """Acknowledge rows, or give them back, until cancelled."""
    counts = world.history.counts
    async with (
        escapement.connect(world.url, settings=PATIENT) as client,
        client.consumer(application.table, "table", permits=_PERMITS) as inbox,
    ):
        async for message in inbox:
            number = application.rows.came(message.row, world.history.now_ms())
            choice = world.chance.random()
            if choice < 0.1 and not world.over:
                await inbox.nack([message], "100ms")
            elif choice < 0.95 or world.over:
                try:
                    acked = await inbox.ack([message], durable=True)
                except EscapementError as error:
                    if not passes(error):
                        raise
                    continue
                counts["rows acknowledged"] += acked
                if acked:
                    await trio.to_thread.run_sync(_note_epoch, application, number)


def _note_epoch(application: Application, number: int) -> None:
    """Note the epoch of an acknowledged row, which does not change any more."""
    with suppress(pymysql.err.MySQLError):  # the server is being restarted
        application.note_epoch(number)
