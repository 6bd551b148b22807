"""The audit log: who changed what, when and why."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from escapement.console.text.times import time_of
from escapement.console.visit.view import Number, Page, View
from escapement.errors import InvalidRequest

_PAGE_ROWS: Final = 100


class Query(msgspec.Struct):
    """The filter. ``before`` is where the page begins: a time and an id, with a comma."""

    role: str = ""
    verb: str = ""
    object: str = ""
    since: str = ""
    until: str = ""
    before: str = ""


async def _audit(view: View) -> Response:
    asked = view.query(Query)
    page = await view.broker.admin(
        "audit.list",
        role=asked.role or None,
        verbs=asked.verb or None,
        object=asked.object or None,
        from_ms=time_of(asked.since, view.zone) if asked.since else None,
        until_ms=time_of(asked.until, view.zone) if asked.until else None,
        before=_position(asked.before) if asked.before else None,
        count=_PAGE_ROWS,
    )
    more = None
    if page["next"] is not None:
        asked_next = msgspec.structs.replace(asked, before=",".join(map(str, page["next"])))
        fields = msgspec.structs.asdict(asked_next)
        more = "/audit?" + urlencode({name: value for name, value in fields.items() if value})
    rows = [row | {"arguments": _pairs(row["arguments"])} for row in page["actions"]]
    return view.show("brokers/audit.html", asked=asked, rows=rows, more=more)


async def _again(view: View) -> Response:
    return view.show("brokers/audit.html", asked=view.readable(Query))


def _position(text: str) -> list[int]:
    try:
        at_ms, id = msgspec.convert(text.split(","), tuple[Number, Number], strict=False)
    except msgspec.ValidationError:
        raise InvalidRequest("The field 'before' is not the place of a page.") from None
    return [at_ms, id]


def _pairs(arguments: str) -> list[tuple[str, str]]:
    """Return arguments as names and values. Values that are not texts stay JSON."""
    given: dict[str, Any] = json.loads(arguments)
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in given.items()
    ]


PAGES: Final = [Page("/audit", _audit, again=_again)]
