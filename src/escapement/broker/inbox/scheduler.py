"""The scheduler: publishes each occurrence of each schedule exactly once.

A *schedule* publishes the same message again and again; an *occurrence* is one of its times. The
records of all schedules are in memory, ordered by their next occurrences. The timekeeper knows the
first of these times; no schedule has a task of its own. When some schedules are due, one statement
in a group commit *moves* each of their rows in the table ``schedules`` to its next occurrence, and
writes the passed occurrences into the inbox, as one entry for each topic. The inbox relay brings
the entries into the topics. The records in memory follow when the statement is durable.

Schedules leave time for other work, however many there are. A *turn* publishes a bounded number of
occurrences for a bounded number of topics, and is followed by a rest
(``BrokerLimits.schedule_...``). The next turn publishes the occurrences that fall due during the
rest.

``occurrences.py`` makes the inbox entries. If the topic was deleted, the next occurrence creates it
again, as a publish does.

An update of a schedule first publishes its due occurrences. Its next occurrence is then the first
of the new times after now and after the last published one. So no occurrence is lost or repeated.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import trio
from sortedcontainers import SortedList

from escapement.broker.inbox.occurrences import Occurrence, demanded_entry, inbox_entry
from escapement.broker.limits import BrokerLimits
from escapement.broker.outage import Outage
from escapement.broker.registry.changes import Changes
from escapement.broker.registry.registry import Registry
from escapement.clock import Clock
from escapement.durations import format as duration_text
from escapement.errors import (
    AlreadyExists,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from escapement.event_log import EventLog
from escapement.names import NamespaceName, TopicName
from escapement.recurrence import Missed, Recurrence, due
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.inbox import inbox
from escapement.storage.inbox.schedule import (
    Content,
    Move,
    Schedule,
    advance_schedules,
    content_of,
    count_published,
    create_schedule,
    delete_schedule,
    set_paused,
    update_schedule,
)

_log = EventLog(__name__)

# A turn examines up to this many times as many schedules as it may publish occurrences, because
# some are for topics that have to wait for the next turn.
_LOOK_AHEAD: Final = 4
# An upper estimate of the size of a published message without payload and key.
_OCCURRENCE_BYTES: Final = 1_024
# The pause before a retry while the database is unavailable.
_RETRY_MS: Final = 1_000


class Changed(NamedTuple):
    """Changes of a schedule. None means that a value stays.

    A new cron expression replaces an interval, and an interval a cron expression. ``until_ms`` 0
    removes the end.
    """

    topic: TopicName | None = None
    cron: str | None = None
    timezone: str | None = None
    every_ms: int | None = None
    until_ms: int | None = None
    missed: Missed | None = None
    payload: bytes | None = None
    key: bytes | None = None
    spread_ms: int | None = None

    def recurrence_of(self, schedule: Schedule, now_ms: int) -> Recurrence:
        """Return the changed recurrence of a schedule. A new interval counts from ``now_ms``."""
        found = schedule.recurrence
        if self.cron is not None:
            found = replace(found, cron=self.cron, every_ms=self.every_ms or 0)
        elif self.every_ms is not None:
            found = replace(found, cron="", timezone="UTC", every_ms=self.every_ms)
        if self.timezone is not None:
            if not found.cron:
                raise InvalidRequest("a time zone needs a cron expression")
            found = replace(found, timezone=self.timezone)
        if self.until_ms is not None:
            found = replace(found, until_ms=self.until_ms or None)
        if found.every_ms != schedule.recurrence.every_ms:
            found = replace(found, anchor_ms=now_ms)
        return found


class Scheduler:
    """The schedules of a broker, and the task that publishes their occurrences.

    Args:
      schedules: the schedules in the database.
      on_next: called with the time at which :meth:`wake` must be called; None for never.
      on_posted: called when entries were written to the inbox.
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
        self._counts: Counter[str] = Counter()  # number of schedules, by namespace
        self._order = SortedList()  # (next_ms, id) of schedules that will publish again
        self._changing = trio.Lock()  # held while memory and database may differ
        self._due = trio.Event()
        self._rest_until_ms = 0  # when the next turn may begin
        self._stopping = False
        self.problems: dict[str, str] = {}  # schedule -> why it cannot continue
        for schedule in schedules:
            self._enter(schedule)
            self._look_for_zone(schedule)

    # -- look-ups --------------------------------------------------------------

    def find(self, name: TopicName) -> Schedule:
        """Return the schedule of this name.

        Raises:
          NotFound: if there is none.
        """
        found = self._by_name.get(name.full)
        if found is None:
            raise NotFound(
                f"there is no schedule {name.full}; `escapement schedule list` shows all schedules"
            )
        return found

    def all(self) -> list[Schedule]:
        """Return all schedules, ordered by name."""
        return [schedule for _, schedule in sorted(self._by_name.items())]

    def of_namespace(self, name: NamespaceName) -> list[Schedule]:
        """Return the schedules that are in a namespace, or that publish into it."""
        within = f"{name.full}/"
        return [
            one for one in self.all() if one.name.startswith(within) or one.topic.startswith(within)
        ]

    # -- changes ---------------------------------------------------------------

    async def create(
        self,
        name: TopicName,
        topic: TopicName,
        recurrence: Recurrence,
        missed: Missed,
        content: Content,
        spread_ms: int = 0,
    ) -> Schedule:
        """Create a schedule, and its topic if necessary.

        Args:
          name: the full name of the schedule, which has the form of a topic name.
          topic: the topic to publish to.
          recurrence: the times to publish at. If it has ``every_ms``, the interval counts from now.
          missed: how to treat occurrences that come too late.
          content: payload and key of each message.
          spread_ms: scatter the due times over this span, from each occurrence on.

        Raises:
          InvalidRequest: the recurrence is invalid or never due, or the spread is too long.
          AlreadyExists: a schedule of this name exists.
          LimitExceeded: there are too many schedules, or the payload is too large.
          NotFound: the topic does not exist, and topics are not created on first use.
        """
        recurrence.check()
        now_ms = self._clock.now_ms()
        recurrence = replace(recurrence, anchor_ms=now_ms)
        next_ms = _first_after(recurrence, now_ms)
        content.check(self._limits.schedule_bytes)
        self._check_spread(spread_ms)
        await self._registry.ensure_topic(topic)
        async with self._changing:
            if name.full in self._by_name:
                raise AlreadyExists(f"schedule {name.full} already exists")
            self._check_room(name.in_namespace)
            schedule = await self._changes.durably(
                lambda connection: create_schedule(
                    connection,
                    name.full,
                    topic.full,
                    recurrence,
                    missed,
                    next_ms,
                    content,
                    now_ms,
                    self._registry.bundle.id,
                    spread_ms,
                )
            )
            self._enter(schedule)
        self._tell()
        return schedule

    def _check_spread(self, spread_ms: int) -> None:
        most_ms = self._limits.max_delay_ms
        if spread_ms > most_ms:
            raise InvalidRequest(
                f"A spread of {duration_text(spread_ms)} is longer than the broker's maximum delay "
                f"of {duration_text(most_ms)}."
            )

    async def update(
        self, name: TopicName, changes: Changed, check_topic: Callable[[str], None]
    ) -> Schedule:
        """Change a schedule, after publishing its due occurrences.

        Args:
          check_topic: raises an error if the caller may not publish to this topic, which is the one
            that the schedule has after the change.

        Raises:
          NotFound: if there is no schedule of this name, or its new topic does not exist and topics
            are not created on first use.
          InvalidRequest: the new recurrence is invalid or never due, or the spread is too long.
          LimitExceeded: the payload is too large.
        """
        self._check_spread(changes.spread_ms or 0)
        if changes.topic is not None:
            await self._registry.ensure_topic(changes.topic)
        async with self._changing:
            changes.recurrence_of(self.find(name), 0).check()
            await self._catch_up(self.find(name))
            old, now_ms = self.find(name), self._clock.now_ms()
            recurrence, next_ms = changes.recurrence_of(old, now_ms), old.next_ms
            if recurrence != old.recurrence:
                next_ms = _first_after(recurrence, max(now_ms, old.last_ms or 0))
            new = replace(
                old,
                topic=old.topic if changes.topic is None else changes.topic.full,
                recurrence=recurrence,
                missed=changes.missed or old.missed,
                next_ms=next_ms,
                spread_ms=old.spread_ms if changes.spread_ms is None else changes.spread_ms,
            )
            check_topic(new.topic)
            most_bytes = self._limits.schedule_bytes
            new = await self._changes.durably(
                lambda connection: update_schedule(
                    connection, new, changes.payload, changes.key, most_bytes
                )
            )
            self._leave(old)
            self._enter(new)
        self._tell()
        return new

    async def _catch_up(self, schedule: Schedule) -> None:
        """Publish the due occurrences of a schedule. The caller holds ``_changing``."""
        now_ms, most = self._clock.now_ms(), self._limits.schedule_turn_occurrences
        waits = schedule.paused or schedule.name in self.problems
        while not waits and schedule.next_ms is not None and schedule.next_ms <= now_ms:
            fits = self._limits.schedule_turn_bytes // (schedule.size_bytes + _OCCURRENCE_BYTES)
            times, next_ms = due(
                schedule.recurrence,
                schedule.next_ms,
                now_ms,
                schedule.missed,
                max(min(most, fits), 1),
            )
            await self._carry_out([Move(schedule, times, next_ms)])
            waits = schedule.name in self.problems
            self._on_posted()

    async def run_now(self, name: TopicName, check_topic: Callable[[str], None]) -> Schedule:
        """Publish a message of a schedule now, whatever its state. Its occurrences do not change.

        Args:
          check_topic: raises an error if the caller may not publish to this topic.

        Raises:
          NotFound: if there is no schedule of this name.
        """
        demand = secrets.token_hex(8)  # chosen once, so that a repeated transaction adds no entry
        async with self._changing:
            schedule, now_ms = self.find(name), self._clock.now_ms()
            check_topic(schedule.topic)

            def write(connection: Connection) -> None:
                content = content_of(connection, schedule.id)
                entry = demanded_entry(schedule, content, now_ms, demand)
                inbox.insert(self._engine, connection, [entry], now_ms)
                count_published(connection, schedule.id)

            await self._changes.durably(write)
            schedule.published += 1
        self._on_posted()
        return schedule

    def _check_room(self, namespace: NamespaceName) -> None:
        """Raise ``LimitExceeded`` if the broker or the namespace may have no further schedule."""
        if len(self._by_name) >= self._limits.schedules:
            raise LimitExceeded(
                f"the broker has its maximum of {len(self._by_name)} schedules; delete some first"
            )
        most, count = self._registry.namespaces.policy(namespace).max_schedules, self._counts
        if most and count[namespace.full] >= most:
            raise LimitExceeded(
                f"the namespace {namespace.full} has {count[namespace.full]} schedules, and its "
                f"max_schedules is {most}: delete some, or raise it with `escapement admin "
                f"namespaces update {namespace.full} --max-schedules N`"
            )

    async def set_paused(self, name: TopicName, paused: bool) -> Schedule:
        """Pause a schedule, or resume it with its first occurrence after now.

        Raises:
          NotFound: if there is no schedule of this name.
        """
        async with self._changing:
            # Even if nothing changes, it is written. Otherwise a broker that has lost its lease
            # would confirm a pause that its successor has ended.
            old = self.find(name)
            next_ms = old.next_ms
            if old.paused and not paused:
                # If the clock was set back, the last published occurrence is later than now. The
                # next one must come after it.
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
        """Delete a schedule; its published messages stay.

        Raises:
          NotFound: if there is no schedule of this name.
        """
        async with self._changing:
            schedule = self.find(name)
            await self._changes.durably(lambda connection: delete_schedule(connection, schedule.id))
            self._leave(schedule)
        self._tell()

    def _enter(self, schedule: Schedule) -> None:
        self._by_name[schedule.name] = self._by_id[schedule.id] = schedule
        self._counts[_namespace_of(schedule)] += 1
        if schedule.next_ms is not None and not schedule.paused:
            self._order.add((schedule.next_ms, schedule.id))

    def _leave(self, schedule: Schedule) -> None:
        del self._by_name[schedule.name], self._by_id[schedule.id]
        self._counts[_namespace_of(schedule)] -= 1
        if schedule.next_ms is not None:
            self._order.discard((schedule.next_ms, schedule.id))
        self.problems.pop(schedule.name, None)

    # -- publishing ------------------------------------------------------------

    def wake(self) -> None:
        """Wake the task to take a turn, because a schedule is due."""
        self._due.set()

    def rewind(self) -> None:
        """Plan the next turn by the wall clock, which was set back."""
        self._rest_until_ms = 0
        self._tell()

    def stop(self) -> None:
        """Start no further turn, because the broker stops."""
        self._stopping = True
        self._tell()

    async def run(self) -> None:
        """Publish due occurrences, forever."""
        self._tell()
        outage = Outage("schedule.waiting", "schedules wait")
        while True:
            await self._due.wait()
            self._due = trio.Event()
            with outage:
                await self._publish()
            if outage.goes_on:
                self._on_next(self._clock.now_ms() + _RETRY_MS)
            else:
                self._tell()

    def _tell(self) -> None:
        next_ms = None
        if self._order and not self._stopping:
            next_ms = max(int(self._order[0][0]), self._rest_until_ms)
        self._on_next(next_ms)

    async def _publish(self) -> None:
        """Take a turn: write some of the due occurrences into the inbox."""
        async with self._changing:
            moves = self._plan(self._clock.now_ms())
            if not moves or self._stopping:
                return
            await self._carry_out(moves)
            self._rest_until_ms = self._clock.now_ms() + self._rest_ms(moves)
        self._on_posted()

    async def _carry_out(self, moves: list[Move]) -> None:
        """Write the occurrences of some moves into the inbox, durably."""
        now_ms = self._clock.now_ms()
        undelayed = frozenset(
            one.schedule.topic
            for one in moves
            if one.schedule.spread_ms and not self._takes_delays(one.schedule.topic)
        )
        moved = await self._changes.durably(partial(self._write, moves, now_ms, undelayed))
        for move in moves:
            self._order.remove((move.schedule.next_ms, move.schedule.id))
        self._move([move for move in moves if move.schedule.id in moved])
        for move in moves:
            if move.schedule.id not in moved:
                self._give_up(move.schedule, "its row was changed by hand; restart the broker")

    def _takes_delays(self, topic: str) -> bool:
        namespace = self._registry.namespaces.get(TopicName.parse(topic).in_namespace)
        return namespace is None or namespace.delays_enabled

    def _rest_ms(self, moves: list[Move]) -> int:
        """Return how long to rest after a turn.

        The rest grows with the number of topics, because each costs an append.
        """
        topics = len({move.schedule.topic for move in moves})
        return max(self._limits.schedule_rest_ms, self._limits.schedule_topic_rest_ms * topics)

    def _move(self, moves: list[Move]) -> None:
        """Apply moves that are durable in the database to the records in memory."""
        for move in moves:
            schedule = move.schedule
            schedule.next_ms, schedule.last_ms = move.next_ms, move.last_ms
            schedule.published += len(move.times)
        self._order.update(
            (move.next_ms, move.schedule.id) for move in moves if move.next_ms is not None
        )

    def _plan(self, now_ms: int) -> list[Move]:
        """Return the moves of one turn: the earliest due occurrences, within the limits of a turn.

        A turn publishes to a limited number of topics, those of the earliest schedules. Schedules
        for other topics wait for a later turn.
        """
        moves: list[Move] = []
        topics: set[str] = set()
        limits = self._limits
        left, left_bytes = limits.schedule_turn_occurrences, limits.schedule_turn_bytes
        for _, id in list(islice(self._order.irange(maximum=(now_ms + 1,)), _LOOK_AHEAD * left)):
            schedule = self._by_id[id]
            if schedule.topic not in topics and len(topics) >= limits.schedule_turn_topics:
                continue
            assert schedule.next_ms is not None
            weight = schedule.size_bytes + _OCCURRENCE_BYTES
            fits = min(left, left_bytes // weight)
            topics.add(schedule.topic)
            if moves and fits < 1:
                break
            try:
                times, next_ms = due(
                    schedule.recurrence, schedule.next_ms, now_ms, schedule.missed, max(fits, 1)
                )
            except InvalidRequest as error:
                # The schedule was valid at the start of the broker. A system update may have
                # removed its time zone since.
                self._give_up(schedule, str(error))
                continue
            moves.append(Move(schedule, times, next_ms))
            left -= max(len(times), 1)
            left_bytes -= weight * len(times)
        return moves

    def _look_for_zone(self, schedule: Schedule) -> None:
        """Report a missing time zone when the broker starts, not only when the schedule is due."""
        if schedule.next_ms is not None and not schedule.paused:
            try:
                schedule.recurrence.zone()
            except InvalidRequest as error:
                self._give_up(schedule, str(error))

    def _give_up(self, schedule: Schedule, why: str) -> None:
        """Stop publishing a schedule, and report the reason."""
        self._order.discard((schedule.next_ms, schedule.id))
        _log.error(
            "schedule.stopped",
            "schedule %s cannot continue: %s",
            schedule.name,
            why,
            schedule=schedule.name,
        )
        self.problems[schedule.name] = why

    def _write(
        self, moves: list[Move], now_ms: int, undelayed: frozenset[str], connection: Connection
    ) -> set[int]:
        """Move the rows of schedules and write their inbox entries, inside a group commit.

        Return the ids of the schedules that were moved: those whose row was as expected. Runs in a
        thread, and may be repeated with another transaction.

        Args:
          undelayed: the topics that take no due times. Their messages are not spread.
        """
        contents = advance_schedules(self._engine.dialect, connection, moves)
        by_topic: dict[str, list[Occurrence]] = {}
        for schedule, times, _ in moves:
            if schedule.id in contents:
                coming = by_topic.setdefault(schedule.topic, [])
                coming += [(at_ms, schedule) for at_ms in times]
        until_ms = now_ms + self._limits.max_delay_ms
        inbox_entries = [
            inbox_entry(topic, coming, contents, 0 if topic in undelayed else until_ms)
            for topic, coming in by_topic.items()
            if coming
        ]
        inbox.insert(self._engine, connection, inbox_entries, now_ms)
        return set(contents)


def _first_after(recurrence: Recurrence, after_ms: int) -> int:
    """Return the first occurrence after a time. Raises ``InvalidRequest`` if there is none."""
    next_ms = recurrence.after(after_ms)
    if next_ms is None:
        raise InvalidRequest("this schedule is never due; check its recurrence and its end")
    return next_ms


def _namespace_of(schedule: Schedule) -> str:
    return schedule.name.rpartition("/")[0]
