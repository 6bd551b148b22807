"""Deletion of topics and namespaces, also if the broker crashes during it; on both databases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import EscapementError, StorageUnavailable
from escapement.names import NamespaceName, TopicName
from escapement.storage import archive_record
from escapement.storage.archive_record import ArchiveRecord
from escapement.storage.catalog.catalog import find_topic
from escapement.storage.engine.base import Engine
from escapement.storage.inbox import job
from escapement.storage.offsets import OffsetSet
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.database.rows import rows
from support.faults.dying_brokers import DiesAt, finish
from support.storage.commit_pipelines import FaultyEngine, no_fault
from support.storage.inbox_entries import inbox_entry, post
from support.storage.staged_jobs import commit, stage_entries

NAMESPACE, TOPIC = "t/n", "t/n/x"
PATIENT = BrokerConfig(ack_wait_ms=10**12, table_parallelism=2, seed=0)


def left(engine: Engine) -> dict[str, int]:
    """Return the number of rows of each table that is not empty."""
    return {table: rows for table, rows in rows(engine).items() if rows}


def write_job(engine: Engine, series: str) -> None:
    """Commit a job with a message due too far ahead, so that the inbox holds it forever."""
    connection = engine.connect()
    try:
        load = job.enter(engine, connection, series, 0)
        inbox_entries = [inbox_entry(TOPIC, "far", b"x", at_ms=[1 << 60])]
        counted = stage_entries(engine, connection, load, 0, "a", inbox_entries)
        assert commit(engine, connection, load, counted)
    finally:
        connection.close()


def archive_some(engine: Engine, run: str) -> None:
    """Record that two messages of the topic are in an archive."""
    connection = engine.connect()
    try:
        topic = find_topic(connection, TopicName.parse(TOPIC))
        offsets = OffsetSet()
        offsets.add(np.array([0, 1]))
        archive_record.record(
            engine, connection, ArchiveRecord(topic.id, run, 0, 2, 20, 0, 1, b"{}"), offsets
        )
    finally:
        connection.close()


async def fill(world: World) -> None:
    """Create a topic with rows in every table, except those that only jobs fill."""
    async with world.connect() as broker:
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
        await broker.admin("push.create", topic=TOPIC, subscription="s", url="https://a.example/")
        producer = await broker.producer(TOPIC, name="p")
        await producer.send(b"expired")
        await broker.admin("topics.update", topic=TOPIC, policy={"ttl_ms": "1s"})
        await world.clock.advance(seconds=2)
        await broker.admin("topics.update", topic=TOPIC, policy={"ttl_ms": None})
        await producer.send_many([b"now"] * 10)
        await producer.send_many(
            [b"grouped"] * 2, groups=["open", "closed"], delay=timedelta(hours=9)
        )
        await producer.close_group("closed", "s", escapement.FollowUp(b"", TOPIC))
        await producer.send_many([b"later"] * 10, delay=timedelta(hours=1))
        await producer.send(b"known", dedup="key")
        await producer.send(b"newest", replace="key", delay=timedelta(hours=1))
        await broker.cancel([15], topic=TOPIC)
        await broker.reschedule([16], delay=timedelta(hours=2), topic=TOPIC)
        await broker.schedules.create(f"{NAMESPACE}/daily", TOPIC, every="24h")
        async with broker.consumer(TOPIC, "s", permits=50) as inbox:
            messages = await arrived(inbox)
            await inbox.ack([m.id for m in messages[:3]], durable=True)
            await inbox.nack([m.id for m in messages[3:]], timedelta(hours=1))
        await world.checkpoint()
    # The second entry is due too far ahead, so the inbox holds it forever.
    await post(
        world,
        [inbox_entry(TOPIC, "moved", b"x"), inbox_entry(TOPIC, "stuck", b"x", at_ms=[1 << 60])],
    )
    await world.clock.settle()


async def one_by_one(world: World) -> None:
    """Delete the schedule, the topic and the namespace, in this order."""
    async with world.connect() as broker:
        for verb, what in (
            ("schedules", {"schedule": f"{NAMESPACE}/daily"}),
            ("topics", {"topic": TOPIC}),
            ("namespaces", {"namespace": NAMESPACE}),
        ):
            # An earlier attempt may have deleted it before the broker crashed.
            with suppress(escapement.NotFound):
                await broker.admin(f"{verb}.delete", **what)


async def at_once(world: World) -> None:
    """Delete the namespace with everything in it. A restarted broker completes the deletion."""
    async with world.connect() as broker:
        namespaces = world.server.registry.namespaces
        if not namespaces.deleting:
            with suppress(escapement.NotFound):
                await broker.admin("namespaces.delete", namespace=NAMESPACE, force=True)
        while list(namespaces):  # noqa: ASYNC110 (no event announces the end)
            await trio.sleep(0.1)


@pytest.mark.parametrize("delete", [one_by_one, at_once])
async def test_a_crash_at_any_step_of_deleting_leaves_nothing_behind(
    delete: Callable[[World], Awaitable[None]],
    mock_clock: trio.testing.MockClock,
    engine: Engine,
) -> None:
    """Q7: every table is empty in the end."""
    faulty = FaultyEngine(engine)

    async def everything() -> None:
        with suppress(EscapementError):
            await delete(world)
            await world.server.services.housekeeper.round()

    async with testing.start(config=PATIENT, engine=faulty) as world:
        # Not every step is tested, because restarts are slow, above all on MySQL.
        for number in count(1, 25 if engine.kind == "mysql" else 7):
            await fill(world)
            write_job(engine, f"job {number}")
            archive_some(engine, f"run {number}")
            await world.clock.advance(seconds=2)
            unused = {table for table, count in rows(engine).items() if not count}
            # Outboxes belong to databases of applications, tokens and grants to roles, and table
            # sets to the log. Bulk changes that have ended are kept.
            unused -= {"removals", "outboxes", "tokens", "grants", "table_sets"}
            unused -= {"bulk_changes", "bulk_parts"}
            assert not {table for table in unused if not table.startswith("log_")}
            faulty.before = dies = DiesAt(number)
            with trio.move_on_after(3):
                await finish(world, everything)
            await world.crash()
            faulty.before = no_fault
            await world.restart()
            await finish(world, everything)
            await world.checkpoint()
            assert left(engine) == {}
            if not dies.dead:
                break
        assert number > 10


async def test_namespace_deletion_can_be_previewed_and_spares_other_namespaces(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7: its consumers end, schedules for its topics are deleted, and it can be created again."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await fill(world)
        kept = await broker.producer("t/other/y")
        await kept.send(b"kept")
        await broker.schedules.create("t/other/into", TOPIC, every="24h")
        ask = {"namespace": NAMESPACE}
        with pytest.raises(escapement.Conflict):
            await broker.admin("namespaces.delete", **ask)
        async with broker.consumer(TOPIC, "s") as inbox:
            await world.clock.settle()
            said = await broker.admin("namespaces.delete", **ask, dry_run=True, force=True)
            assert {name: said[name] for name in ("topics", "subscriptions", "schedules")} == {
                "topics": 1,
                "subscriptions": 1,
                "schedules": 2,
            }
            assert (said["would_delete"], said["consumers"]) == (NAMESPACE, 1)
            done = await broker.admin("namespaces.delete", **ask, force=True)
            assert done == {"deleted": NAMESPACE, **{k: said[k] for k in said.keys() & done.keys()}}
            with pytest.raises(escapement.NotFound):
                await inbox.receive()
        names = [row["namespace"] for row in await broker.admin("namespaces.list")]
        assert names == ["t/other"]
        assert await broker.schedules.list() == []
        again = await broker.producer(TOPIC)
        assert (await again.send(b"anew")).id.offset == 0
        await kept.send(b"still")


async def test_namespace_that_is_being_deleted_gets_no_new_topics(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7: neither clients nor the inbox relay can create a topic in it."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await broker.admin("topics.create", topic=TOPIC)
        namespaces = world.server.registry.namespaces
        await namespaces.mark_for_deletion(NamespaceName.parse(NAMESPACE))
        with pytest.raises(escapement.Conflict):
            await broker.admin("topics.create", topic=f"{NAMESPACE}/new")
        await post(world, [inbox_entry(f"{NAMESPACE}/other", "one", b"x")])
        await world.clock.settle()
        assert list(world.server.services.inbox_relay.blocked) == [f"{NAMESPACE}/other"]


async def test_failed_topic_deletion_ends_no_consumer_or_producer(mock_clock: MockClock) -> None:
    """Q7: a deletion fails while the database is unreachable. The clients go on afterwards."""
    outage = Outage()
    async with testing.start(engine=outage.engine) as world, world.connect() as broker:
        async with broker.consumer("t", "s") as inbox, await broker.producer("t") as producer:
            await producer.send(b"0")
            outage.unreachable()
            with pytest.raises(StorageUnavailable):
                await broker.admin("topics.delete", topic="t", force=True)
            outage.over()
            await world.clock.advance(seconds=5)
            await producer.send(b"1")
            assert [message.value for message in await arrived(inbox)] == [b"0", b"1"]
