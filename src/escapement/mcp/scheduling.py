"""The tool that schedules a message.

The number of pending messages with a key is counted before a message is stored. The calls of this
process do it one after the other, so together they never exceed the limit. Another process counts
by itself: if N processes schedule messages with one key at the same time, the limit may be exceeded
by N - 1.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Annotated, Final

from pydantic import BaseModel, Field, JsonValue

from escapement.errors import Disconnected, InvalidRequest, NotFound
from escapement.http import json_values
from escapement.mcp.tool import Arguments, Call, Duration, Moment, Tool, TopicText

# The most characters of a key and of an idempotency key.
_MOST_KEY_CHARS: Final = 200

KeyText = Annotated[str, Field(min_length=1, max_length=_MOST_KEY_CHARS)]


class ScheduleMessage(Arguments):
    """A message to schedule. Its payload is one of ``payload_text`` and ``payload_json``."""

    topic: TopicText
    payload_text: str | None = Field(None, description="The payload as text.")
    payload_json: dict[str, JsonValue] | list[JsonValue] | None = Field(
        None, description="The payload as JSON, instead of payload_text."
    )
    delay: Duration | None = Field(None, description="Deliver after this delay, such as 30m.")
    at: Moment | None = Field(None, description="Deliver at this time, instead of after a delay.")
    key: KeyText | None = Field(
        None,
        description="A name for what the message is about, such as an order. list_messages and "
        "cancel_message find messages by it.",
    )
    properties: dict[str, str | int | float | bool | None] | None = Field(
        None, description="Values for the application that receives the message."
    )
    idempotency_key: KeyText | None = Field(
        None,
        description="A text of your choice. A second message of the topic with the same text is "
        "not stored within ten minutes, or as the topic is set. So the call may be repeated.",
    )

    def payload(self) -> bytes:
        """Return the payload.

        Raises:
          InvalidRequest: unless exactly one payload is given, and JSON can represent it.
        """
        if (self.payload_text is None) == (self.payload_json is None):
            raise InvalidRequest("Give exactly one of payload_text and payload_json.")
        if self.payload_text is not None:
            return self.payload_text.encode()
        try:
            return json.dumps(self.payload_json, ensure_ascii=False, allow_nan=False).encode()
        except ValueError:
            raise InvalidRequest(
                "payload_json has a number that JSON does not have: NaN, or one that is too large. "
                "Send it as text."
            ) from None

    def size_bytes(self) -> int:
        """Return the size of the payload and the properties."""
        size = len(json_values.encode(self.properties)) if self.properties else 0
        return len(self.payload()) + size


class Scheduled(BaseModel):
    """A message that is durable."""

    id: str | None = Field(description="The id of the message; null if it is not known.")
    duplicate: bool = Field(
        description="True if a message with this idempotency_key was stored before. Then nothing "
        "new was stored, and id is that of the other message."
    )


async def schedule_message(call: Call, given: ScheduleMessage) -> Scheduled:
    """Store a message that is delivered later."""
    topic = call.limits.topic(given.topic)
    call.limits.check_size(given.size_bytes())
    call.limits.check_time(given.delay, given.at, call.now_ms())
    async with AsyncExitStack() as stack:
        if given.key is not None:
            await stack.enter_async_context(call.counting)
            if not await _is_known(call, topic, given.idempotency_key):
                call.limits.check_pending(topic, given.key, await _pending(call, topic, given.key))
        producer = await stack.enter_async_context(call.client.producers.use(topic))
        try:
            receipt = await producer.send(
                given.payload(),
                delay=given.delay,
                at=given.at,
                key=given.key,
                properties=given.properties,
                dedup=given.idempotency_key,
            )
        except Disconnected as error:
            raise Disconnected(
                f"{str(error).rstrip('.')}. The message may or may not be stored. Repeat the call "
                "only with the same idempotency_key; without one, look with list_messages first."
            ) from None
    return Scheduled(
        id=None if receipt.id is None else str(receipt.id), duplicate=receipt.duplicate
    )


async def _pending(call: Call, topic: str, key: str) -> int:
    """Count the pending messages with a key, up to the limit."""
    found = call.client.broker.peek(topic, key=key, count=call.limits.max_pending_per_key)
    try:
        return len([one async for one in found])
    except NotFound:
        return 0  # the topic does not exist yet


async def _is_known(call: Call, topic: str, idempotency_key: str | None) -> bool:
    """Return whether the message was stored before, so that a repeated call stores no other."""
    if idempotency_key is None:
        return False
    try:
        return (await call.client.broker.find(topic, idempotency_key))[0] is not None
    except NotFound:
        return False


TOOLS: Final = [
    Tool(
        "schedule_message",
        "Schedule a message: it is delivered to the subscriptions of the topic after a delay or "
        "at a time. Without both it is delivered at once, or after the default delay of the topic. "
        "The answer comes when the message is durable. Give an idempotency_key if you may have to "
        "repeat the call.",
        ScheduleMessage,
        Scheduled,
        schedule_message,
        writes=True,
        repeatable=False,
    )
]
