"""The operations that publish messages."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from escapement.client.producing.receipt import Receipt
from escapement.errors import InvalidRequest
from escapement.gateway.new_message import (
    Duration,
    Moment,
    NewBatch,
    NewMessage,
    NewReplace,
    Priority,
    send,
)
from escapement.gateway.operation import Answer, Call, Operation


class MessageHeaders(Struct):
    """The headers of a message."""

    delay: Duration | None = None
    at: Moment | None = None
    idempotency_key: str | None = None
    key: str | None = None
    priority: Priority | None = None
    properties: Annotated[str, Meta(description="A JSON object.")] | None = None
    group: str | None = None
    replace_key: str | None = None
    spread: Duration | None = None


class Published(Struct):
    """A message that is durable.

    ``duplicate`` is true if the topic had a message with this idempotency key already. Then ``id``
    and ``offset`` name that message, or are null if they are not known. ``replaced`` is the id of
    the pending message that this one replaced. ``kept`` is true if a pending message was kept.
    """

    id: str | None
    offset: int | None
    duplicate: bool
    replaced: str | None
    kept: bool

    @classmethod
    def of(cls, receipt: Receipt) -> Published:
        """Return a receipt as JSON shows it."""
        id, replaced = receipt.id, receipt.replaced
        return cls(
            None if id is None else str(id),
            None if id is None else id.offset,
            receipt.duplicate,
            None if replaced is None else str(replaced),
            receipt.kept,
        )


class PublishedBatch(Struct):
    """The messages of a request, in its order."""

    messages: list[Published]


async def publish(call: Call) -> Answer:
    """Publish a message whose payload is the body of the request."""
    headers: MessageHeaders = call.headers
    message = NewMessage(
        base64=call.body,
        delay=headers.delay,
        at=headers.at,
        idempotency_key=headers.idempotency_key,
        key=headers.key,
        priority=headers.priority,
        properties=_properties(headers.properties),
        group=headers.group,
        replace=None if headers.replace_key is None else NewReplace(headers.replace_key),
    )
    async with call.client.producers.use(call.topic) as producer:
        receipts = await send(producer, [message], headers.spread)
    published = Published.of(receipts[0])
    location = f"/v1/topics/{call.topic}/messages/{published.offset}"
    return Answer(published, None if published.offset is None else {"location": location})


async def publish_batch(call: Call) -> Answer:
    """Publish several messages. All of them are stored, or the answer says that it is not known."""
    batch: NewBatch = call.body
    async with call.client.producers.use(call.topic) as producer:
        receipts = await send(producer, batch.messages, batch.spread)
    return Answer(PublishedBatch([Published.of(receipt) for receipt in receipts]))


def _properties(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Escapement-Properties is not a JSON object: {error}.") from None
    return found


OPERATIONS: Final = [
    Operation(
        "publish",
        "POST",
        "/messages",
        "Publish a message. The body is its payload.",
        publish,
        headers=MessageHeaders,
        body=bytes,
        result=Published,
        status=201,
    ),
    Operation(
        "publish_batch",
        "POST",
        "/batches",
        "Publish several messages.",
        publish_batch,
        body=NewBatch,
        result=PublishedBatch,
        status=201,
    ),
]
