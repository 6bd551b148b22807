"""Find: the messages of a topic or several that match a filter. The URL is the filter."""

from __future__ import annotations

from typing import Any, Final, Self

from starlette.datastructures import QueryParams
from starlette.responses import Response

from escapement.console.finding.filter import BY_INDEX, BY_LOOK, OVER, Filter
from escapement.console.finding.log import over
from escapement.console.finding.page import Found
from escapement.console.finding.pending import pending
from escapement.console.finding.topics import Topics, topics_at
from escapement.console.visit.fields import read
from escapement.console.visit.view import Page, View
from escapement.errors import InvalidRequest
from escapement.names import read_message_id

PATH: Final = "/find"


class Query(Filter):
    """The filter, and what to show of it.

    Attributes:
      q: what the user wrote into the box at the top: the id of a message; a topic, or a part of
        its name; or a topic and a key. With ``where``, it is a key.
      after: where the page begins.
      count: whether to count all messages that match.
    """

    q: str = ""
    after: str = ""
    count: bool = False

    @classmethod
    def of(cls, link: str) -> Self:
        """Return the query of an address of the page.

        Raises:
          InvalidRequest: if it is not one.
        """
        return read(QueryParams(link.partition("?")[2]), cls)


async def _find(view: View) -> Response:
    asked = view.query(Query)
    if asked.q:
        return _searched(view, asked)
    as_written = asked.fields()
    asked.exact(view.zone)
    if asked.fields() != as_written:
        return view.go(asked.link())
    return await show_list(view, asked)


async def show_list(view: View, asked: Query) -> Response:
    """Show the messages that match a filter, whose times must be exact."""
    topics = await topics_at(view.broker, asked.where)
    found = await _messages(view, asked, topics)
    if view.is_part:
        if found is None:  # its topic is gone
            return view.go(asked.link())
        return view.show("messages/find_rows.html", **_values(view, asked, topics, found))
    return view.show(
        "messages/find.html",
        **_values(view, asked, topics, found),
        counted=await _count(view, asked, topics),
    )


async def _again(view: View) -> Response:
    """Show the form without messages."""
    asked = view.readable(Query)
    asked.forget_inexact(view.zone)
    return view.show("messages/find.html", topics=None, **_form(asked))


def _searched(view: View, asked: Query) -> Response:
    """Go to what the box at the top names."""
    try:
        topic, offset = read_message_id(asked.q)
    except InvalidRequest:
        if asked.where:
            return view.go(asked.link(key=asked.q))
        where, _, key = asked.q.partition(" ")
        return view.go(Filter(where=where, key=key.strip()).link())
    return view.go(f"/messages/{topic}@{offset}")


async def _messages(view: View, asked: Query, topics: Topics) -> Found | None:
    """Return the messages of a page; None if the user must choose a topic first."""
    if topics.is_one and asked.state in OVER:
        return await over(view.broker, topics.names[0], asked, asked.after)
    if topics.is_one or (topics.can_be_searched and asked.state in BY_INDEX):
        return await pending(view.broker, topics.names, asked, asked.after, view.now_ms)
    return None


async def _count(view: View, asked: Query, topics: Topics) -> dict[str, Any] | None:
    """Return the number of messages that match, if the user asks for it."""
    if not (asked.count and can_be_counted(asked, topics)):
        return None
    preview = await view.broker.bulk.preview(topics.names[0], **asked.as_of(view.now_ms).bulk())
    return {"messages": preview.messages, "complete": preview.complete}


def can_be_counted(asked: Filter, topics: Topics) -> bool:
    """Return whether the broker can count, and change, all messages that match."""
    return topics.is_one and asked.state in BY_INDEX


def _values(view: View, asked: Query, topics: Topics, found: Found | None) -> dict[str, Any]:
    return {
        **_form(asked),
        "topics": topics,
        "found": found,
        "more_link": asked.link(after=found.next) if found is not None and found.next else "",
        "count_link": asked.link(count="true") if can_be_counted(asked, topics) else "",
        "all": asked.as_of(view.now_ms) if can_be_counted(asked, topics) else None,
        "can_act": asked.state not in OVER
        and any(view.user.may("cancel", one) for one in topics.names),
    }


def _form(asked: Query) -> dict[str, Any]:
    """Return the values of the form."""
    return {
        "asked": asked,
        "properties": [*asked.having, ""],
        "states": {"Pending": BY_INDEX, "Held by a subscription": BY_LOOK, "Over": OVER},
        "is_over": asked.state in OVER,
    }


PAGES: Final = [Page(PATH, _find, again=_again)]
