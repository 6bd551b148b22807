"""Commands of consumers: subscriptions, permits, deliveries and acknowledgements.

A *permit* lets the broker send one message to a consumer. A message is *in flight* from its
delivery until it is acknowledged, given back, or its *ack deadline* passes; then the broker
redelivers it. *Attempts* are deliveries that count as tries to process a message.
"""

from __future__ import annotations

from typing import Annotated

from escapement.field import Field
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
    Detail,
    Explanation,
    FieldTexts,
    FlagColumn,
    Id,
    Int64Column,
    Integer,
    Keys,
    LogId,
    Name,
    OptionalAckColumn,
    OptionalId,
    OptionalName,
    StartPosition,
    SubscriptionKind,
    Topic,
)
from escapement.protocol.limits import MAX_FRAME_BYTES, MAX_PERMITS
from escapement.traits import KeyRange


@command(20, "client")
class Subscribe(Command):
    """A request to open a consumer of a subscription, which is created if it does not exist.

    ``position`` is where a new subscription begins. ``ack_wait_ms`` is the time from a delivery to
    its ack deadline; 0 selects the one of the subscription. ``key_range`` is the range of keys
    that this consumer receives (see ``escapement.traits``).
    """

    request_id: Id
    consumer_id: Id
    topic: Topic
    subscription: Name
    kind: SubscriptionKind
    position: Annotated[str, StartPosition()]
    ack_wait_ms: Count
    consumer_name: OptionalName
    key_range: Annotated[KeyRange, Keys()] = None

    MAX_CONTAINERS = 2  # the frame and the two slots


@command(21, "broker")
class ConsumerReady(Command):
    """The reply to Subscribe: the consumer is open. ``topic`` is the full name of the topic.

    ``log`` is the id of the broker's log. ``subscription_id`` is the id of the subscription in that
    log, which changes with each seek. Ids of both kinds are never used again. The subscription of a
    message table has the id 0.
    """

    request_id: Id
    consumer_id: Id
    topic: Topic
    kind: SubscriptionKind
    log: LogId
    subscription_id: Count


@command(22, "client")
class Flow(Command):
    """A grant of permits: the broker may send this many more messages to the consumer."""

    consumer_id: Id
    permits: Annotated[int, Integer(1, MAX_PERMITS)]


@command(23, "broker")
class Deliver(Command):
    """A delivery of messages to a consumer, in columns with one row per message.

    ``body`` is the encoded batch of messages. ``attempts`` has the number of each message's
    attempts, with this one. If it is None, this is the first attempt for all. ``redelivered`` is 1
    for each message that may have been delivered before. If it is None, there are none.

    ``wait_ms`` is the time until the first ack deadline of these messages. It is 0 if they have
    none. ``waits_ms`` has the time until each message's ack deadline, if these differ. A broker
    sends both only to clients with FEATURE_ACK_DEADLINES.
    """

    consumer_id: Id
    offsets: Int64Column
    due_ms: Int64Column
    attempts: AttemptColumn
    redelivered: FlagColumn
    body: BodyBytes
    wait_ms: Count = 0
    waits_ms: OptionalAckColumn = None

    OPTIONAL_FIELDS = 2
    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        heights = {
            len(column)
            for column in (
                self.offsets,
                self.due_ms,
                self.attempts,
                self.redelivered,
                self.waits_ms,
            )
            if column is not None
        }
        if len(heights) != 1:
            raise ValueError(f"columns differ in height: {sorted(heights)}")

    def decode(self) -> MessageBatch:
        """Return the messages, as views of the frame. Raises the errors of ``decode_body``."""
        return decode_body(self.body, self.offsets)


@command(24, "client")
class Ack(Command):
    """An acknowledgement of messages: by single offsets, by ranges of offsets, or by both.

    A range goes from an element of ``firsts`` to the element of ``lasts`` in the same row, which
    is not included. If the command has a request id, the broker answers with Acked when the
    acknowledgement is durable.
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
    """A negative acknowledgement: a request to redeliver messages after ``delay_ms``.

    -1 selects the back-off of the subscription.
    """

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    delay_ms: CountOrNone

    MAX_BYTES = MAX_FRAME_BYTES


@command(26, "broker")
class Acked(Command):
    """The reply to Ack, Nack, Reject, Extend and Release: ``count`` messages were affected.

    The reply to an Ack means that the acknowledgement is durable.
    """

    request_id: Id
    count: Count


@command(27, "client")
class CloseConsumer(Command):
    """A request to close a consumer. The broker answers with Done.

    The broker redelivers the messages that are in flight at the consumer. ``untried`` has the
    offsets of those that the application has not received. Their delivery does not count as an
    attempt.
    """

    request_id: Id
    consumer_id: Id
    untried: OptionalAckColumn = None

    MAX_BYTES = MAX_FRAME_BYTES


@command(28, "broker")
class ConsumerActive(Command):
    """A notice that a consumer of a failover subscription becomes active or inactive.

    The subscription delivers only to its active consumer.
    """

    consumer_id: Id
    active: Boolean


@command(29, "broker")
class ConsumerClosed(ErrorCommand):
    """A notice that the broker has closed a consumer, with the error that is the reason."""

    consumer_id: Id
    code: Code
    message: Explanation
    retryable: Boolean


@command(30, "client")
class Extend(Command):
    """A request to extend the ack deadline of messages to at least ``wait_ms`` from now.

    A deadline that is later already stays. The broker answers with Acked, which has the number of
    these messages that are still in flight at this consumer.
    """

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    wait_ms: Count

    MAX_BYTES = MAX_FRAME_BYTES


@command(31, "client")
class Release(Command):
    """A request to redeliver messages after ``delay_ms``, without counting this delivery.

    The delivery does not count as an attempt.
    """

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    delay_ms: Count

    MAX_BYTES = MAX_FRAME_BYTES


@command(32, "broker")
class ConsumerRewound(Command):
    """A notice that a seek has moved the subscription, so that earlier deliveries are void.

    The consumer discards all messages that the application has not received, and grants all its
    permits again. ``subscription_id`` is the new id of the subscription.
    """

    consumer_id: Id
    subscription_id: Count


@command(37, "client")
class Halt(Command):
    """A request to deliver nothing more to a consumer, which is about to close, or has enough.

    The permits of the consumer become void. The broker answers with Done after the last Deliver. A
    Flow after it lets the consumer continue.
    """

    request_id: Id
    consumer_id: Id


@command(38, "broker")
class Fields(Command):
    """The names and types of the values in the messages that follow, of a consumer of a table.

    They hold for every Deliver to this consumer until the next Fields. The payload of each message
    has one value for each field. A consumer of an ordinary topic gets no Fields.
    """

    consumer_id: Id
    names: FieldTexts
    types: FieldTexts

    MAX_CONTAINERS = 3  # the frame and the two lists

    @classmethod
    def of(cls, consumer_id: int, fields: tuple[Field, ...]) -> Fields:
        """Return the command that tells a consumer these fields."""
        return cls(
            consumer_id,
            tuple(field.name for field in fields),
            tuple(field.type for field in fields),
        )

    def check(self) -> None:
        if len(self.names) != len(self.types):
            raise ValueError(f"{len(self.names)} names have {len(self.types)} types")

    def decode(self) -> tuple[Field, ...]:
        """Return the fields."""
        return tuple(map(Field, self.names, self.types))


@command(39, "client")
class Reject(Command):
    """A request to give up messages that this subscription can never process.

    They go to the dead-letter topic, however many attempts the subscription permits. Only a broker
    that announces ``LIMIT_REJECTS`` knows this command. ``detail`` says why, for people. Only a
    broker that announces ``LIMIT_DETAIL`` knows this field.
    """

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    detail: Detail = ""

    OPTIONAL_FIELDS = 1

    MAX_BYTES = MAX_FRAME_BYTES
