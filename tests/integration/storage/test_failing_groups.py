"""A database to which a lane can connect, but in which its group commits fail."""

from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from escapement.errors import OutcomeUnknown, StorageReadOnly, StorageUnavailable
from escapement.storage import lease, schema
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.items import Acks
from escapement.storage.commit.lane import State
from escapement.storage.commit.writer import Writer
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.journal.journal import START
from escapement.storage.lease import Identity
from support.storage.commit_pipelines import (
    FaultyEngine,
    HandClock,
    House,
    Once,
    check_promises,
    column,
    committing,
)

OWNER = Identity("id", "owner")
FULL = StorageUnavailable("the table is full, says the test")
LOST = StorageUnavailable("cut by the test")

T = TypeVar("T")


class FullTable:
    """A journal that takes no rows; ``tries`` counts the attempts."""

    def __init__(self) -> None:
        self.full = False
        self.tries = 0

    def __call__(self, step: str) -> None:
        if self.full and step.startswith("INSERT INTO journal"):
            self.tries += 1
            assert self.tries < 1_000, "the lane never pauses"
            raise FULL


class LostCommits:
    """Group commits that get no reply and are not stored. Other transactions succeed."""

    def __init__(self) -> None:
        self.losing = False
        self._is_group = False

    def __call__(self, step: str) -> None:
        if step == "begin":
            self._is_group = False
        elif step.startswith("INSERT INTO journal"):
            self._is_group = True
        elif step == "commit" and self.losing and self._is_group:
            raise OutcomeUnknown("the COMMIT failed, says the test")


class LockedRows:
    """Rows that another session has locked: each group commit is rolled back."""

    def __init__(self) -> None:
        self.locked = False

    def __call__(self, step: str) -> None:
        if self.locked and step.startswith("INSERT INTO journal"):
            raise TransactionAborted("Lock wait timeout exceeded, says the test")


class SilentServer:
    """Runs blocking calls, which get no reply from the database while ``replies`` is not set."""

    def __init__(self) -> None:
        self.replies = trio.Event()
        self.replies.set()

    async def run(self, call: Callable[..., T], *arguments: object) -> T:
        await self.replies.wait()
        return call(*arguments)


@asynccontextmanager
async def one_lane(
    engine: Engine, fault: Callable[[str], None]
) -> AsyncIterator[tuple[House, int, CommitPipeline]]:
    """Run a commit pipeline with one lane; yield also a topic and the pipeline itself.

    Args:
      fault: called before each step of the database; it raises the error of the step.
    """
    async with committing(FaultyEngine(engine, fault), max_lanes=1) as house:
        yield house, await house.topic("t"), house.pipeline


async def test_a_usual_start_of_a_lane_is_logged_for_debugging_and_an_end_of_trouble_for_all(
    engine: Engine, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """O5: a node with many bundles has many lanes."""
    caplog.set_level(logging.DEBUG)

    def levels() -> list[int]:
        lines = [one for one in caplog.records if one.message.startswith("lane 0 is ")]
        caplog.clear()
        return [one.levelno for one in lines]

    table = FullTable()
    async with one_lane(engine, table) as (house, topic, _):
        assert levels() == [logging.DEBUG]
        table.full = True
        await house.append(topic, b"refused").done.wait()
        await house.until(State.UP)
        assert levels() == [logging.WARNING, logging.INFO]

    refusal = Once("UPDATE brokers SET connection_ids", StorageReadOnly("says the test"))
    refusal.arm()
    async with committing(FaultyEngine(engine, refusal), max_lanes=1) as house:
        await house.until(State.UP)
        assert not refusal.left
        assert levels() == [logging.WARNING, logging.INFO]


async def test_database_is_reported_down_while_groups_fail(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """The lane connects again at once each time. It is up again at the first commit."""
    table = FullTable()
    async with one_lane(engine, table) as (house, topic, pipeline):
        assert pipeline.reported_state is State.UP
        table.full = True
        for number in range(3):
            ticket = house.append(topic, b"%d" % number)
            await ticket.done.wait()
            assert isinstance(ticket.error, StorageUnavailable)
            await house.until(State.UP)
            await trio.sleep(5)
            assert pipeline.state is State.UP
            assert pipeline.reported_state is State.DOWN
        table.full = False
        house.append(topic, b"taken")
        await pipeline.drain()
        assert pipeline.reported_state is State.UP
        check_promises(engine, house.tickets)


async def test_lane_without_work_is_not_reported_down_for_long(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """It would not notice the end of the failure, because it has nothing to write."""
    table = FullTable()
    async with one_lane(engine, table) as (house, topic, pipeline):
        table.full = True
        ticket = house.append(topic, b"refused")
        await ticket.done.wait()
        table.full = False
        assert pipeline.reported_state is State.DOWN
        await trio.sleep(11)
        assert pipeline.reported_state is State.UP


async def test_end_of_an_outage_is_reported_at_once(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """Also if the lane has nothing to write: a connection is enough after an outage."""
    outage = Once("", LOST, times=6)
    async with one_lane(engine, outage) as (house, topic, pipeline):
        outage.arm()
        ticket = house.append(topic, b"refused")
        await ticket.done.wait()
        assert pipeline.reported_state is State.DOWN
        await house.until(State.UP)
        assert pipeline.reported_state is State.UP


async def test_lane_pauses_between_groups_that_fail(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """Acknowledgements stay queued, and the lane tries to write them every two seconds at most."""
    table = FullTable()
    async with one_lane(engine, table) as (_, topic, pipeline):
        table.full = True
        pipeline.submit(Acks(topic, 1, column(1)))
        with trio.move_on_after(60):
            await pipeline.drain()
        assert 2 * 30 <= table.tries <= 2 * 40
        assert pipeline.reported_state is State.DOWN
        table.full = False
        with trio.fail_after(3):
            await pipeline.drain()
        assert pipeline.reported_state is State.UP


async def test_lane_is_down_while_its_commits_get_no_reply(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """Its group waits, and later publishes are refused. It is up when the group is stored."""
    commits = LostCommits()
    async with one_lane(engine, commits) as (house, topic, pipeline):
        commits.losing = True
        ticket = house.append(topic, b"waits")
        with trio.fail_after(5):
            await house.until(State.DOWN)
        for _ in range(3):
            await trio.sleep(5)
            assert pipeline.reported_state is State.DOWN
            assert not ticket.done.is_set()
            with pytest.raises(StorageUnavailable, match="accepts no writes now"):
                house.append(topic, b"refused")
        commits.losing = False
        await pipeline.drain()
        assert ticket.offset == 0
        assert pipeline.reported_state is State.UP
        check_promises(engine, house.tickets)


@contextlib.contextmanager
def no_file_grows() -> Iterator[None]:
    """Make writes to files fail in this process, as on a disk that fails or is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_connecting_shows_that_sqlite_cannot_write(tmp_path: Path) -> None:
    """Each attempt changes the row in brokers: SQLite would not write a row that stays the same."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    schema.migrate(engine)
    held = lease.acquire(engine, OWNER, 60_000, HandClock())
    writer = Writer(engine, held, 0, START)
    writer.connect()
    # Other connections are open, so SQLite need not create its files again.
    with contextlib.closing(engine.connect()) as other, no_file_grows():
        writer.disconnect()
        assert other.execute("SELECT epoch FROM leases").rows == [(held.epoch,)]
        with pytest.raises(StorageUnavailable) as caught:
            writer.connect()
        assert type(caught.value) is StorageUnavailable, "no group has an unknown outcome"
        assert not writer.connected
    writer.connect()
    writer.disconnect()


async def test_database_is_reported_down_while_rows_stay_locked(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """The lane tries again until the locks are gone, and then reports the group as durable."""
    rows = LockedRows()
    async with one_lane(engine, rows) as (house, topic, pipeline):
        rows.locked = True
        ticket = house.append(topic, b"0")
        await trio.sleep(1)
        assert pipeline.reported_state is State.DOWN
        rows.locked = False
        await ticket.done.wait()
        assert ticket.error is None
        assert pipeline.reported_state is State.UP


async def test_database_is_reported_down_while_it_does_not_reply(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """It is up again when the group is durable."""
    server = SilentServer()
    async with committing(engine, run=server.run, max_lanes=1) as house:
        topic = await house.topic("t")
        server.replies = trio.Event()
        ticket = house.append(topic, b"0")
        await trio.sleep(2)
        assert house.pipeline.reported_state is State.UP
        await trio.sleep(2)
        assert house.pipeline.reported_state is State.DOWN
        server.replies.set()
        await ticket.done.wait()
        assert ticket.error is None
        assert house.pipeline.reported_state is State.UP
