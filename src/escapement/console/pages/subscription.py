"""One subscription: its figures and its policy, and the forms to pause it and to seek."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from escapement.console.pages.subscriptions import rates_of
from escapement.console.text.times import time_of
from escapement.console.visit.view import Page, View
from escapement.durations import parse as parse_duration
from escapement.errors import InvalidRequest, NotFound

PATH: Final = "/subscription"


class Named(msgspec.Struct):
    """A subscription of a topic."""

    topic: str
    subscription: str


class Pause(Named):
    """For how long, such as ``30m``; until resumed if it is empty."""

    duration: str = ""


class Seek(Named):
    """The position: ``latest``, ``earliest``, or a time or an offset, with its value."""

    to: str = "time"
    value: str = ""
    confirmed: str = ""


async def _subscription(view: View) -> Response:
    return await _show(view, view.query(Named))


async def _again(view: View) -> Response:
    return await _show(view, view.sent(Named))


async def _show(view: View, named: Named) -> Response:
    policy = await view.broker.admin("subscriptions.get", **msgspec.structs.asdict(named))
    return view.show(
        "subscriptions/subscription.html", named=named, policy=policy, **await _part(view, named)
    )


async def _live(view: View) -> str:
    named = view.query(Named)
    return view.part(
        "subscriptions/subscription_part.html", named=named, **await _part(view, named)
    )


async def _part(view: View, named: Named) -> dict[str, Any]:
    rows = await view.broker.admin("subscriptions.list", topic=named.topic)
    for row in rows:
        if row["subscription"] == named.subscription:
            row = row | {"topic": named.topic}
            return {"row": row, "rates": rates_of(view, row)}
    raise NotFound(f"{named.topic} has no subscription {named.subscription}.")


async def _pause(view: View) -> Response:
    asked = view.sent(Pause)
    for_ms = parse_duration(asked.duration) if asked.duration else None
    await view.acting().admin(
        "dispatch.pause", topic=asked.topic, subscription=asked.subscription, for_ms=for_ms
    )
    until = f"for {asked.duration}" if asked.duration else "until you resume it"
    return _back(view, asked, f"Delivery is paused {until}.")


async def _resume(view: View) -> Response:
    named = view.sent(Named)
    await view.acting().admin("dispatch.resume", **msgspec.structs.asdict(named))
    return _back(view, named, "Delivery goes on.")


async def _seek(view: View) -> Response:
    asked = view.sent(Seek)
    if not asked.confirmed:
        raise InvalidRequest("Tick the box to confirm the seek.")
    position = asked.to
    if asked.to == "time":
        position = f"time:{time_of(asked.value, view.zone)}"
    elif asked.to == "offset":
        position = f"offset:{asked.value}"
    answer = await view.acting().admin(
        "subscriptions.seek",
        topic=asked.topic,
        subscription=asked.subscription,
        position=position,
    )
    return _back(view, asked, f"The subscription continues from {answer['position']}.")


def _back(view: View, named: Named, notice: str) -> Response:
    query = {"topic": named.topic, "subscription": named.subscription}
    return view.go(f"{PATH}?{urlencode(query)}", notice)


PAGES: Final = [
    Page(PATH, _subscription, live=_live),
    Page(f"{PATH}/pause", _pause, "POST", again=_again),
    Page(f"{PATH}/resume", _resume, "POST", again=_again),
    Page(f"{PATH}/seek", _seek, "POST", again=_again),
]
