"""The form of a schedule, new or changed. It shows the next occurrences before it is sent."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Literal
from zoneinfo import available_timezones

import msgspec
from starlette.responses import Response

from escapement.client import content
from escapement.console.pages.schedules import NEXT, ONE, Times, name_of
from escapement.console.text.clock_changes import occurrences
from escapement.console.text.payload_fields import Kind, payload_of
from escapement.console.text.times import field, time_of, zone_of
from escapement.console.visit.view import Page, View
from escapement.durations import format as duration_text
from escapement.durations import parse as parse_duration
from escapement.errors import InvalidRequest
from escapement.names import TopicName
from escapement.recurrence import MISSED, Missed, Recurrence


class Form(msgspec.Struct):
    """The fields of the form. An empty field means none.

    Attributes:
      by: whether the times are those of ``cron`` or ``every``.
      content: whether to replace the payload and the key of a schedule that exists. The broker does
        not show the present ones.
      preview: whether only to show the next occurrences.
    """

    name: str = ""
    topic: str = ""
    by: Literal["cron", "every"] = "cron"
    cron: str = ""
    timezone: str = "UTC"
    every: str = ""
    until: str = ""
    missed: Missed = "last"
    spread: str = ""
    key: str = ""
    kind: Kind = "text"
    content: bool = False
    preview: bool = False

    @classmethod
    def of(cls, schedule: dict[str, Any], view: View) -> Form:
        """Return the form of a schedule that exists."""
        until_ms, spread_ms = schedule["until_at_ms"], schedule["spread_ms"]
        return cls(
            schedule["schedule"],
            schedule["topic"],
            "cron" if schedule["cron"] else "every",
            schedule["cron"] or "",
            schedule["timezone"] or view.zone.key,
            duration_text(schedule["every_ms"]) if schedule["every_ms"] else "",
            field(until_ms, view.zone) if until_ms else "",
            schedule["missed"],
            duration_text(spread_ms) if spread_ms else "",
        )

    def recurrence(self, view: View) -> Recurrence:
        """Return the times of the schedule.

        Raises:
          InvalidRequest: if they are not valid; the error names the field.
        """
        by_cron = self.by == "cron"
        found = Recurrence(
            cron=self.cron if by_cron else "",
            timezone=self.timezone if by_cron else "UTC",
            every_ms=parse_duration(self.every) if self.every and not by_cron else 0,
            anchor_ms=view.now_ms,
            until_ms=time_of(self.until, view.zone) if self.until else None,
        )
        found.check()
        return found

    def values(self, view: View) -> dict[str, Any]:
        """Return the settings of the schedule, as the verbs take them, without the content."""
        recurrence = self.recurrence(view)
        return {
            "topic": TopicName.parse(self.topic).full,
            "cron": recurrence.cron or None,
            "timezone": recurrence.timezone if recurrence.cron else None,
            "every_ms": recurrence.every_ms or None,
            "until_ms": recurrence.until_ms,
            "missed": self.missed,
            "spread_ms": parse_duration(self.spread) if self.spread else 0,
        }

    def message(self, view: View) -> dict[str, bytes]:
        """Return the payload and the key of the messages, as the verbs take them."""
        payload = payload_of(self.kind, view.form.get("payload", ""))
        return {"payload": payload, "key": content.key(self.key)}


def changes(wanted: dict[str, Any], schedule: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from those of a schedule. Others must not be sent.

    An interval that is sent again would count from now. A form knows times to the second.
    """
    times = ("cron", "timezone", "every_ms")
    found = {}
    if any(wanted[name] != schedule[name] for name in times):
        found = {name: wanted[name] for name in times}
    until_ms, was_ms = wanted["until_ms"] or 0, schedule["until_at_ms"] or 0
    if until_ms // 1000 != was_ms // 1000:
        found["until_ms"] = until_ms
    if wanted["spread_ms"] != (schedule["spread_ms"] or 0):
        found["spread_ms"] = wanted["spread_ms"]
    for name in ("topic", "missed"):
        if wanted[name] != schedule[name]:
            found[name] = wanted[name]
    return found


async def _new(view: View) -> Response:
    return _page(view, view.query(Form) if view.request.query_params else _empty(view))


async def _create(view: View) -> Response:
    form = view.sent(Form)
    if form.preview:
        return _page(view, form)
    name = TopicName.parse(form.name, "schedule").full
    wanted = form.values(view) | form.message(view)
    await view.acting().admin("schedules.create", schedule=name, **wanted)
    return view.go(f"/schedules/{name}", f"{name} is created.")


async def _new_again(view: View) -> Response:
    return _page(view, view.readable(Form))


async def _edit(view: View) -> Response:
    schedule = await _schedule(view)
    return _page(view, Form.of(schedule, view), schedule)


async def _update(view: View) -> Response:
    schedule, form = await _schedule(view), view.sent(Form)
    name = form.name = schedule["schedule"]
    if form.preview:
        return _page(view, form, schedule)
    wanted = changes(form.values(view), schedule)
    if form.content:
        wanted |= form.message(view)
    if wanted:
        await view.acting().admin("schedules.update", schedule=name, **wanted)
    return view.go(f"/schedules/{name}", f"{name} is {'changed' if wanted else 'as it was'}.")


async def _edit_again(view: View) -> Response:
    schedule, form = await _schedule(view), view.readable(Form)
    form.name = schedule["schedule"]
    return _page(view, form, schedule)


async def _preview(view: View) -> Response:
    return view.show("schedules/schedule_preview.html", **_coming(view, view.query(Form)))


async def _preview_change(view: View) -> Response:
    schedule = await _schedule(view)
    return view.show("schedules/schedule_preview.html", **_coming(view, view.query(Form), schedule))


async def _schedule(view: View) -> dict[str, Any]:
    found: dict[str, Any] = await view.broker.admin(
        "schedules.next", schedule=name_of(view), count=NEXT
    )
    return found


def _empty(view: View) -> Form:
    return Form(timezone=view.zone.key)


def _page(view: View, form: Form, schedule: dict[str, Any] | None = None) -> Response:
    return view.show(
        "schedules/schedule_form.html",
        form=form,
        schedule=schedule,
        may=_may(view, schedule),
        payload=view.form.get("payload", ""),
        missed_all=MISSED,
        zones=_zones(),
        **_coming(view, form, schedule),
    )


def _may(view: View, schedule: dict[str, Any] | None) -> bool:
    """Return whether the page offers the form."""
    if schedule is None:
        return view.user.may_somewhere("produce")
    return view.user.may("admin", schedule["schedule"])


def _coming(view: View, form: Form, schedule: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what the preview shows. The times are computed as the broker computes them."""
    values: dict[str, Any] = {"times": None, "coming": [], "problem": ""}
    if not (form.cron if form.by == "cron" else form.every):
        return values
    try:
        recurrence = form.recurrence(view)
        if schedule and recurrence.every_ms and recurrence.every_ms == schedule["every_ms"]:
            # The interval continues. Only an active schedule has a next occurrence.
            next_ms = schedule["next_at_ms"] or view.now_ms + recurrence.every_ms
            recurrence = replace(recurrence, anchor_ms=next_ms - recurrence.every_ms)
        times_ms = list(islice(recurrence.occurrences(view.now_ms), NEXT))
    except InvalidRequest as error:
        return values | {"problem": str(error)}
    plain = {
        "cron": recurrence.cron, "timezone": recurrence.timezone, "every_ms": recurrence.every_ms,
    }  # fmt: skip
    zone = zone_of(recurrence.timezone) if recurrence.cron else view.zone
    return values | {"times": Times.of(plain), "coming": occurrences(times_ms, zone)}


@lru_cache(maxsize=1)
def _zones() -> list[str]:
    return sorted(available_timezones())


PAGES: Final = [
    Page("/schedules/new", _new),
    Page("/schedules/new", _create, method="POST", again=_new_again),
    Page("/schedules/preview", _preview),
    Page(f"{ONE}/edit", _edit),
    Page(f"{ONE}/edit", _update, method="POST", again=_edit_again),
    Page(f"{ONE}/preview", _preview_change),
]
