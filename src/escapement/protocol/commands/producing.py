"""Commands of producers: opening, publishing, receipts and closing."""

from __future__ import annotations

from escapement.errors import RemoteProtocolError
from escapement.message import MessageBatch, Times
from escapement.protocol.body import decode_body
from escapement.protocol.commands.command import Command, command
from escapement.protocol.commands.refusal import ErrorCommand
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
    OptionalInt64Column,
    OptionalName,
    Topic,
)
from escapement.protocol.limits import MAX_FRAME_BYTES, MAX_INT64


@command(10, "client")
class OpenProducer(Command):
    """A request to open a producer under a name, or under no name ("").

    A named producer stores each message exactly once, by its sequence. With ``epoch`` -1 the
    producer takes over the name: the broker increments the epoch and fences the earlier
    holder. A producer that reconnects sends its epoch and continues under it. It is refused
    with ``producer_fenced`` if the name has a newer epoch. So if two producers of one name
    reconnect, the one that was started last keeps the name, not the one that connects last.
    """

    request_id: Id
    producer_id: Id
    topic: Topic
    name: OptionalName
    epoch: CountOrNone


@command(11, "broker")
class ProducerReady(Command):
    """The reply to OpenProducer. ``last_sequence`` is the last stored sequence, or -1.

    ``topic`` is the full name, as used in message ids. ``epoch`` is the number of times that
    a producer has taken over this name.
    """

    request_id: Id
    producer_id: Id
    topic: Topic
    name: OptionalName
    epoch: Count
    last_sequence: CountOrNone


@command(12, "client")
class Publish(Command):
    """A batch to store. Its messages have the numbers ``sequence``, ``sequence + 1``, ...

    ``after`` is the number of the producer's previous message, or -1 if there is none. If
    the broker has not stored that message, it refuses the batch with ``sequence_gap``. This
    closes the following case: a producer sends two batches, the broker refuses the first and
    stores the second. When the producer sends the first again, the broker would take it for
    a duplicate, and its messages would be lost.

    ``dedup`` has the digest of each message's dedup key, zero for a message without a key.
    """

    producer_id: Id
    sequence: Count
    after: CountOrNone
    delay_ms: OptionalInt64Column
    at_ms: OptionalInt64Column
    body: BodyBytes
    dedup: OptionalDigests = None

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        if self.after >= self.sequence:
            raise ValueError(f"sequence {self.sequence} does not come after {self.after}")

    def decode(self) -> tuple[MessageBatch, Times]:
        """Return the batch and its times, as views of the frame.

        Raises:
          RemoteProtocolError: as ``decode_body``, or if the sequence numbers do not suffice.
        """
        batch = decode_body(self.body, self.delay_ms, self.at_ms, self.dedup)
        if self.sequence > MAX_INT64 - len(batch):
            raise RemoteProtocolError(
                f"{len(batch)} messages from sequence {self.sequence} exceed the last, {MAX_INT64}"
            )
        return batch, Times(self.delay_ms, self.at_ms)


@command(13, "broker")
class Receipt(Command):
    """A confirmation that the batch from ``sequence`` on is durable.

    Its messages have the offsets ``base_offset .. base_offset + count - 1``. ``base_offset``
    is -1 if the batch was stored earlier (``duplicate``) and its offsets are unknown. If some
    of the dedup keys were known, ``offsets`` has the offset of each message, or -1 if it is
    unknown, and ``repeated`` is 1 for each message that was stored earlier.
    """

    producer_id: Id
    sequence: Count
    count: Count
    base_offset: CountOrNone
    duplicate: Boolean
    offsets: OptionalInt64Column = None
    repeated: FlagColumn = None

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        for column in (self.offsets, self.repeated):
            if column is not None and len(column) != self.count:
                raise ValueError(f"a column of {len(column)} rows came with {self.count} messages")
        if (self.offsets is None) != (self.repeated is None):
            raise ValueError("offsets and repeated must be present together")


@command(14, "client")
class CloseProducer(Command):
    """A request to close a producer. Answered by Done."""

    request_id: Id
    producer_id: Id


@command(15, "broker")
class ProducerClosed(ErrorCommand):
    """A notice that the broker closed a producer: it was fenced, or its topic was deleted."""

    producer_id: Id
    code: Code
    message: Explanation
    retryable: Boolean
