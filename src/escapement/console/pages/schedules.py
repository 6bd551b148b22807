"""The schedules: a list, and one schedule with its next occurrences, history and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import msgspec
from starlette.responses import Response

from escapement.console.reading.schedule_history import history
from escapement.console.text.clock_changes import occurrences
from escapement.console.text.cron_words import words
from escapement.console.text.times import zone_of
from escapement.console.visit.view import Page, View
from escapement.durations import format as duration_text
from escapement.errors import InvalidRequest

State = Literal["active", "paused", "ended", "broken"]

# The schedules of one page.
_ROWS: Final = 100
# The occurrences that a page shows.
NEXT: Final = 5
# The notice after each action.
_ACTIONS: Final = {
    "pause": "{name} is paused. It publishes nothing until it is resumed.",
    "resume": "{name} is active. It publishes its next occurrence.",
    "run_now": "{name} has published a message. Its occurrences stay as they are.",
}
ONE: Final = "/schedules/{tenant}/{namespace}/{name}"


class Query(msgspec.Struct):
    """The filter of the list. ``after`` is the name of the last schedule of the page before."""

    namespace: str = ""
    state: State | None = None
    after: str = ""


class Confirmation(msgspec.Struct):
    """The name of a schedule, typed to delete it."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a schedule as texts. ``words`` is "" for an expression without words."""

    words: str
    expression: str
    zone: ZoneInfo | None

    @classmethod
    def of(cls, schedule: dict[str, Any]) -> Times:
        """Return the times of a schedule in an answer of the broker."""
        if schedule["every_ms"]:
            return cls(_interval(schedule["every_ms"]), "", None)
        cron = schedule["cron"]
        return cls(words(cron), cron, zone_of(schedule["timezone"]))


def _interval(every_ms: int) -> str:
    """Return an interval in words, such as ``Every 5 min``."""
    text = duration_text(every_ms)
    number = text.rstrip("msdhw")
    unit = text.removeprefix(number)
    return f"Every {number} {'min' if unit == 'm' else unit}"


def name_of(view: View) -> str:
    """Return the full name of the schedule in the path of a request."""
    return "/".join(view.path(part) for part in ("tenant", "namespace", "name"))


async def _list(view: View) -> Response:
    asked = view.query(Query)
    found = await view.broker.admin("schedules.list", namespace=asked.namespace or None)
    matching = [
        one
        for one in found
        if asked.state in (None, one["state"]) and one["schedule"] > asked.after
    ]
    rows = matching[:_ROWS]
    more = ""
    if len(matching) > _ROWS:
        query = {"namespace": asked.namespace, "state": asked.state or ""}
        more = "/schedules?" + urlencode({**query, "after": rows[-1]["schedule"]})
    return view.show(
        "schedules/schedules.html",
        asked=asked,
        rows=[(one, Times.of(one)) for one in rows],
        total=len(matching),
        more=more,
    )


async def _list_again(view: View) -> Response:
    return view.show("schedules/schedules.html", asked=view.readable(Query))


async def _show(view: View) -> Response:
    name = name_of(view)
    schedule = await view.broker.admin("schedules.next", schedule=name, count=NEXT)
    times = Times.of(schedule)
    return view.show(
        "schedules/schedule.html",
        name=name,
        schedule=schedule,
        times=times,
        coming=occurrences(schedule["coming_ms"], times.zone or view.zone),
        history=await history(view.broker, schedule),
    )


async def _act(view: View) -> Response:
    name, action = name_of(view), view.path("action")
    if action not in _ACTIONS:
        raise InvalidRequest(f"{action!r:.60} is not an action on a schedule.")
    await view.acting().admin(f"schedules.{action}", schedule=name)
    return view.go(f"/schedules/{name}", _ACTIONS[action].format(name=name))


async def _delete(view: View) -> Response:
    name = name_of(view)
    if view.sent(Confirmation).name != name:
        raise InvalidRequest(f"Nothing was deleted. Type the name {name} to delete the schedule.")
    await view.acting().admin("schedules.delete", schedule=name)
    return view.go("/schedules", f"{name} is deleted. Its messages stay.")


PAGES: Final = [
    Page("/schedules", _list, again=_list_again),
    Page(ONE, _show),
    Page(f"{ONE}/delete", _delete, method="POST", again=_show),
    Page(f"{ONE}/actions/{{action}}", _act, method="POST", again=_show),
]
