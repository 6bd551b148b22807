"""The timekeeper wakes topics on time, whatever happens to the clocks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from escapement.broker.delivery.timekeeper import Timekeeper
from escapement.broker.delivery.wall_clock import WallClock

LOOK_S = 0.5
HOUR_MS = 3_600_000
TOPIC = 1


class SetClock:
    """A wall clock that follows trio's clock at some speed, and that a test sets."""

    def __init__(self, speed: float = 1.0) -> None:
        self.reads = 0
        self._speed = speed
        self._set_ms = 10 * HOUR_MS
        self._began_s = trio.current_time()

    def now_ms(self) -> int:
        self.reads += 1
        return self._set_ms + round((trio.current_time() - self._began_s) * 1000 * self._speed)

    def lease_ms(self) -> int:
        return round(trio.current_time() * 1000)

    def set_ahead(self, ms: int) -> None:
        self._set_ms += ms


class Watched:
    """A timekeeper, with a record of its calls."""

    def __init__(self, clock: SetClock, wall_clock: WallClock) -> None:
        self.woken: list[tuple[int, int]] = []  # topics, and when they were woken
        self.steps_back: list[int] = []
        self.keeper = Timekeeper(
            clock,
            lambda topic_id, now_ms: self.woken.append((topic_id, now_ms)),
            self.steps_back.append,
            wall_clock,
            LOOK_S,
        )


@asynccontextmanager
async def running(clock: SetClock, count: int = 1) -> AsyncIterator[list[Watched]]:
    """Run timekeepers that share a look at the wall clock."""
    wall_clock = WallClock(clock, LOOK_S)
    found = [Watched(clock, wall_clock) for _ in range(count)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wall_clock.run)
        for one in found:
            nursery.start_soon(one.keeper.run)
        await trio.testing.wait_all_tasks_blocked()
        yield found
        nursery.cancel_scope.cancel()


async def test_topics_of_all_timekeepers_wake_when_the_clock_is_set_ahead(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = SetClock()
    async with running(clock, 3) as found:
        due_ms = clock.now_ms() + HOUR_MS
        for one in found:
            one.keeper.schedule(TOPIC, due_ms)
        await trio.sleep(10.2)
        assert [one.woken for one in found] == [[], [], []]
        clock.set_ahead(HOUR_MS)
        await trio.sleep(LOOK_S)
        assert [len(one.woken) for one in found] == [1, 1, 1]
        assert not any(one.steps_back for one in found)


async def test_each_timekeeper_notices_once_that_the_clock_is_set_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also one that has nothing to do, and has not looked at the clock for hours."""
    clock = SetClock()
    async with running(clock, 2) as found:
        found[0].keeper.schedule(TOPIC, clock.now_ms() + 3 * HOUR_MS)
        await trio.sleep(2 * 3600 + 0.2)
        clock.set_ahead(-HOUR_MS)
        set_to_ms = clock.now_ms()
        await trio.sleep(60)
        for one in found:
            (back_ms,) = one.steps_back
            assert set_to_ms <= back_ms <= set_to_ms + LOOK_S * 1000
            assert one.woken == []


@pytest.mark.parametrize("speed", [0.999, 1.0, 1.001])
async def test_topic_wakes_on_time_although_the_clock_runs_at_another_speed(
    speed: float, autojump_clock: trio.testing.MockClock
) -> None:
    clock = SetClock(speed)
    async with running(clock) as (one,):
        due_ms = clock.now_ms() + HOUR_MS
        one.keeper.schedule(TOPIC, due_ms)
        await trio.sleep(2 * 3600)
        ((_, woken_ms),) = one.woken
        assert abs(woken_ms - due_ms) <= 1
        assert not one.steps_back


async def test_earlier_wake_up_ends_a_sleep(autojump_clock: trio.testing.MockClock) -> None:
    clock = SetClock()
    async with running(clock) as (one,):
        began_ms = clock.now_ms()
        one.keeper.schedule(TOPIC, began_ms + HOUR_MS)
        await trio.sleep(1)
        one.keeper.schedule(TOPIC + 1, began_ms + 2000)
        await trio.sleep(2)
        assert one.woken == [(TOPIC + 1, began_ms + 2000)]


async def test_timekeepers_without_work_stay_asleep(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = SetClock()
    async with running(clock, 10) as found:
        for one in found:
            one.keeper.schedule(TOPIC, clock.now_ms() + HOUR_MS)
        await trio.sleep(LOOK_S * 2.5)
        clock.reads = 0
        await trio.sleep(60)
        assert clock.reads == 60 / LOOK_S  # those of the wall clock
