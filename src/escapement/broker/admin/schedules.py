"""The administrative operations (*verbs*) on schedules: list, get, create, pause, delete."""

from __future__ import annotations

from itertools import islice
from typing import Final

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.verb import MAX_ROWS, Verb
from escapement.broker.broker import Broker
from escapement.broker.inbox.scheduler import Scheduler
from escapement.names import NamespaceName, TopicName
from escapement.recurrence import MISSED, Recurrence
from escapement.storage.inbox.schedule import Content, Schedule

# The number of coming times at which a schedule will publish, in the answer about one schedule.
NEXT_TIMES: Final = 10


async def _list_schedules(broker: Broker, given: Arguments) -> Plain:
    scheduler = broker.services.scheduler
    within = given.optional_text("namespace")
    given.end()
    prefix = "" if within is None else NamespaceName.parse(within).full + "/"
    async with broker.answering:
        found = [one for one in scheduler.all() if one.name.startswith(prefix)]
        return [_plain(scheduler, one) for one in found[:MAX_ROWS]]


async def _get_schedule(broker: Broker, given: Arguments) -> Plain:
    scheduler = broker.services.scheduler
    schedule = scheduler.find(_name(given))
    given.end()
    coming: list[int] = []
    if _state(scheduler, schedule) == "active" and schedule.next_ms is not None:
        later = schedule.recurrence.occurrences(schedule.next_ms)
        coming = [schedule.next_ms, *islice(later, NEXT_TIMES - 1)]
    return _plain(scheduler, schedule) | {"coming_ms": coming}


async def _create_schedule(broker: Broker, given: Arguments) -> Plain:
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
    given.end()
    return _plain(scheduler, await scheduler.create(name, topic, recurrence, missed, content))


async def _pause_schedule(broker: Broker, given: Arguments) -> Plain:
    scheduler = broker.services.scheduler
    name = _name(given)
    given.end()
    return _plain(scheduler, await scheduler.set_paused(name, True))


async def _resume_schedule(broker: Broker, given: Arguments) -> Plain:
    scheduler = broker.services.scheduler
    name = _name(given)
    given.end()
    return _plain(scheduler, await scheduler.set_paused(name, False))


async def _delete_schedule(broker: Broker, given: Arguments) -> Plain:
    name = _name(given)
    given.end()
    await broker.services.scheduler.delete(name)
    return {"deleted": name.full}


def _name(given: Arguments) -> TopicName:
    return given.topic_name("schedule", "schedule")


def _state(scheduler: Scheduler, schedule: Schedule) -> str:
    if schedule.name in scheduler.problems:
        return "broken"
    if schedule.paused:
        return "paused"
    return "ended" if schedule.next_ms is None else "active"


def _plain(scheduler: Scheduler, schedule: Schedule) -> dict[str, Plain]:
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
    "schedules.pause": _pause_schedule,
    "schedules.resume": _resume_schedule,
    "schedules.delete": _delete_schedule,
}
