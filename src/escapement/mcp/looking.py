"""The tools that only read: pending messages, one message, the forecast, topics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from escapement.client.selection import criteria
from escapement.clock import moment
from escapement.errors import InvalidRequest, NotFound
from escapement.mcp.content import Untrusted, untrusted
from escapement.mcp.limits import MOST_MESSAGES
from escapement.mcp.tool import (
    UNTRUSTED_HINT,
    Arguments,
    Call,
    Duration,
    MessageIdText,
    Moment,
    Tool,
    TopicText,
)
from escapement.message import MessageId
from escapement.names import read_message_id
from escapement.protocol.limits import MAX_TOPIC_CHARS

# The most spans of a forecast. A month of hours has 744.
MOST_SPANS: Final = 1_000
# The most topics of one call.
MOST_TOPICS: Final = 1_000

Properties = Annotated[
    dict[str, str | int | float | bool | None],
    Field(description="Only messages with all of these properties."),
]


class ListMessages(Arguments):
    """Which pending messages to list."""

    topic: TopicText
    key: str | None = Field(None, min_length=1, description="Only messages with this key.")
    properties: Properties | None = None
    due_from: Moment | None = Field(None, description="Only messages due at this time or later.")
    due_until: Moment | None = Field(None, description="Only messages due before this time.")
    count: int = Field(20, ge=1, le=MOST_MESSAGES, description="The most messages to list.")
    cursor: str | None = Field(
        None,
        pattern="^[0-9]{1,18}-[0-9]{1,18}$",
        description="next_cursor of the call before, with the same other arguments.",
    )


class PendingMessage(BaseModel):
    """A pending message."""

    id: str
    due_at: datetime
    size_bytes: int = Field(description="The size of the payload.")
    content: Untrusted


class PendingMessages(BaseModel):
    """Pending messages, next due first."""

    messages: list[PendingMessage]
    next_cursor: str | None = Field(description="Give it as cursor to go on; null at the end.")


async def list_messages(call: Call, given: ListMessages) -> PendingMessages:
    """List pending messages of a topic."""
    topic = call.limits.topic(given.topic)
    answer = await call.client.broker.admin(
        "topics.peek",
        topic=topic,
        count=min(given.count, call.limits.max_messages),
        after=None if given.cursor is None else [int(one) for one in given.cursor.split("-")],
        **criteria(given.due_from, given.due_until, given.key, given.properties),
    )
    found = [
        PendingMessage(
            id=str(MessageId(topic, one["offset"])),
            due_at=moment(one["due_at_ms"]),
            size_bytes=one["size_bytes"],
            content=_content(
                call, one["key"], one["properties"], one["payload"], one["size_bytes"]
            ),
        )
        for one in answer["messages"]
    ]
    after = answer["next"]
    return PendingMessages(
        messages=found, next_cursor=None if after is None else "-".join(map(str, after))
    )


class ShowMessage(Arguments):
    """Which message to show."""

    id: MessageIdText


class SubscriptionState(BaseModel):
    """The state of a message in one subscription."""

    subscription: str
    kind: str
    state: str
    attempts: int | None
    since: datetime | None
    until: datetime | None


class ShownMessage(BaseModel):
    """A message and its state."""

    id: str
    state: str = Field(description="to_be_fired (not yet due), fired, acked, lapsed or cancelled.")
    published_at: datetime
    due_at: datetime
    size_bytes: int = Field(description="The size of the payload.")
    subscriptions: list[SubscriptionState]
    content: Untrusted


async def show_message(call: Call, given: ShowMessage) -> ShownMessage:
    """Show one message with its payload."""
    topic, offset = read_message_id(given.id)
    id = MessageId(call.limits.topic(topic), offset)
    broker = call.client.broker
    found = await broker.show(id)
    payload = found.payload
    if len(payload) < min(found.size_bytes, call.limits.max_payload_bytes):
        payload = await _whole(call, id, payload)
    return ShownMessage(
        id=str(found.id),
        state=found.state,
        published_at=found.published_at,
        due_at=found.due_at,
        size_bytes=found.size_bytes,
        subscriptions=[
            SubscriptionState(
                subscription=one.subscription,
                kind=one.kind,
                state=one.state,
                attempts=one.attempts,
                since=one.since,
                until=one.until,
            )
            for one in found.subscriptions
        ],
        content=_content(call, found.key, found.properties, payload, found.size_bytes),
    )


class GetForecast(Arguments):
    """Which spans of time to count."""

    topic: TopicText
    by: Duration = Field("1h", description="The length of a span, such as 1h.")
    within: Duration = Field("1d", description="How far to look ahead from now, such as 1d.")


class Span(BaseModel):
    """A span of time in which messages fall due."""

    begins_at: datetime
    count: int


class Forecast(BaseModel):
    """How many messages fall due."""

    total: int
    until: datetime
    spans: list[Span] = Field(description="The spans in which any message falls due.")


async def forecast(call: Call, given: GetForecast) -> Forecast:
    """Count the messages that fall due in each span."""
    topic = call.limits.topic(given.topic)
    found = await call.client.broker.forecast(topic, by=given.by, within=given.within)
    if len(found.counts) > MOST_SPANS:
        raise InvalidRequest(
            f"There would be {len(found.counts)} spans, and at most {MOST_SPANS} are allowed. Give "
            "a larger by, or a smaller within."
        )
    spans = [
        Span(begins_at=found.begins(at), count=count)
        for at, count in enumerate(found.counts)
        if count
    ]
    return Forecast(total=found.total, until=found.until, spans=spans)


class ListTopics(Arguments):
    """Which topics to list."""

    namespace: str | None = Field(
        None,
        max_length=MAX_TOPIC_CHARS,
        description="Only topics of this namespace, such as shop/eu.",
    )
    cursor: str | None = Field(
        None, max_length=MAX_TOPIC_CHARS, description="next_cursor of the call before."
    )


class Topics(BaseModel):
    """The names of topics, in order."""

    topics: list[str]
    next_cursor: str | None = Field(description="Give it as cursor to go on; null at the end.")
    incomplete: bool = Field(
        description="True if there are too many topics to list all: give a namespace."
    )


async def list_topics(call: Call, given: ListTopics) -> Topics:
    """List the topics that the agent may use."""
    answer = await call.client.broker.admin("topics.list", namespace=given.namespace)
    after = given.cursor or ""
    found = [name for name in answer["topics"] if name > after and call.limits.allows(name)]
    page = found[:MOST_TOPICS]
    return Topics(
        topics=page,
        next_cursor=page[-1] if len(page) < len(found) else None,
        incomplete=answer["total"] > len(answer["topics"]),
    )


async def _whole(call: Call, id: MessageId, start: bytes) -> bytes:
    """Return the payload of a message; only the start of it if the log has it no more."""
    try:
        async for page in call.client.broker.read(id.topic, id.offset, id.offset + 1):
            payload: bytes = page[0].payload
            return payload
    except NotFound:
        pass
    return start


def _content(
    call: Call, key: str | None, properties: dict[str, Any], payload: bytes, size_bytes: int
) -> Untrusted:
    return untrusted(key, properties, payload[: call.limits.max_payload_bytes], size_bytes)


TOOLS: Final = [
    Tool(
        "list_messages",
        "List the pending messages of a topic, next due first: those that are not yet due, and "
        "those that a subscription has not acknowledged. Shows the first 512 bytes of each "
        f"payload; show_message shows more. {UNTRUSTED_HINT}",
        ListMessages,
        PendingMessages,
        list_messages,
    ),
    Tool(
        "show_message",
        "Show a message by its id: when it is due, its state in each subscription, and its "
        f"payload. {UNTRUSTED_HINT}",
        ShowMessage,
        ShownMessage,
        show_message,
    ),
    Tool(
        "forecast",
        "Count the messages of a topic that fall due in each span of time from now on, such as "
        "each hour of the next day. Spans without messages are left out.",
        GetForecast,
        Forecast,
        forecast,
    ),
    Tool(
        "list_topics",
        "List the topics that may be used here.",
        ListTopics,
        Topics,
        list_topics,
    ),
]
