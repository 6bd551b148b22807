"""The subscriptions that have dead letters.

Dead letters are messages of dead-letter topics. Each of these topics has the subscription
``dead-letters``, and the messages that it has not acknowledged are the dead letters that are there.
Their properties name the subscriptions that gave them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from escapement.client.broker import Broker
from escapement.console.reading.at_once import at_once
from escapement.console.text.histories import DEAD_LETTERS
from escapement.console.visit.view import Page, View
from escapement.errors import NotFound

# The dead-letter topics of one page.
_ROWS: Final = 50
# The subscriptions of one request, and the most requests of one page: most dead-letter topics may
# be empty.
_REQUEST_ROWS: Final = 250
_REQUESTS: Final = 10
# The dead letters of a topic whose origins are read.
_LOOKED: Final = 20


class Query(msgspec.Struct):
    """The filter of the page. ``after`` is the last dead-letter topic of the page before."""

    namespace: str = ""
    after: str = ""


@dataclass(slots=True)
class Row:
    """A dead-letter topic.

    Attributes:
      count: its dead letters; an estimate unless ``exact``.
      oldest_ms: when the oldest of them died.
      origins: the topics and subscriptions that the oldest ones are from.
    """

    topic: str
    count: int
    exact: bool
    oldest_ms: int | None = None
    origins: list[tuple[str, str]] = field(default_factory=list)

    async def read_origins(self, broker: Broker) -> None:
        """Read where the oldest dead letters are from."""
        try:
            page = await broker.admin("topics.peek", topic=self.topic, count=_LOOKED)
        except NotFound:  # deleted meanwhile
            return
        for message in page["messages"]:
            self.oldest_ms = self.oldest_ms or message["due_at_ms"]
            found = message["properties"]
            origin = (found.get("dead_letter_topic"), found.get("dead_letter_subscription"))
            if all(isinstance(one, str) for one in origin) and origin not in self.origins:
                self.origins.append(origin)


async def _dead_letters(view: View) -> Response:
    asked = view.query(Query)
    rows, after = await _rows(view, asked)
    await at_once([partial(row.read_origins, view.broker) for row in rows])
    more = ""
    if after:
        query = {"namespace": asked.namespace} if asked.namespace else {}
        more = "/dead-letters?" + urlencode({**query, "after": after})
    return view.show("dead_letters/dead_letters.html", asked=asked, rows=rows, more=more)


async def _again(view: View) -> Response:
    return view.show("dead_letters/dead_letters.html", asked=view.readable(Query), more="")


async def _rows(view: View, asked: Query) -> tuple[list[Row], str]:
    """Return the dead-letter topics of one page, and after which one the next page begins."""
    rows: list[Row] = []
    after: list[str] | None = [asked.after, DEAD_LETTERS] if asked.after else None
    for _ in range(_REQUESTS):
        page: dict[str, Any] = await view.broker.admin(
            "subscriptions.overview",
            namespace=asked.namespace or None,
            search=DEAD_LETTERS,
            after=after,
            count=_REQUEST_ROWS,
        )
        rows += [
            Row(one["topic"], one["unacknowledged"], one["active"])
            for one in page["subscriptions"]
            if one["subscription"] == DEAD_LETTERS and one["unacknowledged"]
        ]
        after = page["next"]
        if len(rows) > _ROWS:
            return rows[:_ROWS], rows[_ROWS - 1].topic
        if after is None:
            break
    return rows, "" if after is None else after[0]


PAGES: Final = [Page("/dead-letters", _dead_letters, again=_again)]
