"""The commands of the wire, one frozen dataclass each: the dataclass is the frame.

A frame is one msgpack array ``[type, field, ...]``. A command's fields stand in the
order of the dataclass, each with a kind (see ``fields``) that checks type, range and
length when it comes from the wire and again when it is sent; ``check`` looks at what
several fields say together. What a command *means*, and whether its names exist, is
not known here.

Numbers: ids are chosen by the client, live as long as the connection, and start at 1; a
request id of 0 means that no reply is wanted. ``sequence`` numbers a producer's
messages and names the first of a batch. Times are Unix milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_type_hints

from escapement.errors import EscapementError, RemoteProtocolError, from_code
from escapement.message import Buffer, MessageBatch, Times
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
    Kind,
    Name,
    OffsetColumn,
    OptionalAckColumn,
    OptionalId,
    OptionalName,
    PlainMap,
    PlainValue,
    Text,
    TimeColumn,
    Topic,
)
from escapement.protocol.limits import (
    MAX_FRAME_BYTES,
    MAX_ID,
    MAX_INT64,
    MAX_MESSAGE_CHARS,
    MAX_PERMITS,
    MAX_PLAIN_BYTES,
    MAX_REPLY_CONTAINERS,
    MAX_REQUEST_CONTAINERS,
    MAX_VERB_CHARS,
)

Role = Literal["client", "broker"]


class Command:
    """What all commands share: reading themselves from a frame, and writing it."""

    __slots__ = ()
    TYPE: ClassVar[int]
    SENDERS: ClassVar[frozenset[Role]]
    KINDS: ClassVar[tuple[tuple[str, Kind], ...]]
    # How large a frame of this command may be, and how many lists and maps it may hold
    # (the frame itself is the first). The default is a command without plain values.
    MAX_BYTES: ClassVar[int] = MAX_PLAIN_BYTES
    MAX_CONTAINERS: ClassVar[int] = 1

    @classmethod
    def read(cls, values: list[Any]) -> Command:
        """The command whose fields came in a frame.

        Raises:
          ValueError: if one of them is not what it must be.
        """
        if len(values) != len(cls.KINDS):
            raise ValueError(f"has {len(values)} fields, not {len(cls.KINDS)}")
        taken = []
        for (name, kind), value in zip(cls.KINDS, values, strict=True):
            try:
                taken.append(kind.read(value))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        command = cls(*taken)
        command.check()
        return command

    def write(self) -> list[Any]:
        """The frame's array, type first.

        Raises:
          ValueError: if a field holds what the wire does not allow.
        """
        self.check()
        values: list[Any] = [self.TYPE]
        for name, kind in self.KINDS:
            try:
                values.append(kind.write(getattr(self, name)))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        return values

    def check(self) -> None:
        """Raise ``ValueError`` if the fields do not fit each other."""


_C = TypeVar("_C", bound=type[Command])

COMMANDS: Final[dict[int, type[Command]]] = {}


def _command(number: int, *senders: Role) -> Callable[[_C], _C]:
    """Enter a dataclass under its number, with the kinds its annotations name."""

    def enter(cls: _C) -> _C:
        assert number not in COMMANDS, f"two commands are numbered {number}"
        hints = get_type_hints(cls, include_extras=True)
        cls.TYPE = number
        cls.SENDERS = frozenset(senders)
        cls.KINDS = tuple(
            (field.name, hints[field.name].__metadata__[0])
            for field in fields(cls)  # type: ignore[arg-type]
        )
        COMMANDS[number] = cls
        return cls

    return enter


# -- the connection ------------------------------------------------------------


@_command(1, "client")
@dataclass(frozen=True, slots=True)
class Hello(Command):
    """The client's first command. ``features`` is a map for what comes later."""

    version: Annotated[int, Integer(0, MAX_ID)]
    client: OptionalName
    features: PlainMap

    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@_command(2, "broker")
@dataclass(frozen=True, slots=True)
class Welcome(Command):
    """The broker's answer to Hello: who it is and how much it takes (see ``limits``)."""

    version: Annotated[int, Integer(0, MAX_ID)]
    broker: OptionalName
    broker_id: OptionalName
    limits: PlainMap

    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@_command(3, "client", "broker")
@dataclass(frozen=True, slots=True)
class Ping(Command):
    """Asks for a Pong with the same token: is anyone there?"""

    token: Count


@_command(4, "client", "broker")
@dataclass(frozen=True, slots=True)
class Pong(Command):
    """The answer to Ping."""

    token: Count


@_command(5, "client", "broker")
@dataclass(frozen=True, slots=True)
class Goodbye(Command):
    """The sender's last command: it will close, having answered what it can."""

    reason: Explanation


@_command(6, "broker")
@dataclass(frozen=True, slots=True)
class Refused(Command):
    """What was asked did not happen, and why.

    It answers the request ``request_id``, or the Publish of ``producer_id`` that began
    at ``sequence``; with neither it is about the connection, which then ends.
    """

    request_id: OptionalId
    producer_id: OptionalId
    sequence: CountOrNone
    code: Code
    message: Explanation
    retryable: Boolean

    @classmethod
    def because(
        cls,
        error: EscapementError,
        *,
        request_id: int = 0,
        producer_id: int = 0,
        sequence: int = -1,
    ) -> Refused:
        """The refusal that carries ``error``; a long message is cut."""
        message = str(error)[:MAX_MESSAGE_CHARS]
        return cls(request_id, producer_id, sequence, error.code, message, error.retryable)

    def error(self) -> EscapementError:
        """The error it carries, as an exception to raise."""
        return carried(self.code, self.message, self.retryable)


def carried(code: str, message: str, retryable: bool) -> EscapementError:
    """The error a peer named; of a code that we do not know, it keeps what it said."""
    error = from_code(code, message)
    if error.retryable != retryable:
        vars(error)["retryable"] = retryable
    return error


@_command(7, "broker")
@dataclass(frozen=True, slots=True)
class Done(Command):
    """A request that has nothing else to tell (CloseProducer, CloseConsumer) took effect."""

    request_id: Id


# -- producing -----------------------------------------------------------------


@_command(10, "client")
@dataclass(frozen=True, slots=True)
class OpenProducer(Command):
    """Opens a producer under a name that is exactly-once by its sequence; "" for none.

    With ``epoch`` -1 it takes the name over: the epoch is counted up and an earlier
    holder fenced. With the epoch it had on a connection that was lost, it goes on where
    it was, under the same epoch, and is refused as ``producer_fenced`` if the name has a
    newer one: so of two that reconnect, not the last to knock has the name but the last
    to be started.
    """

    request_id: Id
    producer_id: Id
    topic: Topic
    name: OptionalName
    epoch: CountOrNone


@_command(11, "broker")
@dataclass(frozen=True, slots=True)
class ProducerReady(Command):
    """The producer is open. ``last_sequence`` is the last that is stored, or -1.

    ``topic`` is the full name, which message ids carry; ``epoch`` counts the producers
    there have been of this name.
    """

    request_id: Id
    producer_id: Id
    topic: Topic
    name: OptionalName
    epoch: Count
    last_sequence: CountOrNone


@_command(12, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Publish(Command):
    """A batch. Its messages are numbered ``sequence``, ``sequence + 1``, ...

    ``after`` is the number of the producer's message before them (-1: there is none).
    The broker refuses with ``sequence_gap`` what comes after a message that it has not
    stored: else, of two batches under way, the first could be refused and the second
    stored, and the first, sent again, would pass for a duplicate and be lost.
    """

    producer_id: Id
    sequence: Count
    after: CountOrNone
    delay_ms: TimeColumn
    at_ms: TimeColumn
    body: BodyBytes

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        if self.after >= self.sequence:
            raise ValueError(f"sequence {self.sequence} does not come after {self.after}")

    def decode(self) -> tuple[MessageBatch, Times]:
        """The batch and its times, as views of the frame.

        Raises:
          RemoteProtocolError: if the body is none, is empty, or differs in height.
        """
        batch = _decode(self.body)
        for column in (self.delay_ms, self.at_ms):
            if column is not None and len(column) != len(batch):
                raise RemoteProtocolError(
                    f"a batch of {len(batch)} messages came with {len(column)} times"
                )
        if self.sequence > MAX_INT64 - len(batch):
            raise RemoteProtocolError(f"no number is left for all messages from {self.sequence} on")
        return batch, Times(self.delay_ms, self.at_ms)


@_command(13, "broker")
@dataclass(frozen=True, slots=True)
class Receipt(Command):
    """The batch that began at ``sequence`` is durable.

    Its messages have the offsets ``base_offset .. base_offset + count - 1``; -1 if it
    was stored earlier (``duplicate``) and they are not known any more.
    """

    producer_id: Id
    sequence: Count
    count: Count
    base_offset: CountOrNone
    duplicate: Boolean


@_command(14, "client")
@dataclass(frozen=True, slots=True)
class CloseProducer(Command):
    """Gives a producer back; answered by Done."""

    request_id: Id
    producer_id: Id


@_command(15, "broker")
@dataclass(frozen=True, slots=True)
class ProducerClosed(Command):
    """The broker took a producer away, unasked: fenced, or its topic deleted."""

    producer_id: Id
    code: Code
    message: Explanation
    retryable: Boolean

    def error(self) -> EscapementError:
        """The error it carries, as an exception to raise."""
        return carried(self.code, self.message, self.retryable)


# -- consuming -----------------------------------------------------------------


@_command(20, "client")
@dataclass(frozen=True, slots=True)
class Subscribe(Command):
    """Joins a subscription, which is created if it is not there.

    ``position`` counts only when it is created; ``ack_wait_ms`` of 0 is the broker's
    default.
    """

    request_id: Id
    consumer_id: Id
    topic: Topic
    subscription: Name
    kind: Annotated[str, Choice(("shared", "exclusive", "failover"))]
    position: Annotated[str, Choice(("latest", "earliest"))]
    ack_wait_ms: Count
    consumer_name: OptionalName


@_command(21, "broker")
@dataclass(frozen=True, slots=True)
class ConsumerReady(Command):
    """The consumer is there; ``topic`` is the full name, which message ids carry."""

    request_id: Id
    consumer_id: Id
    topic: Topic
    kind: Annotated[str, Choice(("shared", "exclusive", "failover"))]


@_command(22, "client")
@dataclass(frozen=True, slots=True)
class Flow(Command):
    """Gives the broker credit for so many messages more."""

    consumer_id: Id
    permits: Annotated[int, Integer(1, MAX_PERMITS)]


@_command(23, "broker")
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
        batch = _decode(self.body)
        if len(batch) != len(self.offsets):
            raise RemoteProtocolError(
                f"a batch of {len(batch)} messages came with {len(self.offsets)} offsets"
            )
        return batch


@_command(24, "client")
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


@_command(25, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Nack(Command):
    """Messages are to be delivered again, after ``delay_ms`` or, at -1, the back-off."""

    request_id: OptionalId
    consumer_id: Id
    offsets: AckColumn
    delay_ms: CountOrNone

    MAX_BYTES = MAX_FRAME_BYTES


@_command(26, "broker")
@dataclass(frozen=True, slots=True)
class Acked(Command):
    """The Ack or Nack took effect on so many messages, durably."""

    request_id: Id
    count: Count


@_command(27, "client")
@dataclass(frozen=True, slots=True)
class CloseConsumer(Command):
    """Leaves the subscription; what it holds goes back. Answered by Done."""

    request_id: Id
    consumer_id: Id


@_command(28, "broker")
@dataclass(frozen=True, slots=True)
class ConsumerActive(Command):
    """Of a failover subscription: this consumer is now the one that receives, or no longer."""

    consumer_id: Id
    active: Boolean


@_command(29, "broker")
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


# -- administration ------------------------------------------------------------


@_command(40, "client")
@dataclass(frozen=True, slots=True)
class Admin(Command):
    """A request by name, with plain arguments."""

    request_id: Id
    verb: Annotated[str, Text(MAX_VERB_CHARS, low=1)]
    arguments: PlainMap

    MAX_CONTAINERS = MAX_REQUEST_CONTAINERS


@_command(41, "broker")
@dataclass(frozen=True, slots=True)
class AdminReply(Command):
    """The answer to Admin."""

    request_id: Id
    result: PlainValue

    MAX_BYTES = MAX_FRAME_BYTES
    MAX_CONTAINERS = MAX_REPLY_CONTAINERS


def _decode(body: Buffer) -> MessageBatch:
    batch = MessageBatch.decode(body)
    if not len(batch):
        raise RemoteProtocolError("a batch has no messages")
    return batch
