"""Commands of producers: opening, publishing, receipts and closing.

A named producer has an *epoch*, which grows when a new producer takes over the name. The broker
*fences* the earlier producer: it stores no more messages of it.
"""

from __future__ import annotations

from escapement.errors import RemoteProtocolError
from escapement.message import NO_TIMES, MessageBatch, Times
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
    Reason,
    ReplaceModes,
    Topic,
)
from escapement.protocol.limits import MAX_FRAME_BYTES, MAX_INT64


@command(10, "client")
class OpenProducer(Command):
    """A request to open a producer with a name; "" lets the broker choose a name.

    The broker stores each message of a name once, by its sequence. With an ``epoch`` of -1, the
    producer takes over the name: the broker increments the epoch, and fences the earlier producer.
    A producer that reconnects sends the epoch that it has, and keeps it. The broker refuses it with
    ``producer_fenced`` if the name has a newer epoch. So if two producers of one name reconnect,
    the one that was started last keeps the name, not the one that connects last.

    ``reason`` is why the producer publishes, for the audit log. A broker that announces
    ``LIMIT_PRODUCER_REASON`` knows this field.
    """

    request_id: Id
    producer_id: Id
    topic: Topic
    name: OptionalName
    epoch: CountOrNone
    reason: Reason = ""

    OPTIONAL_FIELDS = 1


@command(11, "broker")
class ProducerReady(Command):
    """The reply to OpenProducer: the producer is open.

    ``last_sequence`` is the number of the last message that the broker has stored for this name,
    or -1. ``topic`` is the full name of the topic, as in message ids.
    """

    request_id: Id
    producer_id: Id
    topic: Topic
    name: OptionalName
    epoch: Count
    last_sequence: CountOrNone


@command(12, "client")
class Publish(Command):
    """A batch of messages to store, with the numbers ``sequence``, ``sequence + 1``, ...

    ``body`` is the encoded batch. ``delay_ms`` and ``at_ms`` have the delay and the delivery time
    of each message, -1 for none. ``dedup`` has the digest of each message's dedup key, zero bytes
    for none. ``replace`` has the digest of each message's replace key in the same way, and
    ``replace_modes`` what the key means (``escapement.replacement``).

    ``after`` is the number of the producer's previous message, or -1 if there is none. If the
    broker has not stored that message, it refuses the batch with ``sequence_gap``. Otherwise
    messages could be lost: a producer sends two batches, and the broker refuses the first and
    stores the second. When the producer sends the first batch again, its numbers are below the last
    stored one. So the broker would take the batch for a duplicate and not store it.
    """

    producer_id: Id
    sequence: Count
    after: CountOrNone
    delay_ms: OptionalInt64Column
    at_ms: OptionalInt64Column
    body: BodyBytes
    dedup: OptionalDigests = None
    replace: OptionalDigests = None
    replace_modes: ReplaceModes = None

    MAX_BYTES = MAX_FRAME_BYTES
    OPTIONAL_FIELDS = 2  # a broker that does not know replace keys refuses frames with these

    def check(self) -> None:
        if self.after >= self.sequence:
            raise ValueError(f"sequence {self.sequence} does not come after {self.after}")
        if (self.replace is None) != (self.replace_modes is None):
            raise ValueError("replace and replace_modes must be present together")

    def decode(self) -> tuple[MessageBatch, Times]:
        """Return the batch and its times, as views of the frame.

        Raises:
          RemoteProtocolError: if the body is not valid (see ``decode_body``), or the number of
            the last message would be over the maximum.
        """
        columns = self.delay_ms, self.at_ms, self.dedup, self.replace, self.replace_modes
        batch = decode_body(self.body, *columns)
        if self.sequence > MAX_INT64 - len(batch):
            raise RemoteProtocolError(
                f"{len(batch)} messages from sequence {self.sequence} exceed the last, {MAX_INT64}"
            )
        if self.delay_ms is None and self.at_ms is None:
            return batch, NO_TIMES
        return batch, Times(self.delay_ms, self.at_ms)


@command(13, "broker")
class Receipt(Command):
    """A confirmation that the batch of ``count`` messages that begins at ``sequence`` is durable.

    The messages have the offsets ``base_offset .. base_offset + count - 1``. ``duplicate`` means
    that messages were stored before. ``base_offset`` is -1 if the whole batch was stored before and
    its offsets are not known any more. If the topic knew some of the dedup keys, ``offsets`` has
    the offset of each message (-1 if it is unknown), and ``repeated`` is 1 for each message that
    was stored before. If messages of the batch have replace keys, ``previous`` has for each message
    the offset of the message that it replaced or gave way to, -1 for none.
    """

    producer_id: Id
    sequence: Count
    count: Count
    base_offset: CountOrNone
    duplicate: Boolean
    offsets: OptionalInt64Column = None
    repeated: FlagColumn = None
    previous: OptionalInt64Column = None

    MAX_BYTES = MAX_FRAME_BYTES
    OPTIONAL_FIELDS = 1

    def check(self) -> None:
        for column in (self.offsets, self.repeated, self.previous):
            if column is not None and len(column) != self.count:
                raise ValueError(f"a column of {len(column)} rows came with {self.count} messages")
        if (self.offsets is None) != (self.repeated is None):
            raise ValueError("offsets and repeated must be present together")


@command(14, "client")
class CloseProducer(Command):
    """A request to close a producer. The broker answers with Done."""

    request_id: Id
    producer_id: Id


@command(15, "broker")
class ProducerClosed(ErrorCommand):
    """A notice that the broker has closed a producer, with the error that is the reason.

    For example, a newer producer has taken over its name, or its topic was deleted.
    """

    producer_id: Id
    code: Code
    message: Explanation
    retryable: Boolean
