"""Random workloads of schedules, compared with a naive model that knows every occurrence.

Each seed is a workload: time passes, the broker crashes, stops and stays away, the clock is set
back, schedules are paused, resumed, changed and run now. At the end each topic has exactly the
occurrences of the model, each once, in order. ``ESCAPEMENT_SEED=n`` replays one workload.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.recurrence import MISSED_AFTER_MS
from escapement.testing import World, arrived
from support.seeds import play, seeds

STEPS = 25
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
QUARTER_MS = 15 * MINUTE_MS
Test = Callable[[int], bool]


@dataclass
class Model:
    """The model of one schedule: its due seconds, its progress, and its occurrences."""

    name: str
    options: dict[str, Any]
    is_due: Test
    missed: str
    done_ms: int  # occurrences up to this time are published or skipped
    paused: bool = False
    published: list[int] = field(default_factory=list)
    demanded: list[int] = field(default_factory=list)  # when run-now was demanded
    interval_s: int = 0  # the interval to which it was changed; 0: not changed

    def publish_until(self, now_ms: int, *, was_away: bool) -> None:
        """Add the occurrences that a running broker publishes until ``now_ms``."""
        if self.paused or now_ms <= self.done_ms:
            return
        first_ms = self.done_ms // SECOND_MS * SECOND_MS + SECOND_MS
        due = [ms for ms in range(first_ms, now_ms + 1, SECOND_MS) if self.is_due(ms)]
        self.done_ms = now_ms
        if was_away and due and now_ms - due[0] > MISSED_AFTER_MS:
            due = {"skip": [], "last": due[-1:], "all": due}[self.missed]
        self.published += due

    def resume(self, now_ms: int) -> None:
        self.paused = False
        self.begin(now_ms)

    def begin(self, now_ms: int) -> None:
        """Continue with the first due second after now that is later than all published ones."""
        self.done_ms = max([now_ms, *self.published[-1:]])

    def every(self, seconds: int, now_ms: int) -> None:
        """Change the times to those of an interval from now on, unless it is the same interval."""
        if self.interval_s == seconds:
            return
        self.interval_s = seconds
        self.is_due = lambda ms: (ms - now_ms) % (seconds * SECOND_MS) == 0
        self.begin(now_ms)


def models(now_ms: int) -> list[Model]:
    """Return one schedule of each kind. The world begins at a full hour."""
    assert now_ms % (60 * MINUTE_MS) == 0
    end_ms = now_ms + 20 * MINUTE_MS
    ending = {"every": "30s", "until": datetime.fromtimestamp(end_ms / 1000, UTC)}
    quarters = {"cron": "*/15 * * * *", "timezone": "Asia/Kolkata"}
    return [
        Model("a", {"every": "20s"}, lambda ms: ms % 20_000 == 0, "all", now_ms),
        Model("b", {"every": "50s"}, lambda ms: (ms - now_ms) % 50_000 == 0, "skip", now_ms),
        Model("c", quarters, lambda ms: ms % QUARTER_MS == 0, "last", now_ms),
        Model("d", {"cron": "7 * * * * *"}, lambda ms: ms % MINUTE_MS == 7_000, "last", now_ms),
        Model("e", ending, lambda ms: ms % 30_000 == 0 and ms <= end_ms, "all", now_ms),
    ]


class Workload:
    """The broker and the models of its schedules. Times are whole seconds."""

    def __init__(
        self, world: World, mock_clock: trio.testing.MockClock, rng: random.Random
    ) -> None:
        self.world = world
        self.mock_clock = mock_clock
        self.rng = rng
        self.models = models(world.clock.now_ms())

    async def create(self) -> None:
        async with self.world.connect() as broker:
            for one in self.models:
                await broker.schedules.create(
                    one.name,
                    one.name,
                    missed=one.missed,
                    **one.options,
                )

    def update_models(self, *, was_away: bool = False) -> None:
        for one in self.models:
            one.publish_until(self.world.clock.now_ms(), was_away=was_away)

    async def advance(self) -> None:
        await self.world.clock.advance(seconds=self.rng.choice([1, 9, 30, 61, 300, 2000]))
        self.update_models()

    async def crash(self) -> None:
        """Crash a busy broker, and restart it within a minute: no occurrence is missed."""
        self.mock_clock.jump(self.rng.choice([0, 7, 20]))
        for _ in range(self.rng.randrange(25)):
            await trio.lowlevel.checkpoint()
        await self.world.crash()
        await self.world.clock.advance(seconds=self.rng.choice([0, 3, 30]))
        await self._restart()
        self.update_models()

    async def stay_away(self) -> None:
        await (self.world.stop() if self.rng.random() < 0.5 else self.world.crash())
        await self.world.clock.advance(seconds=self.rng.choice([30, 61, 200, 3000]))
        await self._restart()
        self.update_models(was_away=True)

    async def _restart(self) -> None:
        await self.world.restart()
        await self.world.clock.settle()

    async def set_back(self) -> None:
        self.world.clock.set_back(self.rng.choice([1, 60, 1000]) * SECOND_MS)
        await self.world.clock.settle()

    async def pause(self) -> None:
        one = self.rng.choice(self.models)
        async with self.world.connect() as broker:
            await broker.schedules.pause(one.name)
        one.paused = True

    async def resume(self) -> None:
        one = self.rng.choice(self.models)
        async with self.world.connect() as broker:
            await broker.schedules.resume(one.name)
        if one.paused:
            one.resume(self.world.clock.now_ms())

    async def update(self) -> None:
        one, seconds = self.rng.choice(self.models[:4]), self.rng.choice([17, 45, 600])
        async with self.world.connect() as broker:
            await broker.schedules.update(one.name, every=(seconds, "s"), value=b"new")
        now_ms = self.world.clock.now_ms()
        one.publish_until(now_ms, was_away=False)
        one.every(seconds, now_ms)

    async def run_now(self) -> None:
        one = self.rng.choice(self.models)
        async with self.world.connect() as broker:
            await broker.schedules.run_now(one.name)
        one.demanded.append(self.world.clock.now_ms())

    async def checkpoint(self) -> None:
        await self.world.checkpoint()

    async def check(self) -> None:
        async with self.world.connect() as broker:
            for one in self.models:
                async with broker.consumer(
                    one.name, "s", kind="exclusive", position="earliest"
                ) as i:
                    properties = [message.properties for message in await arrived(i)]
                found = [p["occurrence_ms"] for p in properties if "run_now" not in p]
                assert found == one.published, one.name
                demanded = [p["occurrence_ms"] for p in properties if "run_now" in p]
                assert demanded == one.demanded, one.name
                schedule = await broker.schedules.get(one.name)
                assert schedule.published == len(properties)


WEIGHTED = {
    "advance": 8,
    "crash": 4,
    "stay_away": 4,
    "set_back": 2,
    "pause": 2,
    "resume": 4,
    "update": 3,
    "run_now": 2,
    "checkpoint": 2,
}


@pytest.mark.parametrize("seed", seeds(range(15)))
async def test_random_workload_of_schedules_publishes_the_expected_occurrences(
    mock_clock: trio.testing.MockClock, seed: int
) -> None:
    """B2."""
    rng = random.Random(seed)
    config = BrokerConfig(ack_wait_ms=10**11, seed=0)
    async with testing.start(config=config) as world:
        workload = Workload(world, mock_clock, rng)
        await workload.create()
        await play(seed, rng, workload, WEIGHTED, STEPS)
        await workload.check()
