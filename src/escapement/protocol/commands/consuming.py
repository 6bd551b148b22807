"""Subscribing, credit, messages, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from escapement.errors import EscapementError, RemoteProtocolError
from escapement.message import MessageBatch
from escapement.protocol.body import decode_body
from escapement.protocol.commands.command import Command, command
from escapement.protocol.commands.refusal import carried
from escapement.protocol.fields import (
    AckColumn,
    AttemptColumn,
    BodyBytes,
    Boolean,
    Choice,
    Code,
    Count,
    CountOrNone,
    DueColumn,
    Explanation,
    FlagColumn,
    Id,
    Integer,
    Keys,
    Name,
    OffsetColumn,
    OptionalAckColumn,
    OptionalId,
    OptionalName,
    Place,
    Topic,
)
from escapement.protocol.limits import MAX_FRAME_BYTES, MAX_PERMITS
from escapement.traits import KeyRange


@command(20, "client")
@dataclass(frozen=True, slots=True)
class Subscribe(Command):
    """Joins a subscription, which is created if it is not there.

    ``position`` counts only when it is created; ``ack_wait_ms`` of 0 is the
    subscription's.
    """

    request_id: Id
    consumer_id: Id
    topic: Topic
    subscription: Name
    kind: Annotated[str, Choice(("shared", "exclusive", "failover"))]
    position: Annotated[str, Place()]
    ack_wait_ms: Count
    consumer_name: OptionalName
    key_range: Annotated[KeyRange, Keys()] = None

    MAX_CONTAINERS = 2  # the frame and the two slots


@command(21, "broker")
@dataclass(frozen=True, slots=True)
class ConsumerReady(Command):
    """The consumer is there; ``topic`` is the full name, which message ids carry."""

    request_id: Id
    consumer_id: Id
    topic: Topic
    kind: Annotated[str, Choice(("shared", "exclusive", "failover"))]


@command(22, "client")
@dataclass(frozen=True, slots=True)
class Flow(Command):
    """Gives the broker credit for so many messages more."""

    consumer_id: Id
    permits: Annotated[int, Integer(1, MAX_PERMITS)]


@command(23, "broker")
@dataclass(frozen=True, slots=True, eq=False)
class Deliver(Command):
    """Messages for a consumer, in columns of equal height.

    Without ``attempts`` all are on their first; without ``redelivered`` none has been
    delivered before.
    """

    consumer_id: Id
    offsets: OffsetColumn
    due_ms: DueColumn
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
        """The messages, as views of the frame.

        Raises:
          RemoteProtocolError: if the body is none, is empty, or differs in height.
        """
        batch = decode_body(self.body)
        if len(batch) != len(self.offsets):
            raise RemoteProtocolError(
                f"a batch of {len(batch)} messages came with {len(self.offsets)} offsets"
            )
        return batch


@command(24, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Ack(Command):
    """Messages are done with: single offsets, ranges ``first .. last - 1``, or both.

    With a request id it is answered by Acked once it is durable.
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
                raise ValueError("ranges have ends of different height")
            if not (self.firsts < self.lasts).all():
                raise ValueError("a range is empty or ends before it begins")
        elif self.offsets is None:
            raise ValueError("neither offsets nor ranges")


@command(25, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Nack(Command):
    """Messages are to be delivered again, after ``delay_ms`` or, at -1, the back-off."""

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    delay_ms: CountOrNone

    MAX_BYTES = MAX_FRAME_BYTES


@command(26, "broker")
@dataclass(frozen=True, slots=True)
class Acked(Command):
    """The Ack took effect on so many messages, durably; a Nack, Extend or Release at once."""

    request_id: Id
    count: Count


@command(27, "client")
@dataclass(frozen=True, slots=True)
class CloseConsumer(Command):
    """Leaves the subscription; what it holds goes back. Answered by Done.

    Of that, ``untried`` names what nobody has looked at: it is released.
    """

    request_id: Id
    consumer_id: Id
    untried: OptionalAckColumn = None

    MAX_BYTES = MAX_FRAME_BYTES


@command(28, "broker")
@dataclass(frozen=True, slots=True)
class ConsumerActive(Command):
    """Of a failover subscription: this consumer is now the one that receives, or no longer."""

    consumer_id: Id
    active: Boolean


@command(29, "broker")
@dataclass(frozen=True, slots=True)
class ConsumerClosed(Command):
    """The broker took a consumer away, unasked: its subscription or topic was deleted."""

    consumer_id: Id
    code: Code
    message: Explanation
    retryable: Boolean

    def error(self) -> EscapementError:
        """The error it carries, as an exception to raise."""
        return carried(self.code, self.message, self.retryable)


@command(30, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Extend(Command):
    """The consumer still works on these: they are not taken back within ``wait_ms`` from now.

    A deadline that is later stays. Answered by Acked: how many it holds.
    """

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    wait_ms: Count

    MAX_BYTES = MAX_FRAME_BYTES


@command(31, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Release(Command):
    """Messages are handed back untried: this delivery does not count as an attempt."""

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    delay_ms: Count

    MAX_BYTES = MAX_FRAME_BYTES


@command(32, "broker")
@dataclass(frozen=True, slots=True)
class ConsumerRewound(Command):
    """The subscription was sought: what it delivered before this is taken back.

    What the consumer has not taken out is dropped, and its credit given anew.
    """

    consumer_id: Id


@command(37, "client")
@dataclass(frozen=True, slots=True)
class Halt(Command):
    """The consumer is about to leave: it is sent nothing any more.

    Answered by Done, behind the last that was sent.
    """

    request_id: Id
    consumer_id: Id
