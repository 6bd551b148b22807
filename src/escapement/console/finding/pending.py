"""The search for pending messages of one topic or several: by due time, key, properties and state.

The broker searches its index, and answers with one page for each topic. Whether a message is in
flight or in retry is in no index, so for these states the console looks at a bounded number of
messages, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from escapement.client.broker import Broker
from escapement.console.finding.filter import BY_LOOK, Filter
from escapement.console.finding.page import PAGE_MESSAGES, Found, Place, Row, merged
from escapement.console.reading.at_once import at_once
from escapement.errors import NotFound

# The most messages that the console looks at, one by one, for one page.
MOST_LOOKED: Final = 100
# Of several topics, each is asked for this many times its share of a page, and at least for the
# second number of messages.
_SHARE: Final = 4
_LEAST: Final = 10


async def pending(
    broker: Broker, topics: Sequence[str], asked: Filter, after: str, now_ms: int
) -> Found:
    """Return a page of pending messages of some topics, next due first.

    Args:
      after: where the page begins; "" for the first one.

    Raises:
      NotFound: if one of the topics does not exist.
    """
    begin = Place.parse(after) if after else None
    conditions = asked.as_of(now_ms).conditions()
    pages: dict[str, tuple[list[Row], list[int] | None]] = {}
    looked = 0
    by_look = asked.state in BY_LOOK
    count = MOST_LOOKED if by_look else _count(len(topics))

    async def peek(topic: str) -> None:
        nonlocal looked
        answer = await broker.admin(
            "topics.peek",
            topic=topic,
            count=count,
            after=None if begin is None else begin.inside(topic),
            **conditions,
        )
        looked += answer["looked"]
        rows = [_row(topic, one, now_ms) for one in answer["messages"]]
        pages[topic] = rows, answer["next"]

    await at_once([partial(peek, topic) for topic in topics])
    if by_look:
        (topic,) = topics
        return await _in_state(broker, topic, asked, *pages[topic])
    found = merged(pages)
    by_content = bool(conditions["key"] or conditions["properties"])
    found.looked = looked if by_content else 0
    return found


def _count(topics: int) -> int:
    """Return how many messages to ask of each topic.

    Together they have some more messages than a page. If most of the next messages are in one
    topic, the page has fewer rows.
    """
    return min(max(_SHARE * PAGE_MESSAGES // topics, _LEAST), PAGE_MESSAGES)


async def _in_state(
    broker: Broker, topic: str, asked: Filter, rows: list[Row], next: list[int] | None
) -> Found:
    """Return the messages that a subscription holds in the state that is asked for."""
    wanted = BY_LOOK[asked.state]
    shown = await histories(broker, topic, [row.offset for row in rows])
    found: list[Row] = []
    for at, row in enumerate(rows):
        answer = shown.get(row.offset)
        if answer is not None and any(one["state"] == wanted for one in answer["subscriptions"]):
            if len(found) == PAGE_MESSAGES:
                return Found(found, str(row.place), at)
            found.append(row_of(answer, wanted))
    following = "" if next is None else str(Place(next[0], topic, next[1]))
    return Found(found, following, len(rows))


async def histories(
    broker: Broker, topic: str, offsets: Sequence[int]
) -> Mapping[int, dict[str, Any]]:
    """Return what the broker shows of messages, by offset. Those that do not exist are left out."""
    found: dict[int, dict[str, Any]] = {}

    async def show(offset: int) -> None:
        with suppress(NotFound):  # deleted meanwhile
            found[offset] = await broker.admin("messages.show", topic=topic, offset=offset)

    await at_once([partial(show, offset) for offset in offsets])
    return found


def row_of(answer: Mapping[str, Any], state: str) -> Row:
    """Return the row of a message that the broker has shown."""
    return Row(
        answer["topic"],
        answer["offset"],
        answer["due_at_ms"],
        state,
        answer["key"],
        answer["properties"],
        answer["size_bytes"],
    )


def _row(topic: str, one: Mapping[str, Any], now_ms: int) -> Row:
    state = "due" if one["due_at_ms"] <= now_ms else "not yet due"
    return row_of({"topic": topic, **one}, state)
