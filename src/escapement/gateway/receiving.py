"""The operations of consumers: receive, acknowledge, give back and extend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final

import trio
from msgspec import Meta, Struct
from starlette.requests import Request

from escapement.client.consuming.batch import Batch, Message
from escapement.client.consuming.return_queue import ReturnKind
from escapement.durations import parse
from escapement.errors import EscapementError, InvalidRequest
from escapement.gateway.new_message import Duration
from escapement.gateway.operation import Answer, Call, Operation
from escapement.gateway.payload import Payload, ShownProperties, shown_properties
from escapement.gateway.pull_consumers import Source
from escapement.names import check_name
from escapement.protocol import commands as wire
from escapement.protocol.limits import MAX_DETAIL_CHARS

# The most messages of one answer, and how long a request may wait for them.
MOST_RECEIVED: Final = 1000
LONGEST_WAIT_S: Final = 60.0
# The most messages that one request may acknowledge.
MOST_ACKED: Final = 10_000

Offset = Annotated[int, Meta(ge=0, lt=10**18)]


class Demand(Struct, forbid_unknown_fields=True):
    """How many messages to receive, and how long to wait for the first one.

    ``ack_wait`` is how long they may stay unacknowledged before they are delivered again. The
    default is that of the subscription.
    """

    max_messages: Annotated[int, Meta(ge=1, le=MOST_RECEIVED)] = 10
    wait: Duration = "20s"
    ack_wait: Duration | None = None


class ReceivedMessage(Struct):
    """A message to process, and then to acknowledge."""

    id: str
    offset: int
    attempt: int
    redelivered: bool
    due_at: datetime
    key: str | None
    properties: ShownProperties
    priority: int
    group: str | None
    payload: Payload

    @classmethod
    def of(cls, message: Message) -> ReceivedMessage:
        """Return a delivered message as JSON shows it."""
        return cls(
            str(message.id),
            message.offset,
            message.attempt,
            message.redelivered,
            message.deliver_at,
            message.key,
            shown_properties(message.properties),
            message.priority,
            message.group,
            Payload.of(message.payload),
        )


class Received(Struct):
    """The messages of an answer; none if the wait was over."""

    messages: list[ReceivedMessage]


class Handled(Struct, forbid_unknown_fields=True):
    """The offsets of messages that a consumer has processed."""

    offsets: Annotated[list[Offset], Meta(min_length=1, max_length=MOST_ACKED)]


class GivenBack(Struct, forbid_unknown_fields=True):
    """The offsets of messages that a consumer gives back, and when to deliver them again.

    Without ``delay``, failed messages follow the back-off of the subscription, and untried ones are
    delivered at once.
    """

    offsets: Annotated[list[Offset], Meta(min_length=1, max_length=MOST_ACKED)]
    delay: Duration | None = None


class GivenUp(Struct, forbid_unknown_fields=True):
    """The offsets of messages that can never be processed, and why, such as "HTTP 410"."""

    offsets: Annotated[list[Offset], Meta(min_length=1, max_length=MOST_ACKED)]
    detail: Annotated[str, Meta(max_length=MAX_DETAIL_CHARS)] = ""


class Extension(Struct, forbid_unknown_fields=True):
    """The offsets of messages that a consumer still processes, and the time that it needs."""

    offsets: Annotated[list[Offset], Meta(min_length=1, max_length=MOST_ACKED)]
    wait: Duration


class Count(Struct):
    """The number of messages that the request has changed.

    An ack changes all messages that are not acknowledged yet. The other requests change only
    messages that are in flight at this gateway.
    """

    count: int


async def receive(call: Call) -> Answer:
    """Receive messages. The request waits until there are any (long polling)."""
    demand: Demand = call.body
    wait_s = parse(demand.wait) / 1000
    if wait_s > LONGEST_WAIT_S:
        raise InvalidRequest(f"wait must be at most {LONGEST_WAIT_S:g} s, not {demand.wait}.")
    source = _source(call)

    async def pull() -> list[Batch]:
        pulls = call.client.pulls
        return await pulls.pull(source, demand.max_messages, wait_s, demand.ack_wait)

    batches = await _while_connected(call.request, pull)
    return Answer(Received([ReceivedMessage.of(one) for batch in batches for one in batch]))


async def ack(call: Call) -> Answer:
    """Acknowledge messages. The answer comes when this is durable."""
    inbox = await call.client.pulls.any_inbox(_source(call))
    count = await inbox.ack(call.body.offsets, durable=True)
    assert count is not None, "a durable acknowledgement has a count"
    return Answer(Count(count))


async def nack(call: Call) -> Answer:
    """Give back messages that could not be processed. They are delivered again."""
    return await _give_back(call, wire.Nack, delay=call.body.delay)


async def reject(call: Call) -> Answer:
    """Give up messages that can never be processed. They become dead letters at once."""
    return await _give_back(call, wire.Reject, detail=call.body.detail)


async def release(call: Call) -> Answer:
    """Give back messages that were not tried. The delivery does not count as an attempt."""
    return await _give_back(call, wire.Release, delay=call.body.delay)


async def _give_back(
    call: Call, kind: ReturnKind, delay: Duration | None = None, detail: str = ""
) -> Answer:
    count = 0
    for inbox in await call.client.pulls.inboxes(_source(call)):
        count += await inbox._return_counted(kind, call.body.offsets, delay, detail)
    return Answer(Count(count))


async def extend(call: Call) -> Answer:
    """Extend the time to acknowledge messages."""
    count = 0
    for inbox in await call.client.pulls.inboxes(_source(call)):
        count += await inbox.extend(call.body.offsets, call.body.wait)
    return Answer(Count(count))


def _source(call: Call) -> Source:
    return Source(call.topic, check_name("subscription", call.path["subscription"]))


async def _while_connected(
    request: Request, act: Callable[[], Awaitable[list[Batch]]]
) -> list[Batch]:
    """Return the result of ``act``. Cancel it if the sender of the request disconnects."""
    result: list[Batch] = []
    failure: EscapementError | None = None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            result = await act()
        except EscapementError as error:
            failure = error  # raised below, so that it is not wrapped in an exception group
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


_SUBSCRIPTION: Final = "/subscriptions/{subscription}"


def _operation(name: str, summary: str, act: Any, body: type, result: type) -> Operation:
    path = f"{_SUBSCRIPTION}/{name}"
    return Operation(name, "POST", path, summary, act, body=body, result=result)


OPERATIONS: Final = [
    _operation("receive", "Receive messages, by long polling.", receive, Demand, Received),
    _operation("ack", "Acknowledge messages.", ack, Handled, Count),
    _operation("nack", "Give back failed messages.", nack, GivenBack, Count),
    _operation("reject", "Give up messages: they become dead letters.", reject, GivenUp, Count),
    _operation("release", "Give back untried messages.", release, GivenBack, Count),
    _operation("extend", "Extend the time to acknowledge messages.", extend, Extension, Count),
]
