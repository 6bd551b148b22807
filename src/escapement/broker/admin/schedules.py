"""The administrative operations (*verbs*) on schedules: list, create, update and others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, Literal, TypedDict

from escapement.access.pattern import Pattern
from escapement.access.rights import Need
from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.result import Deleted
from escapement.broker.admin.verb import MAX_ROWS, Verb
from escapement.broker.broker import Broker
from escapement.broker.inbox.scheduler import Changed, Scheduler
from escapement.errors import InvalidRequest
from escapement.names import NamespaceName, TopicName
from escapement.recurrence import MISSED, Missed, Recurrence
from escapement.storage.inbox.schedule import Content, Schedule

# The number of coming times at which a schedule will publish, in the answer about one schedule.
NEXT_TIMES: Final = 10
# The most of these times in one answer. Each takes about 0.1 ms to compute.
MOST_TIMES: Final = 100


State = Literal["active", "paused", "ended", "broken"]


class ListedSchedule(TypedDict):
    """The settings and the state of a schedule."""

    schedule: str
    topic: str
    cron: str | None
    timezone: str | None
    every_ms: int | None
    until_at_ms: int | None
    missed: Missed
    spread_ms: int | None
    state: State
    problem: str | None
    next_at_ms: int | None
    last_at_ms: int | None
    published: int
    size_bytes: int
    created_at_ms: int


class ComingSchedule(ListedSchedule):
    """A schedule, and its next times."""

    coming_ms: list[int]


async def _list_schedules(broker: Broker, given: Arguments) -> list[ListedSchedule]:
    scheduler = broker.services.scheduler
    within = given.optional_text("namespace")
    given.end()
    prefix = "" if within is None else NamespaceName.parse(within).full + "/"
    seen = given.caller.coverage("peek")
    async with broker.answering:
        found = [one for one in scheduler.all() if one.name.startswith(prefix) and one.name in seen]
        return [_plain(scheduler, one) for one in found[:MAX_ROWS]]


async def _get_schedule(broker: Broker, given: Arguments) -> ComingSchedule:
    scheduler = broker.services.scheduler
    schedule = scheduler.find(_name(given))
    given.end()
    return {**_plain(scheduler, schedule), "coming_ms": _coming(scheduler, schedule, NEXT_TIMES)}


async def _create_schedule(broker: Broker, given: Arguments) -> ListedSchedule:
    scheduler = broker.services.scheduler
    name = _name(given)
    topic = given.topic_name("topic")
    recurrence = Recurrence(
        cron=given.optional_text("cron") or "",
        timezone=given.optional_text("timezone") or "UTC",
        every_ms=given.optional_number("every_ms") or 0,
        until_ms=given.optional_number("until_ms"),
    )
    missed = given.choice("missed", MISSED)
    content = Content(given.optional_blob("payload"), given.optional_blob("key"))
    spread_ms = given.optional_offset("spread_ms") or 0
    given.end()
    made = await scheduler.create(name, topic, recurrence, missed, content, spread_ms)
    return _plain(scheduler, made)


async def _update_schedule(broker: Broker, given: Arguments) -> ListedSchedule:
    scheduler = broker.services.scheduler
    name = _name(given)
    topic = given.optional_text("topic")
    changes = Changed(
        topic=None if topic is None else TopicName.parse(topic),
        cron=given.optional_text("cron"),
        timezone=given.optional_text("timezone"),
        every_ms=given.optional_number("every_ms"),
        until_ms=given.optional_offset("until_ms"),
        missed=given.optional_choice("missed", MISSED),
        payload=given.blob_or_none("payload"),
        key=given.blob_or_none("key"),
        spread_ms=given.optional_offset("spread_ms"),
    )
    given.end()
    if changes == Changed():
        raise InvalidRequest("schedules.update needs at least one change")
    return _plain(scheduler, await scheduler.update(name, changes, _producer(given)))


async def _run_schedule_now(broker: Broker, given: Arguments) -> ListedSchedule:
    scheduler = broker.services.scheduler
    name = _name(given)
    given.end()
    return _plain(scheduler, await scheduler.run_now(name, _producer(given)))


async def _next_occurrences(broker: Broker, given: Arguments) -> ComingSchedule:
    scheduler = broker.services.scheduler
    schedule = scheduler.find(_name(given))
    count = min(given.optional_number("count") or NEXT_TIMES, MOST_TIMES)
    given.end()
    coming = _coming(scheduler, schedule, count)
    return {**_plain(scheduler, schedule), "coming_ms": coming}


async def _pause_schedule(broker: Broker, given: Arguments) -> ListedSchedule:
    scheduler = broker.services.scheduler
    name = _name(given)
    given.end()
    return _plain(scheduler, await scheduler.set_paused(name, True))


async def _resume_schedule(broker: Broker, given: Arguments) -> ListedSchedule:
    scheduler = broker.services.scheduler
    name = _name(given)
    given.end()
    return _plain(scheduler, await scheduler.set_paused(name, False))


async def _delete_schedule(broker: Broker, given: Arguments) -> Deleted:
    name = _name(given)
    given.end()
    await broker.services.scheduler.delete(name)
    return {"deleted": name.full}


def _producer(given: Arguments) -> Callable[[str], None]:
    """Return a check that the caller may publish to the topic of a schedule.

    The schedule may be of another role, and its topic is not in the request.
    """
    return lambda topic: given.caller.check([Need("produce", Pattern(topic))])


def _name(given: Arguments) -> TopicName:
    return given.topic_name("schedule", "schedule")


def _coming(scheduler: Scheduler, schedule: Schedule, count: int) -> list[int]:
    """Return the next times of a schedule; none unless it is active."""
    if _state(scheduler, schedule) != "active" or schedule.next_ms is None:
        return []
    later = schedule.recurrence.occurrences(schedule.next_ms)
    return [schedule.next_ms, *islice(later, count - 1)]


def _state(scheduler: Scheduler, schedule: Schedule) -> State:
    if schedule.name in scheduler.problems:
        return "broken"
    if schedule.paused:
        return "paused"
    return "ended" if schedule.next_ms is None else "active"


def _plain(scheduler: Scheduler, schedule: Schedule) -> ListedSchedule:
    recurrence = schedule.recurrence
    state = _state(scheduler, schedule)
    return {
        "schedule": schedule.name,
        "topic": schedule.topic,
        "cron": recurrence.cron or None,
        "timezone": recurrence.timezone if recurrence.cron else None,
        "every_ms": recurrence.every_ms or None,
        "until_at_ms": recurrence.until_ms,
        "missed": schedule.missed,
        "spread_ms": schedule.spread_ms or None,
        "state": state,
        "problem": scheduler.problems.get(schedule.name),
        "next_at_ms": schedule.next_ms if state == "active" else None,
        "last_at_ms": schedule.last_ms,
        "published": schedule.published,
        "size_bytes": schedule.size_bytes,
        "created_at_ms": schedule.created_at_ms,
    }


VERBS: Final[dict[str, Verb]] = {
    "schedules.list": _list_schedules,
    "schedules.get": _get_schedule,
    "schedules.create": _create_schedule,
    "schedules.update": _update_schedule,
    "schedules.run_now": _run_schedule_now,
    "schedules.next": _next_occurrences,
    "schedules.pause": _pause_schedule,
    "schedules.resume": _resume_schedule,
    "schedules.delete": _delete_schedule,
}
