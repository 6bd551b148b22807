"""Schedules, whose occurrences are read from the log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.errors import AlreadyExists
from simulation.checks.scheduling import Occurrences, ScheduleCheck
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.features.feature import KEPT, Feature, Topics
from simulation.world import World

_TOPIC: Final = "ticks"
_HOUR_MS: Final = 3_600_000
# The intervals divide a day, so that cron expressions have them too.
_HOURS: Final = (8, 12)
_LOOK_S: Final = 60 * HOUR_S


class Scheduling(Feature):
    """Creates two schedules, and reads their published messages now and then."""

    topics: ClassVar[Topics] = {_TOPIC: {"keeper": KEPT}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = ScheduleCheck(3 * MOST_SKEW_MS)
        self._next = 0  # the first offset that was not read

    def heal(self) -> None:
        self.check.until_ms = self._history.now_ms()

    async def run(self, end_ms: int) -> None:
        hours = self._rng.choice(_HOURS)
        await self._create("cron", hours, cron=f"0 */{hours} * * *")
        hours = self._rng.choice(_HOURS)
        await self._create("interval", hours, every=timedelta(hours=hours))
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _LOOK_S))
            await self.look()

    async def _create(self, name: str, hours: int, **times: Any) -> None:
        await trio.sleep(self._rng.uniform(0, 24 * HOUR_S))

        async def create(client: escapement.Broker) -> None:
            try:
                await client.schedules.create(name, _TOPIC, b"tick", missed="all", **times)
            except AlreadyExists:
                return  # an earlier request has created it

        called_ms = self._history.now_ms()
        await self._ask_surely(_TOPIC, create)
        # With an interval it began at any time until now.
        is_aligned = "cron" in times
        answered_ms = self._history.now_ms()
        from_ms = answered_ms if is_aligned else called_ms
        schedule = Occurrences(name, hours * _HOUR_MS, from_ms, is_aligned, answered_ms)
        self.check.schedules.append(schedule)

    async def look(self) -> None:
        """Read the occurrences that are published since the last look."""
        schedules = {f"public/default/{one.name}": one for one in self.check.schedules}

        async def read(client: escapement.Broker) -> None:
            async for page in client.read(_TOPIC, self._next):
                for entry in page:
                    schedule = schedules[entry.properties["schedule"]]
                    at_ms = entry.properties["occurrence_ms"]
                    schedule.found[at_ms] += 1
                    self._history.counts["occurrences"] += 1
                    if entry.published_ms < at_ms:
                        schedule.early.append(f"schedule: occurrence {at_ms} was published early")
                    self._next = entry.offset + 1

        await self._ask_surely(_TOPIC, read)
