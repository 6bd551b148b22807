"""Commands of consumers: subscriptions, permits, deliveries and acknowledgements."""

from __future__ import annotations

from typing import Annotated

from escapement.message import MessageBatch
from escapement.protocol.body import decode_body
from escapement.protocol.commands.command import Command, command
from escapement.protocol.commands.refusal import ErrorCommand
from escapement.protocol.fields import (
    AckColumn,
    AttemptColumn,
    BodyBytes,
    Boolean,
    Code,
    Count,
    CountOrNone,
    Explanation,
    FlagColumn,
    Id,
    Int64Column,
    Integer,
    Keys,
    Name,
    OptionalAckColumn,
    OptionalId,
    OptionalName,
    Place,
    SubscriptionKind,
    Topic,
)
from escapement.protocol.limits import MAX_FRAME_BYTES, MAX_PERMITS
from escapement.traits import KeyRange


@command(20, "client")
class Subscribe(Command):
    """A request to join a subscription, which is created if it does not exist.

    ``position`` applies only to a new subscription. An ``ack_wait_ms`` of 0 selects the
    subscription's own ack wait.
    """

    request_id: Id
    consumer_id: Id
    topic: Topic
    subscription: Name
    kind: SubscriptionKind
    position: Annotated[str, Place()]
    ack_wait_ms: Count
    consumer_name: OptionalName
    key_range: Annotated[KeyRange, Keys()] = None

    MAX_CONTAINERS = 2  # the frame and the two slots


@command(21, "broker")
class ConsumerReady(Command):
    """The reply to Subscribe. ``topic`` is the full name, as used in message ids."""

    request_id: Id
    consumer_id: Id
    topic: Topic
    kind: SubscriptionKind


@command(22, "client")
class Flow(Command):
    """A grant of permits: the broker may deliver this many more messages."""

    consumer_id: Id
    permits: Annotated[int, Integer(1, MAX_PERMITS)]


@command(23, "broker")
class Deliver(Command):
    """A delivery of messages to a consumer, in columns of equal height.

    If ``attempts`` is absent, this is the first attempt for all messages. If ``redelivered``
    is absent, none was delivered before.
    """

    consumer_id: Id
    offsets: Int64Column
    due_ms: Int64Column
    attempts: AttemptColumn
    redelivered: FlagColumn
    body: BodyBytes

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        heights = {
            len(column)
            for column in (self.offsets, self.due_ms, self.attempts, self.redelivered)
            if column is not None
        }
        if len(heights) != 1:
            raise ValueError(f"columns differ in height: {sorted(heights)}")

    def decode(self) -> MessageBatch:
        """Return the messages, as views of the frame. Raises as ``decode_body``."""
        return decode_body(self.body, self.offsets)


@command(24, "client")
class Ack(Command):
    """An acknowledgement of single offsets, of ranges ``first .. last - 1``, or of both.

    If it has a request id, it is answered by Acked once it is durable.
    """

    request_id: OptionalId
    consumer_id: Id
    offsets: OptionalAckColumn
    firsts: OptionalAckColumn = None
    lasts: OptionalAckColumn = None

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        if (self.firsts is None) != (self.lasts is None):
            raise ValueError("ranges need both ends")
        if self.firsts is not None and self.lasts is not None:
            if len(self.firsts) != len(self.lasts):
                raise ValueError("firsts and lasts differ in height")
            if not (self.firsts < self.lasts).all():
                raise ValueError("a range is empty or ends before it begins")
        elif self.offsets is None:
            raise ValueError("there are neither offsets nor ranges")


@command(25, "client")
class Nack(Command):
    """A request to redeliver messages after ``delay_ms``, or after the back-off if it is -1."""

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    delay_ms: CountOrNone

    MAX_BYTES = MAX_FRAME_BYTES


@command(26, "broker")
class Acked(Command):
    """The reply to Ack, Nack, Extend and Release, with the number of affected messages.

    The reply to an Ack means that the acknowledgement is durable.
    """

    request_id: Id
    count: Count


@command(27, "client")
class CloseConsumer(Command):
    """A request to leave the subscription. Answered by Done.

    The consumer's in-flight messages are redelivered. ``untried`` names those that the
    application has not received: they are released, so the delivery does not count as an
    attempt.
    """

    request_id: Id
    consumer_id: Id
    untried: OptionalAckColumn = None

    MAX_BYTES = MAX_FRAME_BYTES


@command(28, "broker")
class ConsumerActive(Command):
    """A notice that a consumer of a failover subscription becomes active or inactive."""

    consumer_id: Id
    active: Boolean


@command(29, "broker")
class ConsumerClosed(ErrorCommand):
    """A notice that the broker closed a consumer, as its subscription or topic was deleted."""

    consumer_id: Id
    code: Code
    message: Explanation
    retryable: Boolean


@command(30, "client")
class Extend(Command):
    """A request to redeliver messages no earlier than ``wait_ms`` from now.

    A later deadline stays. Answered by Acked, with the number of these messages that are
    still in flight at this consumer.
    """

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    wait_ms: Count

    MAX_BYTES = MAX_FRAME_BYTES


@command(31, "client")
class Release(Command):
    """A request to redeliver messages without counting this delivery as an attempt."""

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    delay_ms: Count

    MAX_BYTES = MAX_FRAME_BYTES


@command(32, "broker")
class ConsumerRewound(Command):
    """A notice that a seek moved the subscription, so that earlier deliveries are void.

    The consumer discards the messages in its delivery buffer and grants all permits again.
    """

    consumer_id: Id


@command(37, "client")
class Halt(Command):
    """A request to deliver nothing more to a consumer that is about to leave.

    Answered by Done, after the last Deliver.
    """

    request_id: Id
    consumer_id: Id
