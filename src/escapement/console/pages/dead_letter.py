"""The dead letters of one subscription, by reason, and what can be done with them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from escapement.console.pages.message import MOST_SHOWN_BYTES
from escapement.console.reading.message_source import own_properties
from escapement.console.text.histories import DEATHS
from escapement.console.text.payloads import shown
from escapement.console.visit.view import Number, Page, View
from escapement.durations import parse as parse_duration
from escapement.errors import InvalidRequest

# The dead letters that a page looks at, and those of one reason that it shows if there are several.
_LOOKED: Final = 500
_SHOWN: Final = 50
# The most dead letters that the broker deletes with one request.
_MOST_PURGED: Final = 10_000
ALL: Final = "/dead-letters/{tenant}/{namespace}/{name}/{subscription}"


class Query(msgspec.Struct, rename={"in_": "in"}):
    """Which dead letters.

    Attributes:
      in_: the dead-letter topic, if it is not the one that the subscription has now.
      cause: the reason of the dead letters; "" for all.
    """

    in_: str = ""
    cause: str = ""


class Chosen(Query):
    """The form with selected dead letters.

    Attributes:
      id: their offsets.
      spread: the time over which they are due if they are sent back.
      typed: confirms what cannot be undone.
      alone: whether the form is that of the page of one dead letter.
    """

    id: list[Number] = []
    alone: bool = False
    spread: str = ""
    typed: str = ""

    def check(self) -> None:
        """Raise InvalidRequest if no dead letter is selected."""
        if not self.id:
            raise InvalidRequest("Select at least one dead letter.")


class Whose:
    """A subscription and its dead-letter topic."""

    def __init__(self, view: View, asked: Query) -> None:
        self.topic: Final = "/".join(view.path(one) for one in ("tenant", "namespace", "name"))
        self.subscription: Final = view.path("subscription")
        self.lie_in: Final = asked.in_ or None
        # A redrive and a purge need these rights.
        may_end = self.lie_in is None or view.user.may("cancel", self.lie_in)
        self.may_redrive: Final = may_end and view.user.may("produce", self.topic)
        self.may_purge: Final = may_end and view.user.may("cancel", self.topic)

    @property
    def path(self) -> str:
        return f"/dead-letters/{self.topic}/{self.subscription}"

    @property
    def arguments(self) -> dict[str, str | None]:
        """The arguments of the verbs."""
        return {
            "topic": self.topic,
            "subscription": self.subscription,
            "dead_letter_topic": self.lie_in,
        }

    def link(self, **query: str) -> str:
        """Return the address of the page."""
        given = {"in": self.lie_in or "", **query}
        text = urlencode({name: value for name, value in given.items() if value})
        return f"{self.path}?{text}" if text else self.path


async def _list(view: View) -> Response:
    return await _show_list(view, view.query(Query))


async def _again(view: View) -> Response:
    """Show the page again that has the form: the list, or one dead letter."""
    chosen = view.readable(Chosen)
    if chosen.alone and chosen.id:
        return await _show_one(view, chosen, chosen.id[0])
    return await _show_list(view, chosen)


async def _show_list(view: View, asked: Query) -> Response:
    whose = Whose(view, asked)
    found = await view.broker.admin("dlq.list", **whose.arguments, count=_LOOKED)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault(row.get("reason", "unknown"), []).append(row)
    listed = {
        reason: rows if reason == asked.cause else rows[:_SHOWN]
        for reason, rows in groups.items()
        if asked.cause in ("", reason)
    }
    return view.show(
        "dead_letters/dead_letter_list.html",
        asked=asked,
        whose=whose,
        groups=groups,
        listed=listed,
        total=len(found),
        is_all=len(found) < _LOOKED,
        reasons=DEATHS,
    )


async def _show(view: View) -> Response:
    return await _show_one(view, view.query(Query), view.number("offset"))


async def _show_one(view: View, asked: Query, offset: int) -> Response:
    whose = Whose(view, asked)
    found = await view.broker.admin("dlq.show", **whose.arguments, offset=offset)
    return view.show(
        "dead_letters/dead_letter.html",
        asked=asked,
        whose=whose,
        offset=offset,
        letter={"reason": "unknown", **found},
        properties=own_properties(found["properties"]),
        content=shown(found["payload"][:MOST_SHOWN_BYTES], found["size_bytes"]),
        is_cut=found["size_bytes"] > MOST_SHOWN_BYTES,
        lie_in=whose.lie_in or await _dead_letter_topic(view, whose),
        reasons=DEATHS,
    )


async def _dead_letter_topic(view: View, whose: Whose) -> str:
    """Return the topic that has the dead letters of a subscription now."""
    policy = await view.broker.admin(
        "subscriptions.get", topic=whose.topic, subscription=whose.subscription
    )
    return str(policy["dead_letter_topic"] or f"{whose.topic}-{whose.subscription}-DLQ")


async def _redrive(view: View) -> Response:
    chosen = view.sent(Chosen)
    chosen.check()
    whose = Whose(view, chosen)
    answer = await view.acting().admin(
        "dlq.redrive",
        **whose.arguments,
        offsets=chosen.id,
        count=len(chosen.id),
        spread_ms=parse_duration(chosen.spread) if chosen.spread else None,
    )
    return view.go(whose.link(), _told(answer["redriven"], len(chosen.id), "sent back"))


async def _purge(view: View) -> Response:
    chosen = view.sent(Chosen)
    chosen.check()
    whose = Whose(view, chosen)
    if chosen.typed != str(len(chosen.id)):
        raise InvalidRequest(
            f"Nothing was deleted. Type {len(chosen.id)} to delete the selected dead letters."
        )
    answer = await view.acting().admin(
        "dlq.purge", **whose.arguments, offsets=chosen.id, count=len(chosen.id)
    )
    return view.go(whose.link(), _told(answer["purged"], len(chosen.id), "deleted"))


async def _purge_all(view: View) -> Response:
    chosen = view.sent(Chosen)
    whose = Whose(view, chosen)
    if chosen.typed != whose.subscription:
        raise InvalidRequest(
            f"Nothing was deleted. Type {whose.subscription} to delete its dead letters."
        )
    answer = await view.acting().admin("dlq.purge", **whose.arguments, count=_MOST_PURGED)
    purged = answer["purged"]
    more = " There may be more: repeat it to delete them." if purged >= _MOST_PURGED else ""
    return view.go(whose.link(), f"{_counted(purged)} deleted.{more}")


def _told(done: int, wanted: int, what: str) -> str:
    rest = " The others were not there any more." if done < wanted else ""
    return f"{_counted(done)} {what}.{rest}"


def _counted(count: int) -> str:
    return "1 dead letter is" if count == 1 else f"{count:,} dead letters are"


PAGES: Final = [
    Page(ALL, _list),
    Page(f"{ALL}/redrive", _redrive, method="POST", again=_again),
    Page(f"{ALL}/purge", _purge, method="POST", again=_again),
    Page(f"{ALL}/purge-all", _purge_all, method="POST", again=_again),
    Page(f"{ALL}/{{offset}}", _show),
]
