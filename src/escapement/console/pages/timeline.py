"""The timeline: the number of messages due in each minute, hour or day, and of overdue ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import msgspec
import trio
from starlette.responses import Response

from escapement.clock import moment, unix_ms
from escapement.console.text.bars import Bar, bar_chart
from escapement.console.visit.view import Page, View
from escapement.errors import Busy

By = Literal["minute", "hour", "day"]

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
# How long a page waits for the first count of a broker. The live part shows it later.
_FIRST_WAIT_S: Final = 0.2
# The most topics from which a user chooses who may look at no namespace as a whole.
_MOST_TOPICS: Final = 200


class Length(NamedTuple):
    """The spans of a timeline."""

    by_ms: int  # the spans that the broker counts; days are made of hours
    within_ms: int
    label: str  # the format of a bar's label


LENGTHS: Final[dict[By, Length]] = {
    "minute": Length(_MINUTE_MS, 60 * _MINUTE_MS, "%H:%M"),
    "hour": Length(_HOUR_MS, 48 * _HOUR_MS, "%a %H:%M"),
    "day": Length(_HOUR_MS, 31 * 24 * _HOUR_MS, "%d %b"),
}


class Query(msgspec.Struct):
    """The filter of the page. ``where`` is a topic or a namespace; everything if it is empty."""

    by: By = "hour"
    where: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A bar of the timeline: the messages due from ``from_ms`` until before ``until_ms``."""

    from_ms: int
    until_ms: int
    bar: Bar
    link: str


async def _timeline(view: View) -> Response:
    asked = view.query(Query)
    if not asked.where and not view.user.may("peek") and not await _namespaces(view):
        return await _topics(view, asked)
    return view.show(
        "timeline/timeline.html", asked=asked, by_all=list(LENGTHS), **await _part(view, asked)
    )


async def _again(view: View) -> Response:
    asked = view.readable(Query)
    return view.show("timeline/timeline.html", asked=asked, by_all=list(LENGTHS))


async def _namespaces(view: View) -> list[Any]:
    """Return the namespaces that the grants of the user cover as a whole."""
    found: list[Any] = await view.broker.admin("namespaces.list")
    return found


async def _topics(view: View, asked: Query) -> Response:
    """List the topics to choose from, for a user who may look at no namespace as a whole."""
    topics: list[str] = (await view.broker.admin("topics.list"))["topics"]
    links = [
        (topic, "/?" + urlencode({"by": asked.by, "where": topic}))
        for topic in topics[:_MOST_TOPICS]
    ]
    left_out = len(topics) - len(links)
    return view.show("timeline/timeline_topics.html", links=links, left_out=left_out)


async def _live(view: View) -> str:
    asked = view.query(Query)
    values = await _part(view, asked, wait_s=inf)  # until the browser is told that none answers
    return view.part("timeline/timeline_part.html", asked=asked, **values)


async def _part(view: View, asked: Query, wait_s: float = _FIRST_WAIT_S) -> dict[str, Any]:
    """Return what the page shows. It waits for a count of the broker for some time."""
    length = LENGTHS[asked.by]
    midnight_ms = unix_ms(_midnight(moment(view.now_ms).astimezone(view.zone)))
    spans = {
        "by_ms": length.by_ms, "within_ms": length.within_ms, "origin_ms": midnight_ms,
    }  # fmt: skip
    if asked.where.count("/") == 2 or asked.where.startswith("table://"):
        found = await view.broker.admin("topics.forecast", topic=asked.where, **spans)
        rows = await view.broker.admin("subscriptions.list", topic=asked.where)
        overdue, at_ms, exact = sum(row["due"] for row in rows), view.now_ms, True
    else:
        found = await _count(view, asked.where, spans, wait_s)
        if found is None:
            return {"chart": None}
        overdue, at_ms, exact = found["overdue"], found["at_ms"], found["exact"]
    starts_ms = [found["first_ms"] + at * found["by_ms"] for at in range(len(found["counts"]))]
    counts = found["counts"]
    until_ms = found["first_ms"] + len(counts) * found["by_ms"]
    if asked.by == "day":
        starts_ms, counts = by_day(starts_ms, counts, view.zone)
    labels = [moment(ms).astimezone(view.zone).strftime(length.label) for ms in starts_ms]
    chart = bar_chart([overdue, *counts], ["overdue", *labels])
    ends_ms = [*starts_ms[1:], until_ms]
    shown = [
        Span(start_ms, end_ms, bar, _list(asked, start_ms, end_ms))
        for start_ms, end_ms, bar in zip(starts_ms, ends_ms, chart.bars[1:], strict=True)
    ]
    return {
        "chart": chart,
        "spans": shown,
        "overdue": overdue,
        "overdue_link": _list(asked, None, view.now_ms),
        "total": found["total"],
        "at_ms": at_ms,
        "exact": exact,
    }


async def _count(
    view: View, namespace: str, spans: dict[str, int], wait_s: float
) -> dict[str, Any] | None:
    """Return the count of a namespace; None while the broker makes one."""
    with trio.move_on_after(wait_s), suppress(Busy):
        found: dict[str, Any] = await view.broker.admin(
            "namespaces.forecast", namespace=namespace or None, **spans
        )
        return found
    return None


def by_day(starts_ms: list[int], counts: list[int], zone: ZoneInfo) -> tuple[list[int], list[int]]:
    """Add up the counts of hours by day. A day has 23 or 25 hours if the clocks change."""
    days: dict[int, int] = {}
    for start_ms, count in zip(starts_ms, counts, strict=True):
        day_ms = unix_ms(_midnight(moment(start_ms).astimezone(zone)))
        days[day_ms] = days.get(day_ms, 0) + count
    return list(days), list(days.values())


def _midnight(at: datetime) -> datetime:
    """Return the beginning of a day. Where the clocks change at midnight, it has another time."""
    start = at.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    while start.astimezone(ZoneInfo("UTC")).astimezone(at.tzinfo).date() < at.date():
        start += timedelta(minutes=30)
    return start


def _list(asked: Query, from_ms: int | None, until_ms: int) -> str:
    """Return the address of the list of what falls due in a range of time."""
    query: dict[str, str | int] = {"where": asked.where} if asked.where else {}
    if from_ms is not None:
        query["from"] = from_ms
    return "/find?" + urlencode({**query, "until": until_ms})


PAGES: Final = [Page("/", _timeline, live=_live, again=_again)]
