"""The administrative operations (*verbs*) on dead letters.

They count, list, find, show, redrive and purge them.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final, NotRequired, TypedDict, cast

import numpy as np

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.conditions import take_span_and_key
from escapement.broker.admin.content import MAX_MESSAGES, PREVIEW_BYTES, readable, readable_key
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker
from escapement.broker.inbox.dead_letter_topic import Whose
from escapement.broker.inbox.dead_letters import Page
from escapement.message import Int64s
from escapement.names import TopicName

# The most dead letters that one request counts, redrives or purges, in about a second.
MAX_MOVED: Final = 10_000


class DeadLetter(TypedDict):
    """A dead letter. It has of its origin what the broker noted in its properties."""

    offset: int
    due_at_ms: int
    reason: NotRequired[str]
    detail: NotRequired[str]
    attempts: NotRequired[int]
    subscription: NotRequired[str]
    died_at_ms: NotRequired[int]
    published_at_ms: NotRequired[int]
    original_topic: NotRequired[str]
    original_offset: NotRequired[int]
    original_due_at_ms: NotRequired[int]
    key: str | None
    size_bytes: int
    properties: NotRequired[dict[str, Plain]]
    payload: bytes


class FoundDeadLetters(TypedDict):
    """The dead letters that a message has become, and where the search continues."""

    dead_letters: list[DeadLetter]
    next: list[int] | None
    looked: int


class DeadLetterCount(TypedDict):
    """The number of dead letters, and where the count continues: due time and offset."""

    dead_letters: int
    next: list[int] | None


class Redriven(TypedDict):
    """How many dead letters were published again."""

    redriven: int


class Purged(TypedDict):
    """How many dead letters were deleted."""

    purged: int


async def _list(broker: Broker, given: Arguments) -> list[DeadLetter]:
    whose = _whose(given)
    most = min(given.optional_number("count") or 10, MAX_MESSAGES)
    given.end()
    rows: list[DeadLetter] = []
    found = await broker.services.dead_letters.pages(whose)
    async with broker.look(), aclosing(found) as pages:
        async for page in pages:
            async with broker.answering:
                wanted = np.arange(min(most - len(rows), len(page.offsets)))
                rows += _rows(page.pick(wanted), PREVIEW_BYTES)
            if len(rows) == most:
                break
    async with broker.answering:
        return rows


async def _show(broker: Broker, given: Arguments) -> DeadLetter:
    whose = _whose(given)
    offset = given.number("offset")
    given.end()
    async with broker.look():
        page = await broker.services.dead_letters.show(whose, offset)
        async with broker.answering:
            return _rows(page, None)[0]


async def _find(broker: Broker, given: Arguments) -> FoundDeadLetters:
    whose = _whose(given)
    offset = given.number("offset")
    sought, after = take_span_and_key(given), given.delivery_key("after")
    given.end()
    letters, now_ms = broker.services.dead_letters, broker.clock.now_ms()
    async with broker.look():
        page, next, looked = await letters.find(whose, offset, sought, now_ms, after)
        async with broker.answering:
            return {
                "dead_letters": [] if page is None else _rows(page, PREVIEW_BYTES),
                "next": None if next is None else list(next),
                "looked": looked,
            }


async def _count(broker: Broker, given: Arguments) -> DeadLetterCount:
    whose = _whose(given)
    only, most = _which(given)
    after = given.delivery_key("after")
    given.end()
    async with broker.look():
        counted, next = await broker.services.dead_letters.count(whose, only, most, after)
    return {"dead_letters": counted, "next": None if next is None else list(next)}


async def _redrive(broker: Broker, given: Arguments) -> Redriven:
    whose = _whose(given)
    only, most = _which(given)
    spread_ms = given.optional_number("spread_ms") or 0
    given.end()
    redriven = await broker.services.dead_letters.redrive(whose, only, most, spread_ms)
    return {"redriven": redriven}


async def _purge(broker: Broker, given: Arguments) -> Purged:
    whose = _whose(given)
    only, most = _which(given)
    given.end()
    return {"purged": await broker.services.dead_letters.purge(whose, only, most)}


def _whose(given: Arguments) -> Whose:
    topic, subscription = given.topic_name("topic"), given.text("subscription")
    lie_in = given.optional_text("dead_letter_topic")
    return Whose(topic, subscription, None if lie_in is None else TopicName.parse(lie_in))


def _which(given: Arguments) -> tuple[Int64s | None, int]:
    """Take the arguments ``offsets`` and ``count``.

    Returns:
      The offsets of the dead letters to handle (None: of all), and the most to handle.
    """
    offsets = given.optional_numbers("offsets")
    most = min(given.optional_number("count") or MAX_MOVED, MAX_MOVED)
    return None if offsets is None else np.array(offsets, np.int64), most


def _rows(page: Page, preview_bytes: int | None) -> list[DeadLetter]:
    table = zip(
        page.offsets.tolist(),
        page.due_ms.tolist(),
        page.origins,
        page.batch.strings(page.batch.keys),
        page.batch.payloads.to_list(),
        page.batch.strings(page.batch.properties),
        strict=True,
    )
    rows = []
    for offset, due_ms, origin, key, payload, properties in table:
        row: dict[str, Any] = {"offset": offset, "due_at_ms": due_ms}
        row |= {f"original_{n}" if n in _ORIGINAL else n: v for n, v in origin.items()}
        row |= {"key": readable_key(key[:preview_bytes]), "size_bytes": len(payload)}
        if preview_bytes is None:
            row["properties"] = readable(properties)
        rows.append(cast(DeadLetter, row | {"payload": payload[:preview_bytes]}))
    return rows


# Fields of the original message that get the prefix ``original_`` in an answer, because the dead
# letter has fields of these names too.
_ORIGINAL: Final = ("topic", "offset", "due_at_ms")

VERBS: Final[dict[str, Verb]] = {
    "dlq.count": _count,
    "dlq.list": _list,
    "dlq.find": _find,
    "dlq.show": _show,
    "dlq.redrive": _redrive,
    "dlq.purge": _purge,
}
