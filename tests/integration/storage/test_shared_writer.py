"""Group commits of several bundles in one transaction, when the database fails at any step."""

from __future__ import annotations

import contextlib
import uuid

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from escapement.errors import (
    LeaseLost,
    LogDamaged,
    OutcomeUnknown,
    StorageUnavailable,
)
from escapement.storage import lease, members
from escapement.storage.blocking import in_threads
from escapement.storage.commit.group import form_group
from escapement.storage.commit.lane import State
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.lease import Identity
from escapement.storage.log.generation import Generation
from support.database.contents import put_back, save
from support.database.servers import MysqlServer
from support.faults.held_calls import Held
from support.storage.commit_pipelines import (
    LEASE_MS,
    AtStep,
    Crash,
    FaultyEngine,
    HandClock,
    Once,
    check_promises,
    no_fault,
    sharing,
    stored,
)
from support.storage.shared_commits import SHARED, Commits, append_to_each, tickets_of, topics_of

LOST = StorageUnavailable("cut by the test")


async def test_groups_that_wait_together_share_a_transaction(engine: Engine) -> None:
    """One COMMIT stores the groups of all bundles."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty, 5) as (houses, _):
        topics = await topics_of(houses)
        commits = faulty.before = Commits()
        tickets = await append_to_each(houses, topics, b"second")
        assert commits.count == 1
        assert [ticket.offset for ticket in tickets] == [1] * 5
        check_promises(engine, tickets_of(houses))


async def test_group_of_a_statement_has_a_transaction_of_its_own(engine: Engine) -> None:
    """A statement may wait for a lock, which must not delay other bundles."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty) as (houses, _):
        topics = await topics_of(houses)
        commits = faulty.before = Commits()
        houses[0].append(topics[0], b"beside a statement")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(houses[0].pipeline.transact, lambda connection: None)
            other = houses[1].append(topics[1], b"shared")
            await other.done.wait()
        assert commits.count == 2
        check_promises(engine, tickets_of(houses))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_at_any_step_of_a_shared_transaction_loses_no_confirmed_message(
    engine: Engine, when: str
) -> None:
    """Invariant 1, with groups of two bundles."""
    async with sharing(engine) as (houses, _):
        await topics_of(houses)
    tickets = tickets_of(houses)
    faulty = FaultyEngine(engine)
    for number in range(1, 100):
        crash = AtStep(number, Crash())
        setattr(faulty, when, lambda step: None)
        with contextlib.suppress(BaseExceptionGroup):
            async with sharing(faulty) as (houses, _):
                topics = [house.state.topics[0].id for house in houses]
                for house, topic in zip(houses, topics, strict=True):
                    with house.connection() as connection:
                        house.pipeline.open_topic(topic, house.log.end_offset(connection, topic))
                setattr(faulty, when, crash)
                for _ in range(2):
                    await append_to_each(houses, topics, b"%d" % number)
        for ticket in tickets_of(houses):
            if ticket.error is not None:  # a crashed process does not answer
                ticket.error = OutcomeUnknown("crashed")
        tickets += tickets_of(houses)
        check_promises(engine, tickets)
        if crash.count < crash.number:
            break
    else:
        raise AssertionError("the workload never finished")
    assert number > 2


async def test_cut_at_any_step_of_a_shared_transaction_fails_no_request(engine: Engine) -> None:
    """The lanes connect again and write their groups alone. The next groups are shared again."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty) as (houses, _):
        topics = await topics_of(houses)
        for number in range(1, 100):
            cut = faulty.before = AtStep(number, LOST)
            await append_to_each(houses, topics, b"%d" % number)
            if cut.count < number:
                break
        assert number > 4
        assert [house.states for house in houses] == [[State.UP]] * 2
        commits = faulty.before = Commits()
        await append_to_each(houses, topics, b"again")
        assert commits.count == 1
        check_promises(engine, tickets_of(houses))


@pytest.mark.parametrize("durable", [True, False], ids=["committed", "not-committed"])
async def test_lost_reply_to_a_shared_commit_is_read_back(engine: Engine, durable: bool) -> None:
    """Each lane finds out whether its group is stored, and confirms it once."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty, 3) as (houses, _):
        topics = await topics_of(houses)
        fault = Once("commit", OutcomeUnknown("the reply was lost"))
        setattr(faulty, "after" if durable else "before", fault)
        for n in range(3):
            fault.arm()
            tickets = await append_to_each(houses, topics, b"%d" % n)
            assert fault.left == 0
            assert [ticket.offset for ticket in tickets] == [n + 1] * 3
        assert [house.states for house in houses] == [[State.UP]] * 3
        check_promises(engine, tickets_of(houses))


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_lost_lease_of_one_bundle_stops_no_other_bundle(engine: Engine, lost: int) -> None:
    """Invariant 8: the groups are written one by one, and only one pipeline ends."""
    async with sharing(engine, 3) as (houses, _):
        topics = await topics_of(houses)
        with contextlib.closing(engine.connect()) as connection:
            connection.execute("UPDATE leases SET epoch = epoch + 1 WHERE bundle_id = ?", (lost,))
        tickets = await append_to_each(houses, topics, b"second")
        assert [ticket.offset for ticket in tickets if ticket is not tickets[lost]] == [1, 1]
        await wait_all_tasks_blocked()
        assert isinstance(tickets[lost].error, LeaseLost)
        assert isinstance(houses[lost].ended, LeaseLost)
        others = [house for house in houses if house is not houses[lost]]
        assert [house.ended for house in others] == [None, None]
        del topics[lost]
        await append_to_each(others, topics, b"third")
        check_promises(engine, tickets_of(houses))


async def test_missing_lease_row_of_one_bundle_stops_no_other_bundle(engine: Engine) -> None:
    """An operator may have deleted it."""
    async with sharing(engine, 3) as (houses, _):
        topics = await topics_of(houses)
        with contextlib.closing(engine.connect()) as connection:
            connection.execute("DELETE FROM leases WHERE bundle_id = 2")
        tickets = await append_to_each(houses, topics, b"second")
        assert [ticket.offset for ticket in tickets] == [1, 1, None]
        assert isinstance(tickets[2].error, LeaseLost)


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
async def test_successor_takes_bundles_from_a_process_stopped_in_a_shared_transaction(
    engine: Engine,
) -> None:
    """Invariant 8: the transaction locks the leases. The successor kills its connection."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty, connections=1) as (houses, _):
        topics = await topics_of(houses)
        other = members.register(engine, Identity("two", "two"), LEASE_MS, HandClock())

        def take_over(step: str) -> None:
            if step == "commit":
                faulty.before = no_fault
                with contextlib.closing(engine.connect()) as connection:
                    connection.execute("UPDATE brokers SET expires_at_ms = 0 WHERE name = 'one'")
                for bundle_id in range(2):
                    lease.take(engine, other, HandClock(), bundle_id)

        faulty.before = take_over
        tickets = await append_to_each(houses, topics, b"never")
        assert [type(ticket.error) for ticket in tickets] == [OutcomeUnknown] * 2
        await wait_all_tasks_blocked()
        assert [type(house.ended) for house in houses] == [LeaseLost] * 2
    assert stored(engine) == {topic: [b"first"] for topic in topics}


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
async def test_bundle_is_taken_again_while_its_shared_transaction_hangs(engine: Engine) -> None:
    """Its broker ended before it could connect again. The process kills the lost connection."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty, connections=1) as (houses, _):
        topics = await topics_of(houses)
        faulty.keep_lost = True

        def hang(step: str) -> None:
            if step == "commit":
                faulty.before = Once("connect", LOST, times=1000)
                faulty.before.arm()
                raise OutcomeUnknown("no answer")

        faulty.before = hang
        for house, topic in zip(houses, topics, strict=True):
            house.append(topic, b"second")
        await houses[1].until(State.DOWN)
        houses[1].scope.cancel()
        await wait_all_tasks_blocked()
        before = houses[1].lease
        assert lease.take(engine, before.member, HandClock(), 1).epoch == before.epoch + 1
    assert stored(engine) == {topic: [b"first"] for topic in topics}


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
async def test_row_of_the_process_lists_the_connections_that_write(engine: Engine) -> None:
    faulty = FaultyEngine(engine)
    async with sharing(faulty, connections=1) as (houses, _):
        topics = await topics_of(houses)
        cut = faulty.before = Once("commit", LOST)
        cut.arm()
        for n in range(2):
            await append_to_each(houses, topics, b"%d" % n)
        with contextlib.closing(engine.connect()) as connection:
            ((text,),) = connection.execute("SELECT connection_ids FROM brokers").rows
            rows = connection.execute(
                "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> ?",
                (connection.id,),
            ).rows
        assert sorted(int(id) for id in text.split(",")) == sorted(id for (id,) in rows)
        assert len(rows) == 3


async def test_shared_transaction_has_a_limit_of_bytes(engine: Engine) -> None:
    """The groups that are left wait for the next one."""
    held = Held()
    faulty = FaultyEngine(engine)
    async with sharing(faulty, 4, run=held, connections=1) as (houses, _):
        topics = await topics_of(houses)
        commits = faulty.before = Commits()
        with held.hold(SHARED):
            tickets = [houses[0].append(topics[0], b"small")]
            await held.reached()
            for house, topic in zip(houses[1:], topics[1:], strict=True):
                tickets.append(house.append(topic, bytes(3 << 20)))
            await wait_all_tasks_blocked()
        for ticket in tickets:
            await ticket.done.wait()
        assert commits.count == 3
        check_promises(engine, tickets_of(houses))


@pytest.mark.parametrize("part", ["statements", "entry_ids", "inbox_entries", "advances"])
def test_group_that_may_wait_for_locks_is_not_shared(part: str) -> None:
    group = form_group([], 0, 1, 0, Generation(1, 1, 0, 0), {})
    assert group.can_share
    setattr(group, part, [object()])
    assert not group.can_share


async def test_groups_of_an_aborted_transaction_are_written_one_by_one(engine: Engine) -> None:
    """No lane waits for another one, and no request fails."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty) as (houses, _):
        topics = await topics_of(houses)
        aborted = Once("SELECT epoch", TransactionAborted("locked by the test"))

        def fault(step: str) -> None:
            commits(step)
            aborted(step)

        commits = Commits()
        faulty.before = fault
        aborted.arm()
        tickets = await append_to_each(houses, topics, b"second")
        assert [ticket.offset for ticket in tickets] == [1, 1]
        assert commits.count == 2
        assert [house.states for house in houses] == [[State.UP]] * 2
        check_promises(engine, tickets_of(houses))


async def test_failing_connect_of_shared_transactions_stops_no_lane(engine: Engine) -> None:
    """The server may have no free connection. The lanes use the connections that they have."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty) as (houses, _):
        topics = [await house.topic(f"t{house.lease.bundle_id}") for house in houses]
        refused = faulty.before = Once("connect", LOST, times=10)
        refused.arm()
        for n in range(10):
            tickets = await append_to_each(houses, topics, b"%d" % n)
            assert [ticket.offset for ticket in tickets] == [n, n]
        assert refused.left < 10
        assert [house.states for house in houses] == [[State.UP]] * 2
        check_promises(engine, tickets_of(houses))


async def test_restored_database_ends_the_lanes_whose_groups_it_lost(engine: Engine) -> None:
    """O9: a new connection for shared transactions must not continue the journal with a gap."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty, connections=1) as (houses, _):
        topics = await topics_of(houses)
        backup = save(engine)
        lost = houses[0].append(topics[0], b"lost")
        await lost.done.wait()
        put_back(engine, backup)
        faulty.before = cut = Once("begin", LOST)
        cut.arm()
        kept = houses[1].append(topics[1], b"kept")
        await kept.done.wait()
        refused = houses[0].append(topics[0], b"refused")
        await refused.done.wait()
        await wait_all_tasks_blocked()
        assert isinstance(refused.error, LogDamaged)
        assert isinstance(houses[0].ended, LogDamaged)
        assert houses[1].ended is None
    assert stored(engine) == {topics[0]: [b"first"], topics[1]: [b"first", b"kept"]}


async def test_cancelled_lane_waits_for_its_shared_transaction(engine: Engine) -> None:
    """It must know the outcome, and the transaction must not outlive the broker."""
    held = Held()
    async with sharing(engine, run=held) as (houses, _):
        topics = await topics_of(houses)
        with held.hold(SHARED):
            tickets = [
                house.append(topic, b"second") for house, topic in zip(houses, topics, strict=True)
            ]
            await held.reached()
            houses[0].scope.cancel()
            await wait_all_tasks_blocked()
            assert not tickets[0].done.is_set()
        for ticket in tickets:
            await ticket.done.wait()
        assert [ticket.offset for ticket in tickets] == [1, 1]
        check_promises(engine, tickets_of(houses))


async def test_lanes_write_alone_when_sharing_has_ended(engine: Engine) -> None:
    """A stop of the process may end the shared transactions before the last groups."""
    async with sharing(engine) as (houses, scope):
        topics = await topics_of(houses)
        scope.cancel()
        tickets = await append_to_each(houses, topics, b"second")
        assert [ticket.offset for ticket in tickets] == [1, 1]
        tickets = await append_to_each(houses, topics, b"third")
        assert [ticket.offset for ticket in tickets] == [2, 2]
        check_promises(engine, tickets_of(houses))


async def test_shared_commits_can_be_paced(engine: Engine, autojump_clock: MockClock) -> None:
    """N6: the limit holds for the transactions of all bundles together."""
    faulty = FaultyEngine(engine)
    async with sharing(faulty, 4, max_commits_per_second=10) as (houses, _):
        topics = await topics_of(houses)
        await trio.sleep(1)
        commits = faulty.before = Commits()
        started_s = trio.current_time()
        for n in range(20):
            await append_to_each(houses, topics, b"%d" % n)
        took_s = trio.current_time() - started_s
        assert commits.count == 20
        assert took_s >= 1.7
        check_promises(engine, tickets_of(houses))


async def test_lanes_kill_a_shared_transaction_left_hanging_on_the_server(
    mysql_to_break: MysqlServer,
) -> None:
    """The client is gone and the server has not noticed. A lane waits for it, then kills it."""
    url = mysql_to_break.url(f"hanging_{uuid.uuid4().hex[:12]}")
    engine = MysqlEngine(MysqlAddress.parse(url))
    faulty = FaultyEngine(engine)
    async with sharing(faulty, run=in_threads(6)) as (houses, _):
        topics = await topics_of(houses)
        fault = faulty.before = Once("commit", OutcomeUnknown("no answer"))
        faulty.keep_lost = True
        fault.arm()
        with trio.fail_after(60):
            tickets = await append_to_each(houses, topics, b"second")
        assert [ticket.offset for ticket in tickets] == [1, 1]
        check_promises(engine, tickets_of(houses))
