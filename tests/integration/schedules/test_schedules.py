"""Recurring schedules in a whole broker on a virtual clock."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import (
    AlreadyExists,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    StorageUnavailable,
)
from escapement.recurrence import Recurrence
from escapement.storage import schema
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.inbox.schedule import (
    Content,
    Move,
    advance_schedules,
    create_schedule,
    delete_schedule,
    read_schedules,
    set_paused,
)
from escapement.testing import START_MS, World, arrived
from support.faults.held_calls import COMMIT, Held
from support.storage.commit_pipelines import FaultyEngine, Once

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BERLIN = ZoneInfo("Europe/Berlin")
SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
EVERYTHING = BrokerConfig(ack_wait_ms=10**11, seed=0)


class Watch:
    """A consumer of ``beats`` that records occurrence times and offsets across restarts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.times: list[int] = []
        self.offsets: list[int] = []

    async def look(self) -> list[int]:
        """Return the occurrence times of messages that arrived since the last call."""
        async with (
            self.world.connect() as broker,
            broker.consumer("beats", "watch", position="earliest", permits=100_000) as inbox,
        ):
            messages = await arrived(inbox)
            found = [message.properties["occurrence_ms"] for message in messages]
            self.offsets += [message.id.offset for message in messages]
            await inbox.ack([message.id for message in messages], durable=True)
        self.times += found
        assert len(set(self.times)) == len(self.times), "an occurrence was delivered twice"
        return found


@asynccontextmanager
async def watched(**options: object) -> AsyncIterator[tuple[World, Watch]]:
    async with testing.start(**{"config": EVERYTHING, **options}) as world:  # type: ignore[arg-type]
        yield world, Watch(world)


async def create(world: World, **options: object) -> escapement.Schedule:
    async with world.connect() as broker:
        return await broker.schedules.create("beat", "beats", b"tick", **options)  # type: ignore[arg-type]


# -- the table, on both engines ---------------------------------------------------------


def test_stored_schedule_advances_only_from_its_current_state(engine: Engine) -> None:
    """B2: advancing a schedule returns its stored content, once per step."""
    schema.migrate(engine)
    connection = engine.connect()
    cron = Recurrence("0 9 * * *", "Europe/Berlin", until_ms=10**13)
    every = Recurrence(every_ms=5_000, anchor_ms=77)
    content = Content(b"\x00pay", b"k")
    made = [
        create_schedule(connection, "t/n/a", "t/n/x", cron, "all", 5_000, content, 7),
        create_schedule(connection, "t/n/b", "t/n/y", every, "skip", 6_000, Content(b"", b""), 8),
    ]
    with pytest.raises(AlreadyExists):
        create_schedule(connection, "t/n/a", "t/n/z", every, "last", 1, content, 7)
    assert list(read_schedules(connection, 0)) == made
    assert list(read_schedules(connection, 1)) == []

    def advance(*moves: Move) -> dict[int, Content]:
        connection.begin()
        found = advance_schedules(engine.dialect, connection, moves)
        connection.commit()
        return found

    move = Move(made[0], [5_000, 5_500], 9_000)
    assert advance(move) == {made[0].id: content}
    assert advance(move) == {}
    first, second = read_schedules(connection, 0)
    assert (first.next_ms, first.last_ms, first.published) == (9_000, 5_500, 2)
    set_paused(connection, second.id, True, second.next_ms)
    assert advance(Move(second, [6_000], None)) == {}
    delete_schedule(connection, first.id)
    assert [one.paused for one in read_schedules(connection, 0)] == [True]
    set_paused(connection, second.id, False, 7_000)
    (last,) = read_schedules(connection, 0)
    assert advance(Move(first, [9_000], 10_000), Move(last, [], None)) == {
        last.id: Content(b"", b"")
    }
    assert next(read_schedules(connection, 0)).next_ms is None
    connection.close()


def test_many_schedules_advance_in_one_call_and_each_returns_its_content(engine: Engine) -> None:
    """B2: more schedules than one statement takes. Some are paused and do not advance."""
    schema.migrate(engine)
    connection = engine.connect()
    every = Recurrence(every_ms=5_000)
    connection.begin()
    made = [
        create_schedule(
            connection, f"t/n/{n}", "t/n/x", every, "all", n, Content(b"%d" % n, b"k"), 7
        )
        for n in range(1_300)
    ]
    for one in made[::100]:
        set_paused(connection, one.id, True, one.next_ms)
    connection.commit()
    connection.begin()
    moves = [Move(one, [n], 10_000 + n) for n, one in enumerate(made)]
    found = advance_schedules(engine.dialect, connection, moves)
    connection.commit()
    assert found == {one.id: Content(b"%d" % n, b"k") for n, one in enumerate(made) if n % 100}
    for n, one in enumerate(read_schedules(connection, 0)):
        expected = (10_000 + n, n, 1) if n % 100 else (n, None, 0)
        assert (one.next_ms, one.last_ms, one.published) == expected
    connection.close()


# -- without faults -----------------------------------------------------------------------


async def test_stopping_broker_leaves_a_due_occurrence_to_the_next_start(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2: the scheduler does not check the due occurrence over and over while stopping."""
    held = Held()
    async with testing.start(run=held) as world:
        async with world.connect() as broker, trio.open_nursery() as nursery:
            await broker.schedules.create("beat", "beats", b"tick", every=(2, "s"))
            producer = await broker.producer("t")
            with held.hold(COMMIT):
                nursery.start_soon(producer.send, b"under way")
                await held.reached()
                nursery.start_soon(world.stop)
                await world.clock.advance(seconds=3)
        await world.restart()
        async with (
            world.connect() as broker,
            broker.consumer("beats", "s", position="earliest") as inbox,
        ):
            assert len(await arrived(inbox)) == 1


async def test_cron_at_nine_in_berlin_follows_summer_time_for_a_year(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2, B4: each working day at nine local time, in winter and in summer."""
    async with watched() as (world, watch):
        made = await create(world, cron="0 9 * * mon-fri", timezone="Europe/Berlin", key="k")
        assert made.next == datetime(2026, 12, 25, 8, tzinfo=UTC)
        assert await watch.look() == []  # creates the subscription
        await world.clock.advance(days=365)
        found = await watch.look()
        days = [datetime.fromtimestamp(ms / 1000, BERLIN) for ms in found]
        assert len(days) == 261
        assert {day.strftime("%H:%M") for day in days} == {"09:00"}
        assert {day.utcoffset() for day in days} == {timedelta(hours=1), timedelta(hours=2)}
        assert all(day.weekday() < 5 for day in days)
        assert watch.offsets == list(range(261))


async def test_scheduled_message_names_its_occurrence_and_is_due_on_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (world, _), world.connect() as broker:
        await broker.schedules.create(
            "t/n/pulse", "beats", "ping", every=(90, "s"), key="k", serializer=str
        )
        async with broker.consumer("beats", "s", serializer=str) as inbox:
            await world.clock.advance(seconds=89, ms=999)
            assert await arrived(inbox) == []
            await world.clock.advance(ms=1)
            (message,) = await arrived(inbox)
            assert (message.value, message.key) == ("ping", "k")
            due_ms = START_MS + 90 * SECOND_MS
            assert message.properties == {"schedule": "t/n/pulse", "occurrence_ms": due_ms}
            assert due_ms <= message.due_ms <= due_ms + 1
            await inbox.ack([message.id])
            await world.clock.advance(seconds=270)
            assert len(await arrived(inbox)) == 3


async def test_until_ends_a_schedule(mock_clock: trio.testing.MockClock) -> None:
    async with watched() as (world, watch):
        until = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(minutes=3)
        await create(world, every="1m", until=until)
        await world.clock.advance(hours=1)
        assert await watch.look() == [START_MS + n * MINUTE_MS for n in (1, 2, 3)]
        async with world.connect() as broker:
            ended = await broker.schedules.get("beat")
            assert (ended.state, ended.next, ended.published) == ("ended", None, 3)
            assert (await broker.schedules.resume("beat")).state == "ended"


async def test_ended_schedule_can_be_paused_and_deleted_while_others_go_on(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (world, _), world.connect() as broker:
        await broker.schedules.create("other", "others", every="1h")
        soon = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(minutes=1)
        await create(world, every="1m", until=soon)
        await world.clock.advance(minutes=2)
        assert (await broker.schedules.pause("beat")).state == "paused"
        assert (await broker.schedules.resume("beat")).state == "ended"
        await broker.schedules.delete("beat")
        await create(world, every="1m")
        await world.clock.advance(hours=1)
        assert [one.published for one in await broker.schedules.list()] == [60, 1]


async def test_many_schedules_due_at_once_are_all_published(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (world, _), world.connect() as broker:
        count = 300
        for n in range(count):
            await broker.schedules.create(f"s{n}", f"t{n % 3}", b"%d" % n, cron="0 0 * * *")
        await world.clock.advance(days=2)
        for topic in range(3):
            async with broker.consumer(f"t{topic}", "s", position="earliest") as inbox:
                got = sorted(int(message.payload) for message in await arrived(inbox))
                assert got == sorted(2 * list(range(topic, count, 3)))


# -- showing and changing -----------------------------------------------------------------


async def test_schedules_are_listed_and_shown(mock_clock: trio.testing.MockClock) -> None:
    async with watched() as (world, _), world.connect() as broker:
        await create(world, every="1h")
        other = await broker.schedules.create(
            "t/n/other", "beats", cron="30 2 * * *", timezone="Asia/Tokyo"
        )
        listed = await broker.schedules.list()
        assert [one.name for one in listed] == ["public/default/beat", "t/n/other"]
        assert await broker.schedules.list("t/n") == [other]
        coming = (await broker.schedules.get("t/n/other")).coming
        on_the_wall = {at.astimezone(ZoneInfo("Asia/Tokyo")).strftime("%H:%M") for at in coming}
        assert (len(coming), on_the_wall) == (10, {"02:30"})
        await broker.schedules.delete("t/n/other")
        with pytest.raises(NotFound):
            await broker.schedules.get("t/n/other")


async def test_paused_schedule_publishes_nothing_and_resumes_with_the_next_occurrence(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A restart does not end the pause."""
    async with watched() as (world, watch):
        await create(world, every="1h", missed="all")
        await world.clock.advance(hours=2, minutes=30)
        async with world.connect() as broker:
            paused = await broker.schedules.pause("beat")
            assert (paused.state, paused.next) == ("paused", None)
            assert await broker.schedules.pause("beat") == paused
        await world.crash()
        await world.restart()
        await world.clock.advance(hours=5)
        async with world.connect() as broker:
            assert (await broker.schedules.get("beat")).coming == ()
            assert (await broker.schedules.resume("beat")).state == "active"
        await world.clock.advance(hours=1)
        assert await watch.look() == [START_MS + n * HOUR_MS for n in (1, 2, 8)]


async def test_invalid_schedules_are_refused(mock_clock: trio.testing.MockClock) -> None:
    limits = BrokerLimits(schedules=2, schedule_bytes=10)
    async with watched(config=BrokerConfig(limits=limits)) as (world, _), world.connect() as broker:
        create = broker.schedules.create
        hour = timedelta(hours=1)
        past = datetime(2020, 1, 1, tzinfo=UTC)
        for wrong in (
            {},
            {"cron": "* * * * *", "every": hour},
            {"every": (10, "ms")},
            {"cron": "nine o'clock"},
            {"cron": "0 9 * * *", "timezone": "Mars/Olympus"},
            {"every": hour, "until": past},
            {"every": hour, "missed": "some"},
        ):
            with pytest.raises(InvalidRequest):
                await create("beat", "beats", **wrong)
        for wrong_name in ("a/beat", "no beat"):
            with pytest.raises(InvalidRequest, match="schedule"):
                await create(wrong_name, "beats", every=hour)
        with pytest.raises(LimitExceeded):
            await create("beat", "beats", b"eleven byte", every=hour)
        await create("beat", "beats", b"ten bytes!", every=hour)
        with pytest.raises(AlreadyExists):
            await create("beat", "beats", every=hour)
        await create("t/n/beat", "beats", every=hour)
        with pytest.raises(LimitExceeded):
            await create("one-too-many", "beats", every=hour)


async def test_schedule_needs_an_existing_topic_without_automatic_creation(
    mock_clock: trio.testing.MockClock,
) -> None:
    config = BrokerConfig(auto_create_topics=False)
    async with watched(config=config) as (world, _):
        with pytest.raises(NotFound):
            await create(world, every="1h")


async def test_a_deleted_topic_is_created_again_by_the_next_occurrence(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (world, watch):
        await create(world, every="1h")
        await world.clock.advance(hours=2)
        async with world.connect() as broker:
            await broker.admin("topics.delete", topic="beats")
        await world.clock.advance(hours=1)
        assert await watch.look() == [START_MS + 3 * HOUR_MS]


async def test_namespace_that_schedules_would_recreate_is_not_deleted(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (world, _), world.connect() as broker:
        await broker.schedules.create("t/here/beat", "t/there/beats", every="1h")
        await broker.schedules.create("t/here2/beat", "t/here2/beats", every="1h")
        await broker.admin("topics.delete", topic="t/there/beats")
        await broker.admin("namespaces.create", namespace="t/here")
        for namespace in ("t/here", "t/there"):
            with pytest.raises(Conflict, match="schedules"):
                await broker.admin("namespaces.delete", namespace=namespace)
        await broker.schedules.delete("t/here/beat")
        for namespace in ("t/here", "t/there"):
            await broker.admin("namespaces.delete", namespace=namespace)


# -- restarts, outages, clocks ----------------------------------------------------------------


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
async def test_occurrences_missed_while_no_broker_ran_follow_the_missed_policy(
    mock_clock: trio.testing.MockClock, missed: str
) -> None:
    """B2: the policies are skip, last and all."""
    async with watched() as (world, watch):
        await create(world, every="1s", missed=missed)
        await world.clock.advance(ms=2_500)
        await world.crash()
        await world.clock.advance(hours=1)
        await world.restart()
        await world.clock.settle()
        await world.clock.advance(seconds=2)
        start = START_MS
        before = [start + SECOND_MS, start + 2 * SECOND_MS]
        now_ms = start + 2_500 + HOUR_MS
        gap = {
            "skip": [],
            "last": [start + HOUR_MS + 2 * SECOND_MS],
            "all": list(range(start + 3 * SECOND_MS, now_ms + 1, SECOND_MS)),
        }[missed]
        after = [start + HOUR_MS + n * SECOND_MS for n in (3, 4)]
        assert sorted(await watch.look()) == before + gap + after


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
async def test_quick_restart_misses_no_occurrence(
    mock_clock: trio.testing.MockClock, missed: str
) -> None:
    async with watched() as (world, watch):
        await create(world, every="5s", missed=missed)
        for _ in range(10):
            await world.clock.advance(seconds=7)
            await world.crash()
            await world.clock.advance(seconds=13)
            await world.restart()
        await world.clock.advance(seconds=10)
        assert await watch.look() == [START_MS + n * 5_000 for n in range(1, 43)]


async def test_a_crash_between_any_two_steps_publishes_each_occurrence_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2: the steps advance the schedule, write the inbox entry and relay it to the topic."""
    async with watched() as (world, watch):
        await create(world, every="10s")
        for pauses in range(40):
            await world.clock.advance(ms=9_999)
            mock_clock.jump(0.001)
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            await world.crash()
            await world.restart()
        await world.clock.settle()
        assert await watch.look() == [START_MS + n * 10_000 for n in range(1, 41)]


@pytest.mark.parametrize("durable", [True, False], ids=["committed", "not-committed"])
async def test_a_lost_commit_reply_publishes_no_occurrence_twice(
    mock_clock: trio.testing.MockClock, durable: bool
) -> None:
    faulty = FaultyEngine(SqliteEngine.in_memory())
    fault = Once("commit", OutcomeUnknown("the reply was lost"))
    setattr(faulty, "after" if durable else "before", fault)
    async with watched(engine=faulty) as (world, watch):
        await create(world, every="10s")
        for _ in range(5):
            fault.arm()
            await world.clock.advance(seconds=10)
        await world.clock.advance(seconds=5)
        assert await watch.look() == [START_MS + n * 10_000 for n in range(1, 6)]


async def test_database_outage_delays_occurrences_and_loses_none(
    mock_clock: trio.testing.MockClock,
) -> None:
    faulty = FaultyEngine(SqliteEngine.in_memory())
    outage = faulty.before = Once("", StorageUnavailable("away"), times=10**6)
    async with watched(engine=faulty) as (world, watch):
        await create(world, every="10s")
        await world.clock.advance(seconds=10)
        outage.arm()
        await world.clock.advance(seconds=45)
        outage.left = 0
        await world.clock.advance(seconds=10)
        assert await watch.look() == [START_MS + n * 10_000 for n in range(1, 7)]


async def test_a_clock_set_back_repeats_no_occurrence(mock_clock: trio.testing.MockClock) -> None:
    async with watched() as (world, watch):
        await create(world, every="1h", missed="all")
        await world.clock.advance(hours=3)
        world.clock.set_back(2 * HOUR_MS)
        await world.clock.advance(minutes=30)
        async with world.connect() as broker:
            await broker.schedules.pause("beat")
            await broker.schedules.resume("beat")
        await world.crash()
        await world.restart()
        await world.clock.advance(hours=2)
        assert await watch.look() == [START_MS + n * HOUR_MS for n in (1, 2, 3)]
        await world.clock.advance(hours=1)
        assert await watch.look() == [START_MS + 4 * HOUR_MS]


async def test_new_schedule_publishes_in_time_after_the_clock_was_set_back(
    mock_clock: trio.testing.MockClock,
) -> None:
    """It does not wait for the end of a rest that the clock of before has set."""
    async with watched() as (world, watch):
        await create(world, every="1h")
        await world.clock.advance(hours=3)
        assert len(await watch.look()) == 3
        world.clock.set_back(2 * HOUR_MS)
        await world.clock.advance(minutes=30)
        async with world.connect() as broker:
            await broker.schedules.create("soon", "beats", b"tick", every="1m")
        await world.clock.advance(minutes=2)
        half = START_MS + HOUR_MS + 30 * MINUTE_MS
        assert await watch.look() == [half + MINUTE_MS, half + 2 * MINUTE_MS]


async def test_clock_that_jumps_ahead_follows_the_missed_policy(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (world, watch):
        await create(world, every="1m", missed="last")
        await world.clock.advance(minutes=2)
        world.clock.set_back(-DAY_MS)
        await world.clock.advance(seconds=30)
        await world.clock.advance(seconds=30)
        day = START_MS + DAY_MS
        wanted = [START_MS + MINUTE_MS, START_MS + 2 * MINUTE_MS]
        assert await watch.look() == [*wanted, day + 2 * MINUTE_MS, day + 3 * MINUTE_MS]


async def test_missing_time_zone_stops_only_its_own_schedule(
    mock_clock: trio.testing.MockClock,
) -> None:
    engine = SqliteEngine.in_memory()
    async with watched(engine=engine) as (world, watch):
        await create(world, cron="0 * * * *")
        async with world.connect() as broker:
            await broker.schedules.create("lost", "beats", cron="0 * * * *", timezone="Asia/Tokyo")
        await world.crash()
        connection = engine.connect()
        connection.execute("UPDATE schedules SET timezone = 'Asia/Edo' WHERE timezone != 'UTC'")
        connection.close()
        await world.restart()
        async with world.connect() as broker:
            for _ in range(2):  # before and after its due time
                lost = await broker.schedules.get("lost")
                assert (lost.state, lost.coming) == ("broken", ())
                assert "Asia/Edo" in (lost.problem or "")
                await world.clock.advance(hours=1)
        assert await watch.look() == [START_MS + HOUR_MS, START_MS + 2 * HOUR_MS]
        async with world.connect() as broker:
            assert (await broker.schedules.pause("lost")).state == "paused"
            with pytest.raises(escapement.InvalidRequest, match="Asia/Edo"):
                await broker.schedules.resume("lost")
            await broker.schedules.delete("lost")
            assert [one.name for one in await broker.schedules.list()] == ["public/default/beat"]
