"""The commit pipeline when the database fails at any step of a group."""

from __future__ import annotations

import contextlib
import uuid

import pytest
import trio
from trio.testing import MockClock

from escapement.errors import OutcomeUnknown, StorageReadOnly, StorageUnavailable
from escapement.storage.blocking import in_threads
from escapement.storage.catalog import catalog
from escapement.storage.commit.items import Acks, Attempts
from escapement.storage.commit.lane import State
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.journal import journal
from support.database.servers import MysqlServer
from support.faults.held_calls import COMMIT, Held
from support.faults.tcp_proxy import lossy_proxy
from support.storage.commit_pipelines import (
    AtStep,
    Crash,
    FaultyEngine,
    House,
    Once,
    Ticket,
    check_promises,
    column,
    committing,
    stored,
)

LOST = StorageUnavailable("cut by the test")


def journaled(engine: Engine) -> tuple[list[int], list[int]]:
    """Return all acknowledged offsets and all offsets with attempts, in journal order."""
    connection = engine.connect()
    entries = [row.entry for row in journal.read(connection, 0)]
    connection.close()
    acks = [n for entry in entries for acked in entry.acks for n in acked.offsets.tolist()]
    attempts = [e.attempts.offset.tolist() for e in entries if e.attempts is not None]
    return acks, [n for each in attempts for n in each]


async def reopen_topics(house: House) -> list[int]:
    """Open all topics at the ends of their logs, and return their ids."""
    topics = [record.id for record in house.state.topics]
    with house.connection() as connection:
        for topic in topics:
            house.pipeline.open_topic(topic, house.log.end_offset(connection, topic))
    return topics


async def make_topics(engine: Engine, count: int) -> None:
    async with committing(engine) as house:
        for n in range(count):
            await house.topic(f"t{n}")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_at_any_step_loses_no_confirmed_message(engine: Engine, when: str) -> None:
    """Invariant 1: crash at each call to the database in turn, then start again."""
    await make_topics(engine, 2)
    faulty = FaultyEngine(engine)
    tickets: list[Ticket] = []
    for number in range(1, 100):
        crash = AtStep(number, Crash())
        setattr(faulty, when, lambda step: None)
        with contextlib.suppress(BaseExceptionGroup):
            async with committing(faulty, max_lanes=2) as house:
                topics = await reopen_topics(house)
                setattr(faulty, when, crash)
                for n in range(2):
                    for topic in topics:
                        house.append(topic, b"%d.%d.%d" % (number, topic, n))
                        house.pipeline.submit(Acks(topic, topic, column(n)))
                    await house.pipeline.drain()
        for ticket in house.tickets:
            if ticket.error is not None:  # a crashed process does not answer
                ticket.error = OutcomeUnknown("crashed")
        tickets += house.tickets
        check_promises(engine, tickets)
        if crash.count < crash.number:
            break
    else:
        raise AssertionError("the workload never finished")
    assert number > 2


async def test_connection_cut_at_any_step_fails_no_request(engine: Engine) -> None:
    """After one cut the lane reconnects, and its state stays up."""
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1) as house:
        topic = await house.topic("t")
        for number in range(1, 100):
            cut = faulty.before = AtStep(number, LOST)
            house.append(topic, b"%d" % number)
            house.pipeline.submit(Acks(topic, 1, column(number)))
            await house.pipeline.drain()
            if cut.count < number:
                break
        assert number > 4
        assert house.states == [State.UP]
        assert [ticket.offset for ticket in house.tickets] == list(range(number))
        check_promises(engine, house.tickets)
        assert journaled(engine)[0] == list(range(1, number + 1))


@pytest.mark.parametrize("durable", [True, False], ids=["committed", "not-committed"])
async def test_a_lost_commit_reply_is_read_back(engine: Engine, durable: bool) -> None:
    """Each batch is confirmed once, whether its group was committed or is written again."""
    faulty = FaultyEngine(engine)
    async with committing(faulty) as house:
        topic = await house.topic("t")
        fault = Once("commit", OutcomeUnknown("the reply was lost"))
        setattr(faulty, "after" if durable else "before", fault)
        for n in range(4):
            fault.arm()
            house.append(topic, b"%d" % n, b"%d!" % n)
            house.pipeline.submit(Acks(topic, 1, column(n)))
            await house.pipeline.drain()
        assert house.states == [State.UP]
        assert [ticket.offset for ticket in house.tickets] == [0, 2, 4, 6]
        check_promises(engine, house.tickets)
        assert journaled(engine)[0] == [0, 1, 2, 3]


@pytest.mark.parametrize("durable", [True, False], ids=["committed", "not-committed"])
async def test_group_with_unknown_outcome_waits_through_an_outage(
    engine: Engine, durable: bool, autojump_clock: MockClock
) -> None:
    """The group is neither confirmed nor failed until its outcome is known. Later appends fail."""
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1) as house:
        topic = await house.topic("t")
        outage = Once("connect", LOST, times=5)
        fault = Once("commit", OutcomeUnknown("the reply was lost"))

        def lose(step: str) -> None:
            try:
                fault(step)
            except OutcomeUnknown:
                behind.append(house.append(topic, b"behind"))
                outage.arm()
                raise

        behind: list[Ticket] = []
        setattr(faulty, "after" if durable else "before", lose)
        if durable:
            faulty.before = outage
        else:
            faulty.before = lambda step: (outage(step), lose(step))  # type: ignore[assignment]
        fault.arm()
        ticket = house.append(topic, b"unknown")
        await house.until(State.DOWN)
        assert not ticket.done.is_set()
        assert isinstance(behind[0].error, StorageUnavailable)
        with pytest.raises(StorageUnavailable, match="cut by the test"):
            house.append(topic, b"refused")
        house.pipeline.submit(Acks(topic, 1, column(7)))
        assert house.pipeline.waiting_acks == 1
        await house.pipeline.drain()
        assert ticket.offset == 0
        assert house.states == [State.UP, State.DOWN, State.UP]
        house.append(topic, b"next")
        await house.pipeline.drain()
        assert house.tickets[-1].offset == 1
        check_promises(engine, house.tickets)
        assert journaled(engine)[0] == [7]


async def test_stop_reports_an_unknown_outcome(engine: Engine, autojump_clock: MockClock) -> None:
    """The client finds out later by its producer sequence."""
    faulty = FaultyEngine(engine)
    async with committing(faulty) as house:
        topic = await house.topic("t")
        outage = Once("connect", LOST, times=10**9)
        fault = faulty.after = Once("commit", OutcomeUnknown("the reply was lost"))
        faulty.before = outage
        outage.arm()
        fault.arm()
        ticket = house.append(topic, b"unknown")
        await trio.sleep(60)
    assert isinstance(ticket.error, OutcomeUnknown)
    assert stored(engine) == {topic: [b"unknown"]}


async def test_an_outage_refuses_publishes_and_keeps_acks(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """Acks and attempts wait in order. Offsets are reused, and commits resume by themselves."""
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1) as house:
        topic = await house.topic("t")
        pipeline = house.pipeline
        outage = faulty.before = Once("", LOST, times=8)
        outage.arm()
        ticket = house.append(topic, b"in the group")
        pipeline.submit(Acks(topic, 1, column(1)))
        pipeline.submit(Attempts(topic, 1, column(11), column(1), column(5), column(4)))
        with pytest.raises(StorageUnavailable):
            await pipeline.transact(lambda c: catalog.create_topic(c, 1, "other", 0))
        assert isinstance(ticket.error, StorageUnavailable)
        assert pipeline.state is State.DOWN
        with pytest.raises(StorageUnavailable, match="the database accepts no writes now"):
            house.append(topic, b"refused")
        with pytest.raises(StorageUnavailable):
            await pipeline.transact(lambda c: None)
        pipeline.submit(Acks(topic, 1, column(2)))
        pipeline.submit(Attempts(topic, 1, column(12), column(1), column(5), column(4)))
        assert (pipeline.waiting_acks, pipeline.waiting_bytes) == (2, 0)
        await pipeline.drain()
        assert house.states == [State.UP, State.DOWN, State.UP]
        assert journaled(engine) == ([1, 2], [11, 12])
        house.append(topic, b"again")
        await pipeline.drain()
        assert house.tickets[-1].offset == 0
        check_promises(engine, house.tickets)


async def test_a_read_only_database_refuses_acks_as_well(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """Attempts are still accepted because they have happened. The probe of the database writes."""
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1) as house:
        topic = await house.topic("t")
        pipeline = house.pipeline
        fault = faulty.before = Once("UPDATE brokers", StorageReadOnly("no writes"), times=6)
        first = Once("INSERT INTO journal", StorageReadOnly("no writes"))
        faulty.before = lambda step: (first(step), fault(step))  # type: ignore[assignment]
        first.arm()
        fault.arm()
        ticket = house.append(topic, b"x")
        pipeline.submit(Acks(topic, 1, column(1)))
        await ticket.done.wait()
        assert isinstance(ticket.error, StorageReadOnly)
        assert pipeline.state is State.READ_ONLY
        with pytest.raises(StorageReadOnly):
            house.append(topic, b"y")
        with pytest.raises(StorageReadOnly):
            pipeline.submit(Acks(topic, 1, column(2)))
        pipeline.submit(Attempts(topic, 1, column(12), column(1), column(5), column(4)))
        await pipeline.drain()
        assert house.states == [State.UP, State.READ_ONLY, State.UP]
        assert journaled(engine) == ([1], [12])
        check_promises(engine, house.tickets)


async def test_idle_pipeline_probes_a_database_reported_as_read_only(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """Q8: an idle pipeline has no writes, so it probes until a write succeeds."""
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1) as house:
        topic = await house.topic("t")
        fault = faulty.before = Once("UPDATE brokers", StorageReadOnly("no writes"), times=6)
        fault.arm()
        house.pipeline.doubt(StorageReadOnly("reported by the lease keeper"))
        assert house.pipeline.state is State.READ_ONLY
        with pytest.raises(StorageReadOnly):
            house.pipeline.submit(Acks(topic, 1, column(1)))
        house.pipeline.doubt(StorageReadOnly("reported again"))
        await house.until(State.UP)
        assert fault.left == 0
        assert house.states == [State.UP, State.READ_ONLY, State.UP]
        house.append(topic, b"x")
        house.pipeline.submit(Acks(topic, 1, column(1)))
        await house.pipeline.drain()
        check_promises(engine, house.tickets)
        assert journaled(engine)[0] == [1]


async def test_successful_commit_outweighs_an_earlier_read_only_report(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """Q8: the later of two observations of the database counts."""
    held = Held()
    async with committing(engine, max_lanes=1, run=held) as house:
        topic = await house.topic("t")
        with held.hold(COMMIT):
            house.append(topic, b"x")
            await held.reached()
            house.pipeline.doubt(StorageReadOnly("a moment ago"))
        await house.pipeline.drain()
        assert house.states == [State.UP]
        check_promises(engine, house.tickets)


async def test_aborted_transaction_is_retried(engine: Engine, autojump_clock: MockClock) -> None:
    """A deadlock only costs time. Statements run again from the start."""
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1) as house:
        topic = await house.topic("t")
        fault = faulty.before = Once("INSERT INTO journal", TransactionAborted("deadlock"), 3)
        fault.arm()
        house.append(topic, b"x")
        other = await house.topic("other")
        assert other != topic
        assert house.states == [State.UP]
        check_promises(engine, house.tickets)
        with house.connection() as connection:
            assert len(list(catalog.read_topics(connection, 0))) == 2


# -- a real server -----------------------------------------------------------------


def engine_at(url: str) -> MysqlEngine:
    return MysqlEngine(MysqlAddress.parse(url))


@pytest.mark.parametrize("arrives", [True, False], ids=["reply-lost", "request-lost"])
async def test_a_commit_lost_on_the_wire_is_read_back(
    mysql_to_break: MysqlServer, arrives: bool
) -> None:
    """The network breaks before the COMMIT or before its reply arrives."""
    with lossy_proxy(mysql_to_break.port) as proxy:
        engine = engine_at(mysql_to_break.url(fresh_name(), port=proxy.port))
        async with committing(engine, run=in_threads(4)) as house:
            topic = await house.topic("t")
            lose = proxy.lose_reply if arrives else proxy.lose_request
            for n in range(5):
                lose(b"COMMIT")
                house.append(topic, b"%d" % n, b"%d!" % n)
                house.pipeline.submit(Acks(topic, 1, column(n)))
                await house.pipeline.drain()
            assert house.states == [State.UP]
            assert [ticket.offset for ticket in house.tickets] == [0, 2, 4, 6, 8]
            check_promises(engine, house.tickets)
            assert journaled(engine)[0] == [0, 1, 2, 3, 4]


async def test_lane_kills_a_transaction_left_hanging_on_the_server(
    mysql_to_break: MysqlServer,
) -> None:
    """The client is gone and the server has not noticed. The lane waits, then kills it."""
    engine = engine_at(mysql_to_break.url(fresh_name()))
    faulty = FaultyEngine(engine)
    async with committing(faulty, run=in_threads(4), max_lanes=1) as house:
        topic = await house.topic("t")
        fault = faulty.before = Once("commit", OutcomeUnknown("no answer"))
        faulty.keep_lost = True
        fault.arm()
        house.append(topic, b"x")
        with trio.fail_after(60):
            await house.pipeline.drain()
        check_promises(engine, house.tickets)
        assert house.tickets[0].offset == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_publishing_survives_a_server_restart(mysql_to_break: MysqlServer, end: str) -> None:
    """Invariant 1: after a clean or unclean restart of the server, commits resume."""
    engine = engine_at(mysql_to_break.url(fresh_name()))
    async with committing(engine, run=in_threads(4)) as house:
        topics = [await house.topic(f"t{n}") for n in range(3)]
        refused = 0

        async def publish(topic: int) -> None:
            nonlocal refused
            number = 0
            while not done:
                number += 1
                try:
                    ticket = house.append(topic, b"%d.%d" % (topic, number))
                except StorageUnavailable:
                    refused += 1
                    await trio.sleep(0.001)
                else:
                    await ticket.done.wait()

        done = False
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(publish, topic)
            with trio.fail_after(120):
                await house.more_groups(20)
                await trio.to_thread.run_sync(getattr(mysql_to_break, end))
                await house.until(State.DOWN)
                # All publishers may be waiting for the outcome of their groups.
                for topic in topics:
                    try:
                        house.append(topic, b"%d.down" % topic)
                    except StorageUnavailable:
                        refused += 1
                house.pipeline.submit(Acks(topics[0], 1, column(5)))
                await trio.to_thread.run_sync(mysql_to_break.start)
                await house.until(State.UP)
                await house.more_groups(20)
            done = True
        await house.pipeline.drain()
        assert refused
        check_promises(engine, house.tickets)
        assert journaled(engine)[0] == [5]


async def test_commits_resume_when_a_read_only_server_becomes_writable(
    mysql_to_break: MysqlServer,
) -> None:
    """A promoted replica has this effect. The user is an ordinary one, because root may write."""
    name = fresh_name()
    mysql_to_break.admin(f"CREATE DATABASE {name}")
    mysql_to_break.admin("CREATE USER IF NOT EXISTS plain@'%'")
    mysql_to_break.admin(f"GRANT ALL ON {name}.* TO plain@'%'")
    engine = engine_at(mysql_to_break.url(name, user="plain"))
    async with committing(engine, run=in_threads(4)) as house:
        topic = await house.topic("t")
        mysql_to_break.admin("SET GLOBAL read_only = 1")
        ticket = house.append(topic, b"x")
        with trio.fail_after(60):
            await ticket.done.wait()
            assert isinstance(ticket.error, StorageReadOnly)
            assert house.pipeline.state is State.READ_ONLY
            mysql_to_break.admin("SET GLOBAL read_only = 0")
            await house.until(State.UP)
        house.append(topic, b"y")
        await house.pipeline.drain()
        check_promises(engine, house.tickets)
        assert stored(engine) == {topic: [b"y"]}


def fresh_name() -> str:
    return f"escapement_test_{uuid.uuid4().hex[:12]}"
