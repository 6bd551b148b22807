"""How late messages were delivered: the worst subscriptions, and one of them by minute."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from starlette.responses import Response

from escapement.clock import moment
from escapement.console.text.lines import line_chart
from escapement.console.visit.view import Page, View

_MINUTE_MS: Final = 60_000
_WORST: Final = 50
# Every tenth minute of the chart has a label.
_LABEL_EVERY: Final = 10


class Query(msgspec.Struct):
    """The filter of the page: the worst of a namespace, or one subscription.

    ``target`` is the lateness in milliseconds that the user wants to keep.
    """

    namespace: str = ""
    topic: str = ""
    subscription: str = ""
    minutes: Annotated[int, msgspec.Meta(ge=1, le=120)] = 60
    target: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)] = 1000


async def _lateness(view: View) -> Response:
    asked = view.query(Query)
    return view.show("subscriptions/lateness.html", asked=asked, **await _part(view, asked))


async def _again(view: View) -> Response:
    return view.show("subscriptions/lateness.html", asked=view.readable(Query))


async def _live(view: View) -> str:
    asked = view.query(Query)
    return view.part("subscriptions/lateness_part.html", asked=asked, **await _part(view, asked))


async def _part(view: View, asked: Query) -> dict[str, Any]:
    within_ms = asked.minutes * _MINUTE_MS
    if asked.topic and asked.subscription:
        found = await view.broker.admin(
            "subscriptions.lateness",
            topic=asked.topic,
            subscription=asked.subscription,
            within_ms=within_ms,
        )
        return {"worst": None, **_chart(found["minutes"], view, asked)}
    found = await view.broker.admin(
        "subscriptions.lateness",
        namespace=asked.namespace or None,
        within_ms=within_ms,
        count=_WORST,
    )
    return {"worst": found["worst"], "most": _WORST}


def _chart(rows: list[dict[str, int]], view: View, asked: Query) -> dict[str, Any]:
    """Return the values of the chart. Each minute has a place, also without deliveries."""
    last_ms = view.now_ms // _MINUTE_MS * _MINUTE_MS
    starts_ms = [last_ms - at * _MINUTE_MS for at in reversed(range(asked.minutes))]
    by_start = {row["at_ms"]: row for row in rows}
    shown = [by_start.get(ms) for ms in starts_ms]
    lines = {
        name: [None if row is None else row[f"{name}_ms"] for row in shown]
        for name in ("max", "p99", "p50")
    }
    labels = [
        moment(ms).astimezone(view.zone).strftime("%H:%M") if at % _LABEL_EVERY == 0 else ""
        for at, ms in enumerate(starts_ms)
    ]
    return {
        "chart": line_chart(lines, asked.target),
        "labels": labels,
        "minutes": [row for row in reversed(shown) if row is not None],
    }


PAGES: Final = [Page("/lateness", _lateness, live=_live, again=_again)]
