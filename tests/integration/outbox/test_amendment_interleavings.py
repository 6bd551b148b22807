"""The interleavings that the docstring of the amender names, one after the other.

The broker fails, or commits of its log do, while it carries out requests of an application.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from functools import partial

import pytest
import trio

from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.clock import moment, unix_ms
from escapement.errors import OutcomeUnknown, StorageUnavailable
from escapement.sql import cancel, reschedule, schedule
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.inbox import inbox
from escapement.storage.inbox.amend_request import (
    NOT_BEGUN,
    AmendRequest,
    amend_entry,
    decode_amend_requests,
)
from escapement.storage.inbox.entry import InboxEntry
from escapement.testing import World
from support.outbox.outboxes import Application, serving
from support.storage.commit_pipelines import AtStep, FaultyEngine, Once

MockClock = trio.testing.MockClock
HOUR_MS = 3_600_000
# More scheduler steps than the relays need to carry a request out, and more steps of the log.
SCHEDULER_STEPS = 90
LOG_STEPS = 45
# More scheduler steps than a request takes from its search to its end.
RUN_STEPS = 20
BROKEN = StorageUnavailable("broken, says the test")


class Shop:
    """An application that changes its mind in every round.

    In a round it sends a message with the key "k", which replaces the one of the round before, and
    reschedules a message with the key "r" to another time.
    """

    def __init__(self, application: Application, world: World) -> None:
        self.application = application
        self.world = world
        self.round = 0
        self.begin_ms = world.clock.now_ms()

    def commit(self) -> None:
        self.round += 1
        with self.application.session() as cursor:
            if self.round == 1:
                schedule(cursor, "t", b"r", key="r", at=self._at(1000))
            cancel(cursor, "t", key="k")
            schedule(cursor, "t", b"%d" % self.round, key="k", at=self._at(self.round))
            reschedule(cursor, "t", key="r", at=self._at(1000 + self.round))
            cursor.connection.commit()

    async def check(self) -> None:
        """Check that the requests of all rounds have taken effect, and no others."""
        async with self.world.connect() as broker:
            pending = [(m.payload, unix_ms(m.due_at)) async for m in broker.peek("t", count=99)]
        hours = [(payload, (due_ms - self.begin_ms) // HOUR_MS) for payload, due_ms in pending]
        assert hours == [(b"%d" % self.round, self.round), (b"r", 1000 + self.round)]
        assert self.application.left == 0

    def _at(self, hours: int) -> datetime:
        return moment(self.begin_ms + HOUR_MS * hours)


async def test_crash_at_any_step_carries_each_request_out(
    application: Application, mock_clock: MockClock
) -> None:
    """V7: a request that is repeated cancels no message behind it."""
    async with serving(application) as world:
        shop = Shop(application, world)
        for steps in range(SCHEDULER_STEPS):
            await world.crash()
            shop.commit()
            await world.restart()
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            await world.crash()
            await world.restart()
            await world.clock.advance(seconds=5)
            await shop.check()


def breaks(step: int) -> tuple[str, Callable[[str], None]]:
    return "before", AtStep(step, BROKEN)


def loses_reply(step: int) -> tuple[str, Callable[[str], None]]:
    return "after", AtStep(step, OutcomeUnknown("the reply was lost, says the test"))


@pytest.mark.parametrize(("fault", "steps"), [(breaks, LOG_STEPS), (loses_reply, 8)])
async def test_fault_of_the_log_at_any_step_carries_each_request_out(
    fault: Callable[[int], tuple[str, Callable[[str], None]]],
    steps: int,
    application: Application,
    mock_clock: MockClock,
) -> None:
    faulty = FaultyEngine(SqliteEngine.in_memory())
    async with serving(application, engine=faulty) as world:
        shop = Shop(application, world)
        for step in range(1, steps):
            shop.commit()
            when, at_step = fault(step)
            setattr(faulty, when, at_step)
            await world.clock.advance(minutes=1)
            setattr(faulty, when, lambda step: None)
            await world.clock.advance(minutes=1)
            await shop.check()


async def test_repeated_request_changes_no_message_of_a_producer_that_came_meanwhile(
    application: Application, mock_clock: MockClock
) -> None:
    faulty = FaultyEngine(SqliteEngine.in_memory())
    relay_reads = Once("SELECT t.id, t.target FROM inbox_targets", BROKEN, times=10**6)
    faulty.before = relay_reads
    repeated = 0
    async with serving(application, engine=faulty) as world:
        for steps in range(SCHEDULER_STEPS):
            async with world.connect() as broker:
                producer = await broker.producer("t")
                await producer.send(b"before", key="k", delay="1h")
            await world.crash()
            with application.session() as cursor:
                cancel(cursor, "t", key="k")
                cursor.connection.commit()
            await world.restart()
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            await world.crash()
            begun = has_begun(faulty)
            relay_reads.arm()
            await world.restart()
            async with world.connect() as broker:
                producer = await broker.producer("t")
                await producer.send(b"after", key="k", delay="1h")
                relay_reads.left = 0
                await world.clock.advance(seconds=30)
                if begun:
                    repeated += 1
                    assert [m.payload async for m in broker.peek("t", count=9)] == [b"after"]
                assert await broker.admin("inbox.list") == []
                await broker.cancel(topic="t", key="k")
    assert repeated > 3


def has_begun(engine: FaultyEngine) -> bool:
    """Return whether the log has a request that was begun and is not over."""
    with closing(engine.connect()) as connection:
        rows = connection.execute("SELECT data FROM inbox").rows
    found = [decode_amend_requests(data) for (data,) in rows]
    return any(one is not None and one.bound != NOT_BEGUN for one in found)


async def test_request_that_ends_while_the_relay_begins_another_is_not_repeated(
    application: Application, mock_clock: MockClock
) -> None:
    """A repetition would undo a reschedule by a client that came meanwhile.

    The relay reads both requests at each step of the first one's run, and begins the other one.
    """
    engine = SqliteEngine.in_memory()
    async with serving(application, engine=engine) as world, world.connect() as broker:
        services = world.server.services
        searching = services.amender._searching
        producer = await broker.producer("t")
        for steps in range(RUN_STEPS):
            receipt = await producer.send(b"x", key="k", delay="9h")
            other = amend_entry("public/default/t", "other", [AmendRequest(key=b"none")])
            async with searching, searching:  # the first request waits for its search
                with application.session() as cursor:
                    reschedule(cursor, "t", key="k", at=moment(world.clock.now_ms() + HOUR_MS))
                    cursor.connection.commit()
                await world.clock.advance(seconds=2)
                await services.pipeline.transact(partial(insert_entry, engine, other))
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            services.inbox_relay.wake()
            async with searching, searching:  # a repetition would wait for its search
                await world.clock.settle()
                until = moment(world.clock.now_ms() + 2 * HOUR_MS)
                await broker.reschedule(receipt.id, at=until)
            await world.clock.advance(seconds=5)
            (left,) = [m async for m in broker.peek("t", count=9)]
            assert left.due_at == until, steps
            await broker.cancel(receipt.id)


def insert_entry(engine: Engine, entry: InboxEntry, connection: Connection) -> None:
    """Write an inbox entry without a hint to the relay."""
    inbox.insert(engine, connection, [entry], 0)


async def test_topic_that_is_created_again_during_a_request_keeps_its_messages(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world, world.connect() as broker:
        producer = await broker.producer("t")
        await producer.send(b"old", key="k", delay="1h")
        searching = world.server.services.amender._searching
        async with searching, searching:
            with application.session() as cursor:
                cancel(cursor, "t", key="k")
                cursor.connection.commit()
            await world.clock.advance(seconds=2)
            await broker.admin("topics.delete", topic="t", force=True)
            producer = await broker.producer("t")
            await producer.send(b"new", key="k", delay="1h")
        await world.clock.advance(minutes=1)
        assert [m.payload async for m in broker.peek("t", count=9)] == [b"new"]
        assert await broker.admin("inbox.list") == []


async def test_requests_can_be_discarded_while_they_are_carried_out(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world, world.connect() as broker:
        producer = await broker.producer("t")
        await producer.send(b"1", key="k", delay="1h")
        searching = world.server.services.amender._searching
        async with searching, searching:
            with application.session() as cursor:
                cancel(cursor, "t", key="k")
                schedule(cursor, "t", b"2", key="k", at=moment(world.clock.now_ms() + HOUR_MS))
                cursor.connection.commit()
            await world.clock.advance(seconds=2)
            await broker.admin("inbox.discard", target="public/default/t")
        await world.clock.advance(minutes=1)
        application.send(b"3", key="j", at=moment(world.clock.now_ms() + HOUR_MS))
        await world.clock.advance(seconds=2)
        left = [m.payload async for m in broker.peek("t", count=9)]
        assert left[-2:] == [b"2", b"3"]


async def test_request_waits_while_its_namespace_refuses_its_time(
    application: Application, mock_clock: MockClock
) -> None:
    async with serving(application) as world, world.connect() as broker:
        producer = await broker.producer("t")
        await producer.send(b"1", key="k", delay="2h")
        await producer.send(b"2", key="j", delay="1h")
        await broker.admin("namespaces.disable_delayed_message", namespace="public/default")
        with application.session() as cursor:
            reschedule(cursor, "t", key="k", at=moment(world.clock.now_ms() + HOUR_MS // 2))
            cancel(cursor, "t", key="j")
            cursor.connection.commit()
        await world.clock.advance(minutes=1)
        (blocked,) = world.server.stats()["inbox_blocked"]
        assert "delayed messages are disabled" in blocked
        assert len([m async for m in broker.peek("t", count=9)]) == 2
        await broker.admin("namespaces.enable_delayed_message", namespace="public/default")
        await world.clock.advance(minutes=1)
        (left,) = [m async for m in broker.peek("t", count=9)]
        assert left.payload == b"1"
        assert unix_ms(left.due_at) - world.clock.now_ms() < HOUR_MS


async def test_many_topics_with_requests_take_turns(
    application: Application, mock_clock: MockClock
) -> None:
    limits = BrokerLimits(inbox_step_bytes=300, inbox_round_bytes=700)
    config = BrokerConfig(limits=limits, seed=0)
    async with serving(application, config=config) as world, world.connect() as broker:
        with application.session() as cursor:
            for n in range(150):
                at = moment(world.clock.now_ms() + HOUR_MS)
                schedule(cursor, f"t{n}", b"1", key="k", at=at)
                schedule(cursor, f"t{n}", b"2", key="j", at=at)
            cursor.connection.commit()
            await world.clock.advance(seconds=5)
            for n in range(150):
                cancel(cursor, f"t{n}", key="k")
            cursor.connection.commit()
        await world.clock.advance(seconds=10)
        for n in range(150):
            assert [m.payload async for m in broker.peek(f"t{n}", count=9)] == [b"2"]
