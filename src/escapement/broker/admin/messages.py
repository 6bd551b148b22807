"""The administrative operations (*verbs*) on messages of a topic: peek, select, show."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Final, TypedDict

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.conditions import take_sought
from escapement.broker.admin.content import MAX_MESSAGES, PREVIEW_BYTES, readable, readable_key
from escapement.broker.admin.result import Fields
from escapement.broker.admin.verb import Verb, topic_of
from escapement.broker.broker import Broker
from escapement.broker.inspection.message_history import State, SubscriptionStatus
from escapement.broker.inspection.peek import Peeked
from escapement.storage.index import Key


class Content(TypedDict):
    """What a message has: its payload may be cut."""

    key: str | None
    properties: dict[str, Plain]
    size_bytes: int
    payload: bytes


class PeekedMessage(Content):
    """A pending message."""

    offset: int
    due_at_ms: int
    due_in_ms: int


class MessagePage(TypedDict):
    """Some pending messages, and where the next page begins: its due time and offset."""

    messages: list[PeekedMessage]
    next: list[int] | None
    looked: int


class SelectedOffsets(TypedDict):
    """The offsets of messages as little-endian int64s, and where the next page begins."""

    offsets: bytes
    next: list[int] | None
    looked: int


class MessageState(Content):
    """A message, and its state as a whole and in each subscription."""

    topic: str
    offset: int
    state: State
    published_at_ms: int
    due_at_ms: int
    priority: int
    group: str | None
    subscriptions: list[Annotated[dict[str, Plain], Fields(SubscriptionStatus)]]


async def _peek_topic(broker: Broker, given: Arguments) -> MessagePage:
    topic = topic_of(broker, given)
    count = given.optional_number("count") or 10
    sought, after = take_sought(given), given.delivery_key("after")
    offset = given.optional_offset("offset")
    given.end()
    async with broker.look(sought.by_content):
        if offset is not None:
            there = Key(await broker.due_of(topic, offset), offset)
            start, stop = max(sought.start, there), min(sought.stop, there.successor())
            sought = replace(sought, start=start, stop=stop)
        found = await broker.peek(topic, sought, min(count, MAX_MESSAGES), after)
        async with broker.answering:
            return _page(found, broker.clock.now_ms())


def _page(found: Peeked, now_ms: int) -> MessagePage:
    columns = (
        found.due_ms.tolist(),
        found.offsets.tolist(),
        found.batch.strings(found.batch.keys),
        found.batch.strings(found.batch.properties),
        found.batch.payloads.to_list(),
    )
    return {
        "messages": [
            {
                "offset": offset,
                "due_at_ms": due_ms,
                "due_in_ms": max(due_ms - now_ms, 0),
                **_content(key, properties, payload),
            }
            for due_ms, offset, key, properties, payload in zip(*columns, strict=True)
        ],
        "next": None if found.next is None else list(found.next),
        "looked": found.looked,
    }


async def _select_messages(broker: Broker, given: Arguments) -> SelectedOffsets:
    topic = topic_of(broker, given)
    sought, after = take_sought(given), given.delivery_key("after")
    given.end()
    found = await broker.select(topic, sought, after)
    return {
        "offsets": found.offsets.astype("<i8").tobytes(),
        "next": None if found.next is None else list(found.next),
        "looked": found.looked,
    }


def _content(key: bytes, properties: bytes, payload: bytes) -> Content:
    return {
        "key": readable_key(key),
        "properties": readable(properties),
        "size_bytes": len(payload),
        "payload": payload[:PREVIEW_BYTES],
    }


async def _show_message(broker: Broker, given: Arguments) -> MessageState:
    topic = topic_of(broker, given)
    offset = given.number("offset")
    given.end()
    async with broker.look():
        found = await broker.message_history(topic, offset)
        async with broker.answering:
            return {
                "topic": topic.name.full,
                "offset": offset,
                "state": found.state,
                "published_at_ms": found.published_ms,
                "due_at_ms": found.due_ms,
                **_content(found.key, found.properties, found.payload),
                "priority": found.priority,
                "group": found.group.decode() or None,
                "subscriptions": [asdict(one) for one in found.subscriptions],
            }


VERBS: Final[dict[str, Verb]] = {
    "topics.peek": _peek_topic,
    "messages.select": _select_messages,
    "messages.show": _show_message,
}
