"""Schedules, whose occurrences are read from the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.client.administration.schedules import Schedule
from escapement.clock import unix_ms
from escapement.errors import AlreadyExists, EscapementError
from simulation.checks.scheduling import Change, ChangedSchedule, Occurrences, ScheduleCheck
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.features.feature import KEPT, REPEATED_S, Feature, Topics
from simulation.world import World

_TOPIC: Final = "ticks"
_HOUR_MS: Final = 3_600_000
# The intervals divide a day, so that cron expressions have them too.
_HOURS: Final = (8, 12)
_CHANGED: Final = "changed"
_MEAN_S: Final = 30 * HOUR_S


class Scheduling(Feature):
    """Creates schedules, changes one of them, and reads their published messages now and then."""

    topics: ClassVar[Topics] = {_TOPIC: {"keeper": KEPT}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check = ScheduleCheck(3 * MOST_SKEW_MS)
        self._changed = ChangedSchedule(_CHANGED, 3 * MOST_SKEW_MS)
        self._next = 0  # the first offset that was not read

    def heal(self) -> None:
        self.check.until_ms = self._history.now_ms()

    async def run(self, end_ms: int) -> None:
        hours = self._rng.choice(_HOURS)
        await self._create("cron", hours, cron=_cron(hours))
        hours = self._rng.choice(_HOURS)
        await self._create("interval", hours, every=timedelta(hours=hours))
        await self._create_changed()
        while self._history.now_ms() < end_ms:
            await trio.sleep(REPEATED_S + self._rng.uniform(0, 2 * _MEAN_S))
            acts = [self._pause_or_resume, self._update, self._run_now, self.look]
            (act,) = self._rng.choices(acts, [5, 3, 3, 4])
            await act()

    async def _create(self, name: str, hours: int, **times: Any) -> None:
        called_ms = await self._create_surely(name, **times)
        # With an interval it began at any time until now.
        is_aligned = "cron" in times
        answered_ms = self._history.now_ms()
        from_ms = answered_ms if is_aligned else called_ms
        schedule = Occurrences(name, hours * _HOUR_MS, from_ms, is_aligned, answered_ms)
        self.check.schedules.append(schedule)

    async def _create_surely(self, name: str, **times: Any) -> int:
        """Create a schedule some time later. Return the time of the first request."""
        await trio.sleep(self._rng.uniform(0, 24 * HOUR_S))

        async def create(client: escapement.Broker) -> None:
            try:
                await client.schedules.create(name, _TOPIC, b"tick", missed="all", **times)
            except AlreadyExists:
                return  # an earlier request has created it

        called_ms = self._history.now_ms()
        await self._ask_surely(_TOPIC, create)
        return called_ms

    # -- the schedule that is changed ------------------------------------------------

    async def _create_changed(self) -> None:
        hours = self._rng.choice(_HOURS)
        called_ms = await self._create_surely(_CHANGED, cron=_cron(hours))
        step_ms = hours * _HOUR_MS
        until_ms = self._history.now_ms() + MOST_SKEW_MS
        next_ms = until_ms - until_ms % step_ms + step_ms
        self._changed.changes.append(Change(step_ms, False, called_ms, next_ms))
        self.check.changed = self._changed

    async def _pause_or_resume(self) -> None:
        last = self._changed.changes[-1]
        if last.is_paused:
            await self._change(
                last.step_ms, False, lambda client: client.schedules.resume(_CHANGED)
            )
        else:
            await self._change(last.step_ms, True, lambda client: client.schedules.pause(_CHANGED))

    async def _update(self) -> None:
        """Give the schedule a cron expression or an interval."""
        hours, is_aligned = self._rng.choice(_HOURS), self._rng.random() < 0.5

        async def update(client: escapement.Broker) -> Schedule:
            if is_aligned:
                return await client.schedules.update(_CHANGED, cron=_cron(hours))
            return await client.schedules.update(_CHANGED, every=timedelta(hours=hours))

        await self._change(hours * _HOUR_MS, self._changed.changes[-1].is_paused, update)

    async def _change(
        self,
        step_ms: int,
        is_paused: bool,
        ask: Callable[[escapement.Broker], Awaitable[Schedule]],
    ) -> None:
        change = Change(step_ms, is_paused, self._history.now_ms())
        self._changed.changes.append(change)

        async def ask_once(client: escapement.Broker) -> None:
            answer = await ask(client)
            if is_paused:
                change.next_ms = 0 if answer.last is None else unix_ms(answer.last) + 1
            else:
                assert answer.next is not None
                change.next_ms = unix_ms(answer.next)

        await self._ask_surely(_TOPIC, ask_once)
        self._history.counts["schedule changes"] += 1

    async def _run_now(self) -> None:
        """Publish a message on demand; a request without an answer may publish it, too."""
        self._changed.asked += 1
        try:
            async with self._world.connect() as client:
                await client.schedules.run_now(_CHANGED)
            self._changed.answered += 1
            self._history.counts["schedules run"] += 1
        except EscapementError as error:
            if not error.retryable:
                raise

    async def look(self) -> None:
        """Read the occurrences that are published since the last look."""
        found = {
            f"public/default/{one.name}": one.found
            for one in [*self.check.schedules, self._changed]
        }

        async def read(client: escapement.Broker) -> None:
            async for page in client.read(_TOPIC, self._next):
                for entry in page:
                    name, at_ms = entry.properties["schedule"], entry.properties["occurrence_ms"]
                    self._next = entry.offset + 1
                    if "run_now" in entry.properties:
                        self._changed.demanded += 1
                        continue
                    found[name][at_ms] += 1
                    self._history.counts["occurrences"] += 1
                    if entry.published_ms < at_ms:
                        self.check.early.append(
                            f"schedule: occurrence {at_ms} of {name} was published early"
                        )

        await self._ask_surely(_TOPIC, read)


def _cron(hours: int) -> str:
    """Return a cron expression with a period in hours."""
    return f"0 */{hours} * * *"
