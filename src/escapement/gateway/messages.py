"""The operations that show, reschedule and cancel messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from escapement.client.administration.message_history import MessageHistory, SubscriptionStatus
from escapement.client.administration.outcome import Outcome, Outcomes
from escapement.client.broker import Broker
from escapement.client.selection import criteria
from escapement.clock import moment
from escapement.errors import Conflict, InvalidRequest, NotFound
from escapement.gateway.new_message import Duration, Moment
from escapement.gateway.operation import Answer, Call, Operation
from escapement.gateway.payload import Payload, ShownProperties, shown_properties
from escapement.message import MessageId
from escapement.protocol.amend_status import AmendStatus
from escapement.protocol.limits import MAX_REASON_CHARS

# The most messages of one page.
MOST_SHOWN: Final = 1000

Cursor = Annotated[
    str, Meta(pattern="^[0-9]{1,18}-[0-9]{1,18}$", description="``next`` of the page before.")
]


class ShownMessage(Struct):
    """A message and its history. ``payload`` has the first 512 of its ``size_bytes``."""

    id: str
    offset: int
    state: str
    published_at: datetime
    due_at: datetime
    key: str | None
    properties: ShownProperties
    priority: int
    group: str | None
    size_bytes: int
    payload: Payload
    subscriptions: list[SubscriptionStatus]

    @classmethod
    def of(cls, found: MessageHistory) -> ShownMessage:
        """Return a message as JSON shows it."""
        return cls(
            str(found.id),
            found.id.offset,
            found.state,
            found.published_at,
            found.due_at,
            found.key,
            shown_properties(found.properties),
            found.priority,
            found.group,
            found.size_bytes,
            Payload.of(found.payload),
            found.subscriptions,
        )


class PendingMessage(Struct):
    """A pending message. ``payload`` has the first 512 of its ``size_bytes``."""

    id: str
    offset: int
    due_at: datetime
    key: str | None
    properties: ShownProperties
    size_bytes: int
    payload: Payload


class Page(Struct):
    """Pending messages, next due first. ``next`` is the cursor of the next page, or null."""

    messages: list[PendingMessage]
    next: str | None


class Filter(Struct, forbid_unknown_fields=True):
    """Which pending messages to show."""

    key: str | None = None
    due_from: Moment | None = None
    due_until: Moment | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_SHOWN)] = 100
    after: Cursor | None = None


class Named(Struct, forbid_unknown_fields=True):
    """All pending messages with a key, or the message with an idempotency key."""

    key: str | None = None
    idempotency_key: str | None = None


class Why(Struct):
    """The reason of a change. The audit log has it, and only changes with a reason."""

    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)] = ""


class NewTime(Struct, forbid_unknown_fields=True):
    """A new due time: after a delay, at a time, or now. ``spread`` scatters it over a span."""

    delay: Duration | None = None
    at: Moment | None = None
    now: bool = False
    spread: Duration | None = None


class Change(Struct):
    """The outcome of a change of a message.

    ``status`` is done, delivered, cancelled, over or unknown. ``handed`` names the subscriptions
    that had the message before, and keep it.
    """

    id: str
    offset: int | None
    status: str
    handed: list[str]


class Changes(Struct):
    """The outcomes of a change of several messages. ``done`` is the number of changed messages."""

    done: int
    messages: list[Change]


async def show(call: Call) -> Answer:
    """Show a message."""
    return Answer(ShownMessage.of(await call.client.broker.show(_id(call))))


async def payload(call: Call) -> Answer:
    """Return the whole payload of a message."""
    offset = _id(call).offset
    async for page in call.client.broker.read(call.topic, offset, offset + 1):
        return Answer(page[0].payload)
    raise NotFound(f"There is no message {_id(call)}, or its log was deleted.")


async def search(call: Call) -> Answer:
    """Show the pending messages of a topic that match a filter."""
    query: Filter = call.query
    answer = await call.client.broker.admin(
        "topics.peek",
        topic=call.topic,
        count=query.limit,
        after=None if query.after is None else [int(one) for one in query.after.split("-")],
        **criteria(query.due_from, query.due_until, query.key),
    )
    found = [
        PendingMessage(
            str(MessageId(call.topic, one["offset"])),
            one["offset"],
            moment(one["due_at_ms"]),
            one["key"],
            shown_properties(one["properties"]),
            one["size_bytes"],
            Payload.of(one["payload"]),
        )
        for one in answer["messages"]
    ]
    after = answer["next"]
    return Answer(Page(found, None if after is None else "-".join(map(str, after))))


async def reschedule(call: Call) -> Answer:
    """Give a message another due time."""
    return _changed((await _reschedule(call, {"what": _id(call)}))[0])


async def reschedule_all(call: Call) -> Answer:
    """Give another due time to all pending messages with a key."""
    return _all_changed(await _reschedule(call, _named(call)))


async def cancel(call: Call) -> Answer:
    """Cancel a message, so that it is never delivered."""
    return _changed((await _broker(call).cancel(_id(call)))[0])


async def cancel_all(call: Call) -> Answer:
    """Cancel all pending messages with a key."""
    return _all_changed(await _broker(call).cancel(**_named(call)))


async def _reschedule(call: Call, named: dict[str, Any]) -> Outcomes:
    time: NewTime = call.body
    if (time.delay is not None) + (time.at is not None) + time.now != 1:
        raise InvalidRequest("Give exactly one of delay, at and now.")
    broker = _broker(call)
    if time.now:
        return await broker.run_now(**named, spread=time.spread)
    return await broker.reschedule(**named, delay=time.delay, at=time.at, spread=time.spread)


def _broker(call: Call) -> Broker:
    """Return the client of a request that changes messages, with its reason."""
    why: Why = call.headers
    return call.client.broker.because(why.reason)


def _id(call: Call) -> MessageId:
    text = call.path["offset"]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidRequest(f"{text[:40]!r} is not the offset of a message.")
    return MessageId(call.topic, int(text))


def _named(call: Call) -> dict[str, Any]:
    query: Named = call.query
    if (query.key is None) == (query.idempotency_key is None):
        raise InvalidRequest("Name the messages by the parameter key or idempotency_key.")
    return {"topic": call.topic, "key": query.key, "dedup": query.idempotency_key}


def _changed(outcome: Outcome) -> Answer:
    """Return the answer for one message. Only a message that was changed is a success."""
    if outcome.status is AmendStatus.UNKNOWN:
        raise NotFound(f"There is no message {outcome.id}.")
    if not outcome.done:
        raise Conflict(f"Message {outcome.id} was not changed: it is {_word(outcome.status)}.")
    return Answer(_change(outcome))


def _all_changed(outcomes: Outcomes) -> Answer:
    changes: Iterable[Change] = map(_change, outcomes)
    return Answer(Changes(int(outcomes.done.sum()), list(changes)))


def _change(outcome: Outcome) -> Change:
    offset = outcome.id.offset if outcome.id.offset >= 0 else None
    return Change(str(outcome.id), offset, _word(outcome.status), list(outcome.handed))


def _word(status: AmendStatus) -> str:
    return status.name.lower()


_ONE: Final = "/messages/{offset}"
OPERATIONS: Final = [
    Operation("search", "GET", "/messages", "Show pending messages, next due first.", search,
              query=Filter, result=Page),
    Operation("reschedule_all", "PATCH", "/messages", "Reschedule pending messages by their key.",
              reschedule_all, headers=Why, query=Named, body=NewTime, result=Changes),
    Operation("cancel_all", "DELETE", "/messages", "Cancel pending messages by their key.",
              cancel_all, headers=Why, query=Named, result=Changes),
    Operation("show", "GET", _ONE, "Show a message and its history.", show, result=ShownMessage),
    Operation("reschedule", "PATCH", _ONE, "Give a message another due time.", reschedule,
              headers=Why, body=NewTime, result=Change),
    Operation("cancel", "DELETE", _ONE, "Cancel a message.", cancel, headers=Why,
              result=Change),
    Operation("payload", "GET", f"{_ONE}/payload", "Return the whole payload of a message.",
              payload, result=bytes),
]  # fmt: skip
