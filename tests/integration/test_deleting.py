"""Deleting frees everything, also when the broker dies half-way: both databases."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from itertools import count

import trio

import escapement
from committing import FaultyEngine, no_fault
from dying import DiesAt, finish
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import EscapementError
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from letters import letter

NAMESPACE, TOPIC = "t/n", "t/n/x"
TABLES = (
    *("namespaces", "topics", "subscriptions", "producers", "cursor_chunks", "attempts"),
    *("moves", "mailboxes", "inbox", "removals"),
)
PATIENT = BrokerConfig(ack_wait_ms=10**12, table_parallelism=2, seed=0)


def left(engine: Engine) -> dict[str, int]:
    """Rows by table, of those that have any."""
    connection = engine.connect()
    try:
        found = connection.execute("SELECT id, parallelism FROM generations").rows
        logs = [f"log_{id}_{shard}" for id, parallelism in found for shard in range(parallelism)]
        counts = {
            table: int(connection.execute(f"SELECT COUNT(*) FROM {table}").rows[0][0])
            for table in (*TABLES, *logs)
        }
        return {table: rows for table, rows in counts.items() if rows}
    finally:
        connection.close()


async def fill(world: World) -> None:
    """A topic that has something of its own in every table."""
    async with world.connect() as broker:
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
        producer = await broker.producer(TOPIC, name="p")
        await producer.send_many([b"now"] * 10)
        await producer.send_many([b"later"] * 10, delay=timedelta(hours=1))
        await broker.cancel([15], topic=TOPIC)
        await broker.reschedule([16], delay=timedelta(hours=2), topic=TOPIC)
        async with broker.consumer(TOPIC, "s", permits=50) as inbox:
            messages = await arrived(inbox)
            await inbox.ack([m.id for m in messages[:3]], durable=True)
            await inbox.nack([m.id for m in messages[3:]], timedelta(hours=1))
        await world.checkpoint()
    await world.server.postman.post([letter(TOPIC, "held", b"x")])
    await world.clock.settle()


async def delete(world: World) -> None:
    """The topic and its namespace, as far as it comes."""
    async with world.connect() as broker:
        for verb, what in (("topics", {"topic": TOPIC}), ("namespaces", {"namespace": NAMESPACE})):
            # Perhaps it was done before the broker died.
            with suppress(escapement.NotFound):
                await broker.admin(f"{verb}.delete", **what)


async def test_a_crash_at_any_step_of_deleting_leaves_nothing_behind(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """Q7: log rows, cursors, attempts, moves, producers, letters: all is freed in the end."""
    faulty = FaultyEngine(engine)
    async with testing.start(config=PATIENT, engine=faulty) as world:
        # A start takes a while, on MySQL above all: not at every single step.
        for number in count(1, 9 if engine.kind == "mysql" else 2):
            await fill(world)
            assert {"moves", "cursor_chunks", "attempts", "producers"} <= left(engine).keys()
            faulty.before = dies = DiesAt(number)
            with suppress(EscapementError):
                await delete(world)
                await finish(world, world.server.works.housekeeper.round)
            await world.crash()
            faulty.before = no_fault
            await world.restart()
            await delete(world)
            await finish(world, world.server.works.housekeeper.round)
            await world.checkpoint()
            assert left(engine) == {}
            if not dies.dead:
                break
        assert number > 10
