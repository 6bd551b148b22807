"""Schedules that are changed, run now, spread, and asked for their next occurrences (B2, B12)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import (
    AccessDenied,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    StorageUnavailable,
)
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import START_MS, World
from support.database.outages import Outage
from support.roles import begin, connected, new_token
from support.storage.commit_pipelines import FaultyEngine, Once

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000
CALM = BrokerConfig(ack_wait_ms=10**11, seed=0)


def berlin_ms(*when: int) -> int:
    return round(datetime(*when, tzinfo=BERLIN).timestamp() * 1000)  # type: ignore[misc]


async def in_log(world: World, topic: str = "beats") -> list[tuple[int, bytes]]:
    """Return the occurrence time and the payload of each message, by offset."""
    async with world.connect() as broker:
        return [
            (one.properties["occurrence_ms"], one.payload)
            async for page in broker.read(topic)
            for one in page
        ]


async def restarted(world: World, **away: int) -> None:
    """Crash the broker and restart it, after some time without a broker."""
    await world.crash()
    await world.clock.advance(**away)
    await world.restart()
    await world.clock.settle()


@pytest.mark.parametrize(
    ("start", "change"),
    [((2027, 3, 26), (2027, 3, 28)), ((2027, 10, 29), (2027, 10, 31))],
    ids=["to summer time", "to winter time"],
)
async def test_changed_schedule_publishes_each_occurrence_once_across_a_clock_change(
    start: tuple[int, int, int], change: tuple[int, int, int], mock_clock: trio.testing.MockClock
) -> None:
    """B2: changed on the day before the clocks change, with a crash on either side of the change.

    The times of day stay the same before and after it.
    """
    start_ms = berlin_ms(*start, 12)
    async with testing.start(config=CALM, start_ms=start_ms) as world:
        async with world.connect() as broker:
            await broker.schedules.create(
                "beat", "beats", b"old", cron="0 9 * * *", timezone="Europe/Berlin"
            )
            await world.clock.advance(hours=24)
            changed = await broker.schedules.update("beat", value=b"new", cron="30 8,18 * * *")
            assert (changed.cron, changed.timezone) == ("30 8,18 * * *", "Europe/Berlin")
            coming = await broker.schedules.next("beat", count=4)
        await restarted(world, seconds=20)
        await world.clock.advance(hours=12)
        await restarted(world, seconds=20)
        await world.clock.advance(hours=36)
        year, month, day = change
        first = [(berlin_ms(year, month, day - 1, 9), b"old")]
        then = [
            (berlin_ms(year, month, day - 1, 18, 30), b"new"),
            (berlin_ms(year, month, day, 8, 30), b"new"),
            (berlin_ms(year, month, day, 18, 30), b"new"),
        ]
        found = await in_log(world)
        assert found[:4] == first + then
        assert [round(at.timestamp() * 1000) for at in coming[:3]] == [ms for ms, _ in then]
        assert len({ms for ms, _ in found}) == len(found)


async def test_occurrences_that_are_due_are_published_before_a_change(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2: the old content and times apply to them, however many wait in turns."""
    limits = BrokerLimits(schedule_turn_occurrences=3, schedule_rest_ms=3_600_000)
    config = BrokerConfig(ack_wait_ms=10**11, seed=0, limits=limits)
    async with testing.start(config=config) as world, world.connect() as broker:
        await broker.schedules.create("beat", "beats", b"old", every="1m", missed="all")
        await world.clock.advance(minutes=1)
        # The scheduler rests for an hour now, and ten occurrences become due.
        await world.clock.advance(minutes=10)
        assert len(await in_log(world)) == 1
        await broker.schedules.update("beat", every="7m", value=b"new")
        await world.clock.advance(minutes=70)
        found = await in_log(world)
        minutes = [(ms - START_MS) // MINUTE_MS for ms, _ in found]
        assert minutes[:13] == [*range(1, 12), 18, 25]
        assert [payload for _, payload in found[:12]] == [b"old"] * 11 + [b"new"]


async def test_each_value_of_a_schedule_can_be_changed_and_others_stay(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B2: changes are durable. A repeated change does not move the times of an interval."""
    async with testing.start(config=CALM, engine=engine) as world:
        until = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=1)
        async with world.connect() as broker:
            schedules = broker.schedules
            made = await schedules.create("beat", "beats", b"p", every="1h", key="k", until=until)
            await world.clock.advance(minutes=30)
            changed = await schedules.update("beat", missed="skip")
            assert (changed.missed, changed.next, changed.until) == ("skip", made.next, until)
            again = await schedules.update("beat", every="1h")
            assert again.next == made.next
            await schedules.update("beat", until=None, spread="1m", topic="others", key=None)
            await schedules.pause("beat")
            changed = await schedules.update("beat", value=b"q")
            assert (changed.state, changed.until) == ("paused", None)
        await restarted(world, seconds=1)
        async with world.connect() as broker:
            schedules = broker.schedules
            stored = await schedules.get("beat")
            assert (stored.state, stored.missed, stored.until) == ("paused", "skip", None)
            assert (stored.spread, stored.topic) == (
                timedelta(minutes=1),
                "public/default/others",
            )
            assert await schedules.next("beat") == ()
            resumed = await schedules.resume("beat")
            assert resumed.next == made.next
            await world.clock.advance(hours=2)
            read = [one async for page in broker.read("others") for one in page]
            assert [(one.payload, one.key) for one in read] == [(b"q", None)] * 2
            assert (await schedules.update("beat", spread=None)).spread is None


async def test_invalid_change_of_a_schedule_changes_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start(config=CALM) as world, world.connect() as broker:
        before = await broker.schedules.create("beat", "beats", b"p", every="1h")
        past = datetime.fromtimestamp(START_MS / 1000, UTC)
        for changes, error, said in (
            ({}, InvalidRequest, "at least one change"),
            ({"cron": "nonsense"}, InvalidRequest, "not a cron expression"),
            ({"cron": "0 9 * * *", "every": "1h"}, InvalidRequest, "not both"),
            ({"timezone": "Europe/Berlin"}, InvalidRequest, "needs a cron expression"),
            ({"cron": "0 9 * * *", "timezone": "Mars/Base"}, InvalidRequest, "not a time zone"),
            ({"until": past}, InvalidRequest, "never due"),
            ({"missed": "maybe"}, InvalidRequest, "one of last, skip, all"),
            ({"value": bytes(300_000)}, LimitExceeded, "at most 262144"),
        ):
            options: dict[str, Any] = changes
            with pytest.raises(error, match=said):
                await broker.schedules.update("beat", **options)
        with pytest.raises(NotFound):
            await broker.schedules.update("nosuch", value=b"")
        after = await broker.schedules.get("beat")
        assert (after.next, after.every, after.until) == (before.next, before.every, None)


async def test_run_now_publishes_one_message_and_moves_no_occurrence(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2: also of a paused schedule, and right before a crash."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.schedules.create("beat", "beats", b"p", every="1h", key="k")
            await world.clock.advance(minutes=10)
            await broker.schedules.run_now("beat")
            await broker.schedules.pause("beat")
            shown = await broker.schedules.run_now("beat")
            assert (shown.state, shown.published, shown.last) == ("paused", 2, None)
            await broker.schedules.resume("beat")
            with pytest.raises(NotFound):
                await broker.schedules.run_now("nosuch")
            await world.crash()
        await world.restart()
        await world.clock.advance(hours=1)
        async with world.connect() as broker:
            read = [one async for page in broker.read("beats") for one in page]
            now_ms = START_MS + 10 * MINUTE_MS
            demanded = {
                "schedule": "public/default/beat",
                "occurrence_ms": now_ms,
                "run_now": True,
            }
            assert [one.properties for one in read[:2]] == [demanded] * 2
            assert {(one.payload, one.key) for one in read} == {(b"p", "k")}
            assert [one.properties["occurrence_ms"] for one in read[2:]] == [
                START_MS + 60 * MINUTE_MS
            ]
            assert (await broker.schedules.get("beat")).published == 3


async def test_occurrences_with_a_spread_are_scattered_and_never_early(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B12: the place depends on the schedule and the occurrence. Disabled delays mean none."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        for name in ("a", "b"):
            await broker.schedules.create(name, name, every="20m", spread="10m")
        await broker.schedules.create("plain", "a", every="20m")
        await world.clock.advance(hours=20)
        places: dict[str, list[int]] = {}
        for topic in ("a", "b"):
            async for page in broker.read(topic):
                for one, due_ms in zip(page, page.due_ms.tolist(), strict=True):
                    place = due_ms - one.properties["occurrence_ms"]
                    places.setdefault(one.properties["schedule"][-1], []).append(place)
        assert all(0 <= place < 600_000 for some in places.values() for place in some)
        assert max(places["n"]) < 2
        assert len(set(places["a"])) > 55
        assert places["a"] != places["b"]
        await broker.admin("namespaces.disable_delayed_message", namespace="public/default")
        await world.clock.advance(hours=1)
        read = [one async for page in broker.read("b") for one in page]
        assert len(read) == 63
        assert [one.due_ms - one.properties["occurrence_ms"] < 2 for one in read[60:]] == [True] * 3
        with pytest.raises(InvalidRequest, match="longer than the broker's maximum delay"):
            await broker.admin(
                "schedules.create", schedule="c", topic="c", every_ms=1_000, spread_ms=10**15
            )


async def test_next_occurrences_are_the_ones_that_are_published(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.schedules.create("beat", "beats", cron="*/20 * * * *")
        coming = await broker.schedules.next("beat", count=5)
        assert len(await broker.schedules.next("beat", count=1_000)) == 100
        await world.clock.advance(hours=2)
        published = [ms for ms, _ in await in_log(world)][:5]
        assert [round(at.timestamp() * 1000) for at in coming] == published


@pytest.mark.parametrize("durable", [False, True])
async def test_lost_commit_reply_of_a_change_publishes_nothing_twice(
    mock_clock: trio.testing.MockClock, durable: bool
) -> None:
    """B2: the broker finds out whether the commit took place, and repeats it if not."""
    faulty = FaultyEngine(SqliteEngine.in_memory())
    fault = Once("commit", OutcomeUnknown("the reply was lost"))
    setattr(faulty, "after" if durable else "before", fault)
    async with testing.start(config=CALM, engine=faulty) as world, world.connect() as broker:
        await broker.schedules.create("beat", "beats", b"old", every="1m")
        await world.clock.advance(minutes=1)
        fault.arm()
        await broker.schedules.update("beat", every="40s", value=b"new")
        fault.arm()
        await broker.schedules.run_now("beat")
        await world.clock.advance(seconds=100)
        found = [(ms - START_MS, payload) for ms, payload in await in_log(world)]
        assert found == [
            (60_000, b"old"),
            (60_000, b"new"),
            (100_000, b"new"),
            (140_000, b"new"),
        ]
        assert (await broker.schedules.get("beat")).published == 4


async def test_admin_of_a_schedule_cannot_publish_to_a_topic_of_others_by_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1: a new payload, or a message now, needs the right to publish where the schedule does."""
    async with testing.start() as world, connected(world, await begin(world)) as root:
        await root.admin("grants.add", role="r", pattern="a/*", actions=["admin"])
        await root.admin("schedules.create", schedule="a/b/s", topic="x/y/z", every_ms=60_000)
        async with connected(world, await new_token(root, "r")) as broker:
            for verb, arguments in (
                ("schedules.update", {"payload": b"evil"}),
                ("schedules.update", {"every_ms": 1000}),
                ("schedules.update", {"topic": "x/y/other"}),
                ("schedules.run_now", {}),
            ):
                with pytest.raises(AccessDenied, match="'produce' on x/y/"):
                    await broker.admin(verb, schedule="a/b/s", **arguments)
            # It may take the schedule away from there, and stop it.
            await broker.admin("schedules.pause", schedule="a/b/s")
            changed = await broker.admin("schedules.update", schedule="a/b/s", topic="a/b/t")
            assert changed["topic"] == "a/b/t"
        assert (await root.admin("topics.stats", topic="x/y/z"))["published"] == 0


async def test_pause_is_confirmed_by_the_database_only(mock_clock: trio.testing.MockClock) -> None:
    """B8: a broker that has lost its lease remembers a pause that its successor has ended."""
    outage = Outage()
    async with testing.start(config=CALM, engine=outage.engine) as world, world.connect() as broker:
        await broker.schedules.create("beat", "beats", every="1m")
        await broker.schedules.pause("beat")
        outage.unreachable()
        with pytest.raises(StorageUnavailable):
            await broker.schedules.pause("beat")
        outage.over()
        await world.clock.advance(seconds=5)
        paused = await broker.schedules.pause("beat")
        resumed = await broker.schedules.resume("beat")
        again = await broker.schedules.resume("beat")
    assert (paused.state, resumed.state) == ("paused", "active")
    assert again.next == resumed.next
