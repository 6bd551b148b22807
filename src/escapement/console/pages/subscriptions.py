"""The subscriptions: messages due, in flight and in retry, consumers and rates."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from escapement.console.visit.view import Page, View

_PAGE_ROWS: Final = 100
# The counters whose rates are shown.
_COUNTERS: Final = ("delivered", "acknowledged", "redelivered")


class Query(msgspec.Struct):
    """The filter. ``after`` is where the page begins: a topic and a subscription, with a space."""

    namespace: str = ""
    search: str = ""
    after: str = ""


async def _subscriptions(view: View) -> Response:
    asked = view.query(Query)
    return view.show("subscriptions/subscriptions.html", asked=asked, **await _part(view, asked))


async def _again(view: View) -> Response:
    return view.show("subscriptions/subscriptions.html", asked=view.readable(Query))


async def _live(view: View) -> str:
    asked = view.query(Query)
    return view.part(
        "subscriptions/subscriptions_part.html", asked=asked, **await _part(view, asked)
    )


async def _part(view: View, asked: Query) -> dict[str, Any]:
    page = await view.broker.admin(
        "subscriptions.overview",
        namespace=asked.namespace or None,
        search=asked.search or None,
        after=asked.after.split(" ") if asked.after else None,
        count=_PAGE_ROWS,
    )
    more = None
    if page["next"] is not None:
        query = {"namespace": asked.namespace, "search": asked.search}
        given = {name: text for name, text in query.items() if text}
        more = "/subscriptions?" + urlencode({**given, "after": " ".join(page["next"])})
    rows = [row | {"rates": rates_of(view, row)} for row in page["subscriptions"]]
    return {"rows": rows, "more": more}


def rates_of(view: View, row: dict[str, Any]) -> dict[str, float | None]:
    """Return how fast the counters of a subscription grow."""
    counters = {name: row[name] for name in _COUNTERS}
    return view.session.rates.of(f"{row['topic']} {row['subscription']}", counters, view.now_ms)


PAGES: Final = [Page("/subscriptions", _subscriptions, live=_live, again=_again)]
