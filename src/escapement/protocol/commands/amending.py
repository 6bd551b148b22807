"""Commands to cancel or reschedule messages that are published and not delivered yet."""

from __future__ import annotations

from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import (
    AckColumn,
    AmendStatusColumn,
    Count,
    CountOrNone,
    Id,
    PlainMap,
    Reason,
    Topic,
)
from escapement.protocol.limits import MAX_FRAME_BYTES


@command(50, "client")
class Cancel(Command):
    """A request to cancel messages, for all subscriptions to which they are not delivered yet.

    The broker answers with Amended when the cancellation is durable.
    """

    request_id: Id
    topic: Topic
    offsets: AckColumn
    reason: Reason = ""

    OPTIONAL_FIELDS = 1
    MAX_BYTES = MAX_FRAME_BYTES


@command(51, "client")
class Reschedule(Command):
    """A request to change the due time of messages: to a delay, a time, or now if both are -1.

    ``delay_ms`` counts from the moment the broker accepts the request. The messages are scattered
    over ``spread_ms`` from then on (escapement/spread.py); 0: they all have the same due time. The
    broker answers with Amended when the new due time is durable.
    """

    request_id: Id
    topic: Topic
    offsets: AckColumn
    delay_ms: CountOrNone
    at_ms: CountOrNone
    spread_ms: Count
    reason: Reason = ""

    OPTIONAL_FIELDS = 1
    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        if self.delay_ms >= 0 and self.at_ms >= 0:
            raise ValueError("delay_ms and at_ms exclude each other")


@command(52, "broker")
class Amended(Command):
    """The reply to Cancel or Reschedule: the outcome for each message, in the order of the request.

    ``statuses`` has one value of ``AmendStatus`` per message. ``handed`` maps the name of each
    subscription to which some of the messages had been delivered before to a string of bits, one
    per message. A bit is 1 if that message had been delivered to the subscription. The bit of the
    first message is the highest bit of the first byte.
    """

    request_id: Id
    statuses: AmendStatusColumn
    handed: PlainMap

    MAX_BYTES = MAX_FRAME_BYTES
    MAX_CONTAINERS = 2  # the frame and the map

    def check(self) -> None:
        size = -(-len(self.statuses) // 8)
        if not all(type(bits) is bytes and len(bits) == size for bits in self.handed.values()):
            raise ValueError("handed has an entry that does not have one bit per message")
