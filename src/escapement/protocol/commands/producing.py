"""Opening producers, and publishing."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.errors import EscapementError, RemoteProtocolError
from escapement.message import MessageBatch, Times
from escapement.protocol.body import decode_body
from escapement.protocol.commands.command import Command, command
from escapement.protocol.commands.refusal import carried
from escapement.protocol.fields import (
    BodyBytes,
    Boolean,
    Code,
    Count,
    CountOrNone,
    Explanation,
    FlagColumn,
    Id,
    OptionalDigests,
    OptionalName,
    OptionalOffsets,
    TimeColumn,
    Topic,
)
from escapement.protocol.limits import MAX_FRAME_BYTES, MAX_INT64


@command(10, "client")
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


@command(11, "broker")
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


@command(12, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Publish(Command):
    """A batch. Its messages are numbered ``sequence``, ``sequence + 1``, ...

    ``after`` is the number of the producer's message before them (-1: there is none).
    The broker refuses with ``sequence_gap`` what comes after a message that it has not
    stored: else, of two batches under way, the first could be refused and the second
    stored, and the first, sent again, would pass for a duplicate and be lost.

    ``dedup`` has the digest of each message's dedup key, zero where it has none.
    """

    producer_id: Id
    sequence: Count
    after: CountOrNone
    delay_ms: TimeColumn
    at_ms: TimeColumn
    body: BodyBytes
    dedup: OptionalDigests = None

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        if self.after >= self.sequence:
            raise ValueError(f"sequence {self.sequence} does not come after {self.after}")

    def decode(self) -> tuple[MessageBatch, Times]:
        """The batch and its times, as views of the frame.

        Raises:
          RemoteProtocolError: if the body is none, is empty, or differs in height.
        """
        batch = decode_body(self.body)
        for column in (self.delay_ms, self.at_ms):
            if column is not None and len(column) != len(batch):
                raise RemoteProtocolError(
                    f"a batch of {len(batch)} messages came with {len(column)} times"
                )
        if self.dedup is not None and len(self.dedup) != len(batch):
            raise RemoteProtocolError(
                f"a batch of {len(batch)} messages came with {len(self.dedup)} dedup keys"
            )
        if self.sequence > MAX_INT64 - len(batch):
            raise RemoteProtocolError(f"no number is left for all messages from {self.sequence} on")
        return batch, Times(self.delay_ms, self.at_ms)


@command(13, "broker")
@dataclass(frozen=True, slots=True, eq=False)
class Receipt(Command):
    """The batch that began at ``sequence`` is durable.

    Its messages have the offsets ``base_offset .. base_offset + count - 1``; -1 if it
    was stored earlier (``duplicate``) and they are not known any more. Where dedup keys were
    known, ``offsets`` has the offset of each message, -1 if it is not known any more, and
    ``repeated`` is 1 for each that was stored earlier.
    """

    producer_id: Id
    sequence: Count
    count: Count
    base_offset: CountOrNone
    duplicate: Boolean
    offsets: OptionalOffsets = None
    repeated: FlagColumn = None

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        for column in (self.offsets, self.repeated):
            if column is not None and len(column) != self.count:
                raise ValueError(f"a column of {len(column)} came with {self.count} messages")
        if (self.offsets is None) != (self.repeated is None):
            raise ValueError("offsets and repeated come together")


@command(14, "client")
@dataclass(frozen=True, slots=True)
class CloseProducer(Command):
    """Gives a producer back; answered by Done."""

    request_id: Id
    producer_id: Id


@command(15, "broker")
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
