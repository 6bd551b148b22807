"""Shared transactions: a bundle in trouble delays the other bundles of its process once."""

from __future__ import annotations

import contextlib
import threading

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from escapement.errors import ShuttingDown, StorageUnavailable
from escapement.storage.blocking import in_threads
from escapement.storage.commit.lane import State
from escapement.storage.engine.base import Engine
from support.faults.held_calls import Held
from support.processes.broker import until
from support.storage.commit_pipelines import (
    FaultyEngine,
    Once,
    check_promises,
    no_fault,
    sharing,
    stored,
)
from support.storage.shared_commits import SHARED, Commits, append_to_each, tickets_of, topics_of

LOST = StorageUnavailable("cut by the test")


class FullTable:
    """A table that takes no rows. Notes how many leases each transaction had checked."""

    def __init__(self, insertion: str) -> None:
        self.leases: list[int] = []
        self._insertion = insertion
        self._checked = 0

    def __call__(self, step: str) -> None:
        if step == "begin":
            self._checked = 0
        self._checked += step.startswith("SELECT epoch")
        if step.startswith(self._insertion):
            self.leases.append(self._checked)
            raise StorageUnavailable("the table is full")


async def test_cancelled_lane_takes_its_group_out_of_the_queue(engine: Engine) -> None:
    """Its broker ends at once, although the transaction of other bundles hangs."""
    held = Held()
    async with sharing(engine, run=held, connections=1) as (houses, _):
        topics = await topics_of(houses)
        with held.hold(SHARED):
            first = houses[0].append(topics[0], b"second")
            await held.reached()
            waits = houses[1].append(topics[1], b"never")
            await wait_all_tasks_blocked()
            houses[1].scope.cancel()
            await wait_all_tasks_blocked()
            assert isinstance(waits.error, ShuttingDown)
        await first.done.wait()
        check_promises(engine, tickets_of(houses))
    assert stored(engine) == {topics[0]: [b"first", b"second"], topics[1]: [b"first"]}


async def test_bundle_whose_groups_fail_writes_alone_until_one_is_stored(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """A full table of one bundle must not fail the transactions of the others again and again."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty) as (houses, _):
        topics = await topics_of(houses)
        table = houses[0].log.current.table(topics[0])
        failed = faulty.before = FullTable(f"INSERT INTO {table} ")
        for n in range(2):
            await houses[0].until(State.UP)
            payload = b"%d" % n
            tickets = [house.append(t, payload) for house, t in zip(houses, topics, strict=True)]
            for ticket in tickets:
                await ticket.done.wait()
            assert isinstance(tickets[0].error, StorageUnavailable)
            assert tickets[1].offset == n + 1
        assert failed.leases == [2, 1, 1, 1]
        faulty.before = no_fault
        await houses[0].until(State.UP)
        await append_to_each(houses, topics, b"alone")
        commits = faulty.before = Commits()
        await append_to_each(houses, topics, b"shared")
        assert commits.count == 1
        check_promises(engine, tickets_of(houses))


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
async def test_rows_that_stay_locked_delay_other_bundles_once(engine: Engine) -> None:
    """After two lock timeouts the connection is closed. The next transaction needs another one."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty, 4, run=in_threads(8), connections=1) as (houses, _):
        topics = await topics_of(houses)
        with contextlib.closing(engine.connect()) as locker:
            locker.begin()
            locker.execute("SELECT 1 FROM leases WHERE bundle_id < 2 FOR UPDATE")
            tickets = [
                house.append(topic, b"second") for house, topic in zip(houses, topics, strict=True)
            ]
            for ticket in tickets[2:]:
                await ticket.done.wait()
            assert not tickets[0].done.is_set()
            commits = faulty.before = Commits()
            await append_to_each(houses[2:], topics[2:], b"third")
            assert commits.count == 1
        for ticket in tickets:
            await ticket.done.wait()
        check_promises(engine, tickets_of(houses))


async def test_lost_shared_connection_does_not_stop_the_event_loop(engine: Engine) -> None:
    """Another connection of the process may be waiting for the database, with the list locked."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty, run=in_threads(6), connections=1) as (houses, _):
        topics = await topics_of(houses)
        cut = faulty.before = Once("commit", LOST)
        cut.arm()
        lock = houses[0].lease.member.lock
        lock.acquire()
        in_time = threading.Timer(10, lock.release)
        in_time.start()
        ticket = houses[0].append(topics[0], b"second")
        await until(lambda: not cut.left)
        for _ in range(20):
            await trio.sleep(0.001)
        assert lock.locked()
        in_time.cancel()
        in_time.join()
        lock.release()
        await ticket.done.wait()
        check_promises(engine, tickets_of(houses))
