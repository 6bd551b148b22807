"""Publishes what recurs: each occurrence of each schedule exactly once.

The records of all schedules are in memory, in the order of their next times, and the
timekeeper is told the first of these: no schedule has a task. When some are due, one
statement moves them forward and writes their occurrences into the inbox as letters, a
bounded number at a time; the postman carries those into the topics. In memory a schedule
moves when that is durable.

An occurrence is a letter with the source id ``schedule/<id>/<Unix ms>``; its message has
the properties ``schedule`` (the full name) and ``occurrence_ms``. A topic that was deleted
is created again by the next occurrence, as by a publish.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import msgpack
import trio
from sortedcontainers import SortedList

from escapement.broker.limits import BrokerLimits
from escapement.broker.registry.changes import Changes
from escapement.broker.registry.registry import Registry
from escapement.clock import Clock
from escapement.errors import (
    AlreadyExists,
    Busy,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    ShuttingDown,
    StorageUnavailable,
)
from escapement.message import Blobs, MessageBatch
from escapement.names import NamespaceName, TopicName
from escapement.recurrence import Missed, Recurrence, due
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.letters import inbox
from escapement.storage.letters.letter import Letter
from escapement.storage.letters.schedule import (
    Content,
    Schedule,
    advance_schedule,
    create_schedule,
    delete_schedule,
    set_paused,
)

_logger = logging.getLogger(__name__)

# Occurrences written in one transaction, and how much they may weigh together.
_STEP_OCCURRENCES: Final = 1_000
_STEP_BYTES: Final = 4 << 20
# What a letter weighs beside payload and key, generously.
_LETTER_BYTES: Final = 1_024
# How soon it is tried again when the database is away.
_RETRY_MS: Final = 1_000


class _Step(NamedTuple):
    """What one schedule publishes now, and where it goes on."""

    schedule: Schedule
    times: list[int]
    next_ms: int | None

    def passed(self) -> Schedule:
        """The schedule when this is done."""
        return replace(
            self.schedule,
            next_ms=self.next_ms,
            last_ms=self.times[-1] if self.times else self.schedule.last_ms,
            published=self.schedule.published + len(self.times),
        )


class Scheduler:
    """See the module's docstring.

    Args:
      schedules: what there is.
      on_next: told when something is due next, None for never; :meth:`wake` is to follow.
      on_posted: told that there are letters.
    """

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        changes: Changes,
        clock: Clock,
        limits: BrokerLimits,
        schedules: Iterable[Schedule],
        on_next: Callable[[int | None], None],
        on_posted: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._changes = changes
        self._clock = clock
        self._limits = limits
        self._on_next = on_next
        self._on_posted = on_posted
        self._by_name: dict[str, Schedule] = {}
        self._by_id: dict[int, Schedule] = {}
        self._order = SortedList()  # (next_ms, id) of those that are to be published
        self._changing = trio.Lock()  # what is durable and what is here differ while it is held
        self._due = trio.Event()
        self._stopping = False
        self.problems: dict[str, str] = {}  # name -> why it cannot go on
        for schedule in schedules:
            self._enter(schedule)
            self._look_for_zone(schedule)

    # -- what there is ---------------------------------------------------------

    def find(self, name: TopicName) -> Schedule:
        """Raises ``NotFound``."""
        found = self._by_name.get(name.full)
        if found is None:
            raise NotFound(f"there is no schedule {name.full}")
        return found

    def all(self) -> list[Schedule]:
        """Every schedule, by name."""
        return [schedule for _, schedule in sorted(self._by_name.items())]

    def of_namespace(self, name: NamespaceName) -> list[Schedule]:
        """Those that are in a namespace, or publish into it."""
        within = f"{name.full}/"
        return [
            one for one in self.all() if one.name.startswith(within) or one.topic.startswith(within)
        ]

    # -- changing it -----------------------------------------------------------

    async def create(
        self,
        name: TopicName,
        topic: TopicName,
        recurrence: Recurrence,
        missed: Missed,
        content: Content,
    ) -> Schedule:
        """Make a schedule, and its topic if need be. ``every_ms`` counts from now.

        Raises:
          InvalidRequest: what it says cannot be meant, or is never due.
          AlreadyExists: there is one of this name.
          LimitExceeded: there are too many, or what it publishes is too large.
          NotFound: there is no such topic, and topics are not created on first use.
        """
        recurrence.check()
        now_ms = self._clock.now_ms()
        recurrence = replace(recurrence, anchor_ms=now_ms)
        next_ms = recurrence.after(now_ms)
        if next_ms is None:
            raise InvalidRequest("this is never due: look at the expression and at the end")
        size_bytes = len(content.payload) + len(content.key)
        if size_bytes > self._limits.schedule_bytes:
            raise LimitExceeded(
                f"a schedule may publish {self._limits.schedule_bytes} bytes, not {size_bytes}"
            )
        await self._registry.ensure_topic(topic)
        async with self._changing:
            if name.full in self._by_name:
                raise AlreadyExists(f"the schedule {name.full} exists already")
            if len(self._by_name) >= self._limits.schedules:
                raise LimitExceeded(f"there are {len(self._by_name)} schedules already")
            schedule = await self._changes.durably(
                lambda connection: create_schedule(
                    connection, name.full, topic.full, recurrence, missed, next_ms, content, now_ms
                )
            )
            self._enter(schedule)
        self._tell()
        return schedule

    async def pause(self, name: TopicName) -> Schedule:
        """Publish nothing until it is resumed. Raises ``NotFound``."""
        return await self._set_paused(name, True)

    async def resume(self, name: TopicName) -> Schedule:
        """Go on with the first occurrence that comes after now. Raises ``NotFound``."""
        return await self._set_paused(name, False)

    async def _set_paused(self, name: TopicName, paused: bool) -> Schedule:
        async with self._changing:
            old = self.find(name)
            if old.paused is paused:
                return old
            next_ms = old.next_ms
            if not paused:
                # Not before what was published by a clock that has been set back since.
                next_ms = old.recurrence.after(max(self._clock.now_ms(), old.last_ms or 0))
            await self._changes.durably(
                lambda connection: set_paused(connection, old.id, paused, next_ms)
            )
            new = replace(old, paused=paused, next_ms=next_ms)
            self._leave(old)
            self._enter(new)
        self._tell()
        return new

    async def delete(self, name: TopicName) -> None:
        """Forget it; what it has published goes its way. Raises ``NotFound``."""
        async with self._changing:
            schedule = self.find(name)
            await self._changes.durably(lambda connection: delete_schedule(connection, schedule.id))
            self._leave(schedule)
        self._tell()

    def _enter(self, schedule: Schedule) -> None:
        self._by_name[schedule.name] = self._by_id[schedule.id] = schedule
        if schedule.next_ms is not None and not schedule.paused:
            self._order.add((schedule.next_ms, schedule.id))

    def _leave(self, schedule: Schedule) -> None:
        del self._by_name[schedule.name], self._by_id[schedule.id]
        if schedule.next_ms is not None:
            self._order.discard((schedule.next_ms, schedule.id))
        self.problems.pop(schedule.name, None)

    # -- publishing ------------------------------------------------------------

    def wake(self) -> None:
        """Something is due."""
        self._due.set()

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopping = True
        self._tell()

    async def run(self) -> None:
        """Publish what is due, for ever."""
        self._tell()
        failing = False
        while True:
            await self._due.wait()
            self._due = trio.Event()
            try:
                while await self._publish():
                    pass
            except (StorageUnavailable, Busy, ShuttingDown) as error:
                # Said once: an outage may be long.
                level = logging.DEBUG if failing else logging.WARNING
                _logger.log(level, "schedules wait: %s", error)
                failing = True
                self._on_next(self._clock.now_ms() + _RETRY_MS)
            else:
                failing = False
                self._tell()

    def _tell(self) -> None:
        next_ms = int(self._order[0][0]) if self._order and not self._stopping else None
        self._on_next(next_ms)

    async def _publish(self) -> bool:
        """Publish some of what is due; whether there may be more."""
        async with self._changing:
            steps = self._plan(self._clock.now_ms())
            if not steps or self._stopping:
                return False
            moved = await self._changes.durably(partial(self._write, steps, self._clock.now_ms()))
            for step in steps:
                if step.schedule.id in moved:
                    self._leave(step.schedule)
                    self._enter(step.passed())
                else:
                    self._give_up(step.schedule, "its row was changed by hand; restart the broker")
        self._on_posted()
        return True

    def _plan(self, now_ms: int) -> list[_Step]:
        """What to publish in one transaction: the first that are due, as many as fit."""
        steps: list[_Step] = []
        left, left_bytes = _STEP_OCCURRENCES, _STEP_BYTES
        for _, id in list(islice(self._order.irange(maximum=(now_ms + 1,)), _STEP_OCCURRENCES)):
            schedule = self._by_id[id]
            assert schedule.next_ms is not None
            weight = schedule.size_bytes + _LETTER_BYTES
            fits = min(left, left_bytes // weight)
            if steps and fits < 1:
                break
            try:
                times, next_ms = due(
                    schedule.recurrence, schedule.next_ms, now_ms, schedule.missed, max(fits, 1)
                )
            except InvalidRequest as error:
                # It was checked when it was made, and at the start.
                self._give_up(schedule, str(error))
                continue
            steps.append(_Step(schedule, times, next_ms))
            left -= max(len(times), 1)
            left_bytes -= weight * len(times)
        return steps

    def _look_for_zone(self, schedule: Schedule) -> None:
        """Say at a start that its time zone is gone, and not only when it is due."""
        if schedule.next_ms is not None and not schedule.paused:
            try:
                schedule.recurrence.check_zone()
            except InvalidRequest as error:
                self._give_up(schedule, str(error))

    def _give_up(self, schedule: Schedule, why: str) -> None:
        _logger.error("the schedule %s cannot go on: %s", schedule.name, why)
        self._order.remove((schedule.next_ms, schedule.id))
        self.problems[schedule.name] = why

    def _write(self, steps: list[_Step], now_ms: int, connection: Connection) -> set[int]:
        """The statement: which schedules it moved. Runs in a thread, perhaps again."""
        letters: list[Letter] = []
        moved = set()
        for schedule, times, next_ms in steps:
            content = advance_schedule(connection, schedule, times, next_ms)
            if content is not None:
                moved.add(schedule.id)
                letters += [_letter(schedule, content, at_ms) for at_ms in times]
        inbox.insert(self._engine, connection, letters, now_ms)
        return moved


def _letter(schedule: Schedule, content: Content, at_ms: int) -> Letter:
    properties: bytes = msgpack.packb({"schedule": schedule.name, "occurrence_ms": at_ms})
    batch = MessageBatch(
        Blobs.of([content.payload]),
        Blobs.of([content.key]) if content.key else None,
        Blobs.of([properties]),
    )
    return Letter(schedule.topic, f"schedule/{schedule.id}/{at_ms}", batch.encode(), 1)
