"""Adoption of committed bulk jobs by a whole broker, on a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.inbox.decoded_entries import Found, open_steps
from escapement.broker.limits import BrokerLimits
from escapement.errors import NotFound, OutcomeUnknown, StorageUnavailable
from escapement.storage.blocking import Run, inline
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.inbox import inbox, job
from escapement.storage.inbox.entry import InboxEntry, compressed
from escapement.storage.inbox.job import Job
from escapement.testing import World, arrived
from support.messages.received_messages import in_log
from support.storage.commit_pipelines import AtStep, FaultyEngine, Once
from support.storage.inbox_entries import inbox_entry, post
from support.storage.staged_jobs import commit, stage_entries, transaction

T = TypeVar("T")

DAY_MS = 86_400_000
TINY = BrokerConfig(limits=BrokerLimits(inbox_step_bytes=1, inbox_round_bytes=1), seed=0)


class Writer:
    """A writer of jobs beside the broker, as another program would be."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.connection: Connection = engine.connect()
        self.number = 0

    def stage(self, *inbox_entries: InboxEntry) -> tuple[Job, job.Counted]:
        self.number += 1
        load = job.enter(self.engine, self.connection, f"load-{self.number}", 0)
        return load, stage_entries(self.engine, self.connection, load, 0, "a", inbox_entries)

    def give_up(self, load: Job, counted: job.Counted) -> None:
        with transaction(self.connection):
            job.give_up(self.engine.dialect, self.connection, load, counted.attempt)

    def write(self, *inbox_entries: InboxEntry) -> None:
        """Write and commit a job with these entries."""
        load, counted = self.stage(*inbox_entries)
        assert commit(self.engine, self.connection, load, counted)


@asynccontextmanager
async def bulk_world(
    config: BrokerConfig | None = None, engine: Engine | None = None, run: Run = inline
) -> AsyncIterator[tuple[World, escapement.Broker, Writer]]:
    database = SqliteEngine.in_memory()
    async with testing.start(config=config, engine=engine or database, run=run) as world:
        async with world.connect() as broker:
            yield world, broker, Writer(engine or database)


async def jobs(broker: escapement.Broker) -> list[dict[str, Any]]:
    return await broker.admin("jobs.list")  # type: ignore[no-any-return]


async def test_broker_finds_a_committed_job_and_delivers_it_at_its_due_times(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B7: the topic is created as by a publish. Entries may be compressed."""
    async with bulk_world() as (world, broker, writer):
        at_ms = world.clock.now_ms() + DAY_MS
        body = job_entry("t/n/x", b"long " * 10_000, at_ms=at_ms)
        load, counted = writer.stage(inbox_entry("t/n/x", "0", b"1", b"2", at_ms=[at_ms, -1]), body)
        await world.clock.advance(seconds=30)
        (row,) = await jobs(broker)
        assert (row["state"], row["messages"], row["adopted"]) == ("staging", 3, 0)
        with pytest.raises(NotFound):
            await broker.admin("topics.list", namespace="t/n")
        assert commit(writer.engine, writer.connection, load, counted)
        await world.clock.advance(seconds=2)
        (row,) = await jobs(broker)
        assert (row["state"], row["messages"], row["adopted"]) == ("adopted", 3, 3)
        load, counted = writer.stage(inbox_entry("t/n/x", "0", b"3"))
        writer.give_up(load, counted)
        row, _ = await jobs(broker)
        assert (row["state"], row["messages"], row["adopted"]) == ("given up", 0, 0)
        async with broker.consumer("t/n/x", "s", position="earliest") as consumer:
            (now,) = await arrived(consumer)
            assert now.payload == b"2"
            await consumer.ack([now.id])
            await world.clock.advance(days=1)
            found = {m.payload: m.due_ms for m in await arrived(consumer)}
            assert found == {b"1": at_ms, b"long " * 10_000: at_ms}


async def test_idle_job_is_given_up_after_the_clock_was_ahead_for_a_while(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B7: the interval of this check does not depend on the wall clock."""
    async with bulk_world() as (world, broker, writer):
        world.clock.set_back(-DAY_MS)
        await world.clock.advance(seconds=30)
        world.clock.set_back(DAY_MS)
        writer.stage(inbox_entry("t/n/x", "0", b"1"))
        long_ago = "UPDATE staged_batches SET staged_at_ms = staged_at_ms - ?"
        writer.connection.execute(long_ago, (4 * DAY_MS,))
        for _ in range(90):
            await world.clock.advance(seconds=1)
        (row,) = await jobs(broker)
        assert row["state"] == "given up"


def job_entry(target: str, payload: bytes, at_ms: int) -> InboxEntry:
    """Return an inbox entry with a compressed body."""
    plain = inbox_entry(target, "compressed", payload, at_ms=[at_ms])
    small = compressed(bytes(plain.body))
    assert small is not None
    assert len(small) < len(plain.body) // 10
    return InboxEntry(target, plain.source_id, small, 1, plain.times, len(plain.body))


async def test_a_crash_between_any_two_steps_adopts_each_message_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P6 for bulk writes: the broker crashes many times while it adopts a job."""
    async with bulk_world(TINY) as (world, _, writer):
        count = 40
        writer.write(*(inbox_entry(f"t/n/{n % 3}", f"{n}", b"%02d" % n) for n in range(count)))
        for pauses in range(60):
            await world.clock.advance(ms=300)
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            await world.crash()
            await world.restart()
        await world.clock.advance(seconds=30)
        async with world.connect() as broker:
            for topic in range(3):
                wanted = [b"%02d" % n for n in range(topic, count, 3)]
                assert await in_log(broker, f"t/n/{topic}") == wanted
            assert (await jobs(broker))[0]["state"] == "adopted"


@pytest.mark.parametrize("durable", [True, False], ids=["committed", "not-committed"])
async def test_a_lost_commit_reply_adopts_nothing_twice(
    mock_clock: trio.testing.MockClock, durable: bool
) -> None:
    faulty = FaultyEngine(SqliteEngine.in_memory())
    fault = Once("commit", OutcomeUnknown("the reply was lost"))
    async with bulk_world(TINY, faulty) as (world, broker, writer):
        setattr(faulty, "after" if durable else "before", fault)
        for n in range(5):
            writer.write(
                inbox_entry("t/n/x", "0", b"%da" % n), inbox_entry("t/n/x", "1", b"%db" % n)
            )
            fault.arm()
            await world.clock.advance(seconds=5)
        wanted = [b"%d%c" % (n, c) for n in range(5) for c in b"ab"]
        assert await in_log(broker, "t/n/x") == wanted


async def test_adoption_resumes_after_an_outage(
    mock_clock: trio.testing.MockClock,
) -> None:
    faulty = FaultyEngine(SqliteEngine.in_memory())
    async with bulk_world(TINY, faulty) as (world, broker, writer):
        writer.write(*(inbox_entry("t/n/x", f"{n}", b"%d" % n) for n in range(5)))
        outage = faulty.before = Once("", StorageUnavailable("away"), times=10**6)
        outage.arm()
        await world.clock.advance(minutes=1)
        outage.left = 0
        await world.clock.advance(minutes=1)
        assert await in_log(broker, "t/n/x") == [b"%d" % n for n in range(5)]


async def test_job_is_adopted_once_and_in_order_whichever_step_fails(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P6, B7: steps submitted after a commit that fails also fail."""
    faulty = FaultyEngine(SqliteEngine.in_memory())
    async with bulk_world(TINY, faulty) as (world, broker, writer):
        wanted: list[bytes] = []
        for number in range(1, 60):
            added = [b"%d %d" % (number, n) for n in range(6)]
            writer.write(*(inbox_entry("t/n/x", f"{n}", one) for n, one in enumerate(added)))
            fault = faulty.before = AtStep(number, StorageUnavailable("away"))
            world.server.services.inbox_relay.wake()
            await world.clock.advance(seconds=3)
            assert fault.count >= number
            wanted += added
            assert await in_log(broker, "t/n/x") == wanted


async def test_entries_read_ahead_of_a_failed_step_are_not_appended(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P6, B7: even if commits succeed again by then."""
    reading, may_read = trio.Event(), trio.Event()

    async def run(function: Callable[..., T], /, *arguments: object) -> T:
        if inbox.read_ahead in arguments:
            reading.set()
            await may_read.wait()
        return await inline(function, *arguments)

    faulty = FaultyEngine(SqliteEngine.in_memory())
    # Fail both attempts that a lane makes before it fails the group.
    fault = faulty.before = Once(
        "UPDATE staged_batches SET moved_id", StorageUnavailable("away"), 2
    )
    async with bulk_world(TINY, faulty, run) as (world, broker, writer):
        writer.write(*(inbox_entry("t/n/x", f"{n}", b"%d" % n) for n in range(6)))
        fault.arm()
        world.server.services.inbox_relay.wake()
        await reading.wait()
        await world.clock.advance(seconds=1)
        assert not fault.left
        may_read.set()
        await world.clock.advance(seconds=5)
        assert await in_log(broker, "t/n/x") == [b"%d" % n for n in range(6)]


async def test_discard_removes_exactly_the_entries_not_yet_moved(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Entries that were read ahead are not appended after the discard."""
    async with bulk_world(TINY) as (world, broker, writer):
        await broker.admin("topics.create", topic="t/n/x")
        known = some = 0
        for pauses in range(0, 200, 5):
            writer.write(*(inbox_entry("t/n/x", f"{n}") for n in range(25)))
            world.server.services.inbox_relay.wake()
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            discarded = (await broker.admin("inbox.discard", target="t/n/x"))["discarded"]
            await world.clock.advance(seconds=2)
            moved = len(await in_log(broker, "t/n/x")) - known
            assert moved + discarded == 25
            known += moved
            some += 0 < discarded < 25
        assert some > 3


async def test_topic_deleted_during_adoption_discards_the_rest_of_its_job(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7."""
    async with bulk_world(TINY) as (world, broker, writer):
        for pauses in range(0, 200, 5):
            await broker.admin("topics.create", topic="t/n/x")
            writer.write(*(inbox_entry("t/n/x", f"old {n}") for n in range(25)))
            world.server.services.inbox_relay.wake()
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            await broker.admin("topics.delete", topic="t/n/x")
            writer.write(inbox_entry("t/n/x", "new"))
            await world.clock.advance(seconds=2)
            assert await in_log(broker, "t/n/x") == [b"new"]
            await broker.admin("topics.delete", topic="t/n/x")


# -- limits of the topic -------------------------------------------------------------


async def test_job_waits_for_the_quota_of_its_topic_but_inbox_entries_do_not(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B7, P10: the job reports the quota as the reason, and resumes by itself."""
    async with bulk_world(TINY) as (world, broker, writer):
        await broker.admin("subscriptions.create", topic="t/n/x", subscription="s")
        await broker.admin("topics.update", topic="t/n/x", policy={"quota_messages": 2})
        writer.write(inbox_entry("t/n/x", "0", b"0a", b"0b"))
        await world.clock.advance(seconds=5)
        writer.write(*(inbox_entry("t/n/x", f"{n}", b"%da" % n, b"%db" % n) for n in (1, 2)))
        writer.write(inbox_entry("t/n/y", "0", b"elsewhere"))
        await world.clock.advance(seconds=5)
        await post(world, [inbox_entry("t/n/x", "own")])
        await world.clock.advance(seconds=1)
        assert await in_log(broker, "t/n/x") == [b"0a", b"0b", b"own"]
        assert await in_log(broker, "t/n/y") == [b"elsewhere"]
        elsewhere, row, first = await jobs(broker)
        assert elsewhere["state"] == first["state"] == "adopted"
        assert (row["state"], row["adopted"], row["stuck"]) == ("committed", 0, 0)
        assert "quota" in row["reason"]
        async with broker.consumer("t/n/x", "s", position="earliest") as consumer:
            for _ in range(4):
                await consumer.ack([m.id for m in await arrived(consumer)], durable=True)
                await world.clock.advance(minutes=2)
        assert len(await in_log(broker, "t/n/x")) == 7
        assert (await jobs(broker))[1]["state"] == "adopted"


async def test_job_respects_the_publish_rate_of_its_topic(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V18."""
    async with bulk_world(TINY) as (world, broker, writer):
        await broker.admin("topics.create", topic="t/n/x")
        await broker.admin("topics.update", topic="t/n/x", policy={"max_publish_rate": 10})
        writer.write(*(inbox_entry("t/n/x", f"{n}", *[b"x"] * 5) for n in range(40)))
        began_ms = world.clock.now_ms()
        await world.clock.advance(seconds=2)
        (row,) = await jobs(broker)
        assert "rate" in row["reason"]
        while row["state"] != "adopted":
            await world.clock.advance(ms=500)
            (row,) = await jobs(broker)
        took_s = (world.clock.now_ms() - began_ms) / 1000
        assert 19 <= took_s <= 23, "200 messages at 10 a second"


class Counting:
    """A runner of blocking calls that counts the inbox entries they decode."""

    def __init__(self) -> None:
        self.inbox_entries = 0

    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T:
        result = await inline(function, *arguments)
        if open_steps in arguments:
            self.inbox_entries += sum(
                len(found.inbox_entries) for found in cast("list[Found]", result)
            )
        return result


async def test_job_with_a_high_publish_rate_is_read_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V18: entries whose turn comes soon are kept, not read again."""
    counting = Counting()
    async with bulk_world(TINY, run=counting) as (world, broker, writer):
        await broker.admin("topics.create", topic="t/n/x")
        await broker.admin("topics.update", topic="t/n/x", policy={"max_publish_rate": 1000})
        writer.write(*(inbox_entry("t/n/x", f"{n}", *[b"x"] * 50) for n in range(60)))
        began_ms = world.clock.now_ms()
        while not (rows := await jobs(broker)) or rows[0]["state"] != "adopted":
            await world.clock.advance(ms=100)
        took_s = (world.clock.now_ms() - began_ms) / 1000
        assert 2.8 <= took_s <= 4.2, "3000 messages at 1000 a second, after the job is found"
        assert counting.inbox_entries == 60


async def test_entry_that_can_never_be_moved_is_stuck_with_a_reason(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with bulk_world(TINY) as (world, broker, writer):
        too_far = world.clock.now_ms() + world.server.config.limits.max_delay_ms + DAY_MS
        writer.write(
            inbox_entry("t/n/x", "0", b"far", at_ms=[too_far]),
            inbox_entry("t/n/x", "1", b"near", at_ms=[5]),
        )
        await world.clock.advance(seconds=2)
        assert await in_log(broker, "t/n/x") == [b"near"]
        (row,) = await jobs(broker)
        assert (row["state"], row["adopted"], row["stuck"]) == ("committed", 1, 1)
        assert "maximum delay" in row["reason"]
        assert await broker.admin("inbox.discard", target="t/n/x") == {"discarded": 1}
        await world.clock.advance(seconds=75)
        (row,) = await jobs(broker)
        assert row["state"] == "adopted"


async def test_job_with_due_times_waits_while_delays_are_disabled(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with bulk_world(TINY) as (world, broker, writer):
        await broker.admin("topics.create", topic="t/n/x")
        await broker.admin("namespaces.disable_delayed_message", namespace="t/n")
        writer.write(inbox_entry("t/n/x", "0", b"1", at_ms=[world.clock.now_ms() + 1]))
        await world.clock.advance(seconds=5)
        (row,) = await jobs(broker)
        assert "disabled" in row["reason"]
        await broker.admin("namespaces.enable_delayed_message", namespace="t/n")
        await world.clock.advance(seconds=2)
        assert await in_log(broker, "t/n/x") == [b"1"]


async def test_housekeeper_frees_staged_batches_that_were_not_committed(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with bulk_world() as (world, broker, writer):
        load, _ = writer.stage(*(inbox_entry("t/n/x", f"{n}") for n in range(100)))
        other = stage_entries(
            writer.engine, writer.connection, load, 0, "b", [inbox_entry("t/n/x", "0", b"once")]
        )
        assert commit(writer.engine, writer.connection, load, other)
        for _ in range(30):  # every step of the housekeeper, and the pause after it
            await world.clock.advance(seconds=11)
        assert await in_log(broker, "t/n/x") == [b"once"]
        for table in ("inbox", "staged_batches", "removals"):
            left = writer.connection.execute(f"SELECT COUNT(*) FROM {table}").rows
            assert left == [(0,)], table
