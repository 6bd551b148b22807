"""One producer of a topic: which of its messages are stored, and which connection may publish.

A producer numbers its messages. ``last_sequence`` is the highest number that is committed, and
``queued_sequence`` the highest that entered the commit pipeline. A batch that is sent again is
trimmed by its range of sequences, so a retry after a lost reply stores nothing twice (B3).

A refused batch must not be passed by later ones. So a batch names the message before it, and is
refused unless that message is queued or stored. Otherwise, after a refusal, a later batch would be
committed first. The refused batch would then be taken for a duplicate and be lost.

The *holder* of a producer's name is the connection that may publish under it. A newer holder fences
the older one: all later publishes of the older one are refused. Pure; the holder is only an object
to compare.
"""

from __future__ import annotations

from escapement.broker.token_bucket import TokenBucket
from escapement.errors import Busy, ProducerFenced, SequenceGap
from escapement.storage.catalog.producers import (
    FIRST_EPOCH,
    NO_SEQUENCE,
    NewProducer,
    ProducerRecord,
)


class Producer:
    """The sequences, the epoch and the holder of one producer."""

    __slots__ = (
        "bucket",
        "epoch",
        "holder",
        "id",
        "last_offset",
        "last_sequence",
        "name",
        "pending",
        "queued_sequence",
        "stored",
    )

    def __init__(
        self, id: int, name: str, epoch: int, last_sequence: int, last_offset: int
    ) -> None:
        self.id = id
        self.name = name
        self.epoch = epoch
        self.last_sequence = last_sequence
        self.last_offset = last_offset
        self.queued_sequence = last_sequence
        self.pending = 0  # batches in the commit pipeline
        self.holder: object | None = None
        self.bucket: TokenBucket | None = None  # exists if the producer's rate is limited
        self.stored = True  # whether the database has it; if not, its first batch stores it

    @classmethod
    def new(cls, id: int, name: str) -> Producer:
        """Return a producer without a holder that is not stored yet."""
        producer = cls(id, name, FIRST_EPOCH, NO_SEQUENCE, NO_SEQUENCE)
        producer.stored = False
        return producer

    @classmethod
    def of(cls, record: ProducerRecord) -> Producer:
        """Return a producer without a holder, as its stored record describes it."""
        return cls(record.id, record.name, record.epoch, record.last_sequence, record.last_offset)

    @property
    def is_used(self) -> bool:
        """Whether the producer has a holder, batches in the pipeline, or a rate limit to keep."""
        return self.holder is not None or bool(self.pending) or self.bucket is not None

    @property
    def is_unused(self) -> bool:
        """Whether the producer can be forgotten: it is not stored, and nobody uses it."""
        return not (self.stored or self.pending) and self.holder is None

    def stores(self, topic_id: int) -> NewProducer | None:
        """Return what the next batch must store of the producer itself; None if nothing.

        If batches are in the pipeline, the first of them stores it. If that one fails, so do all.
        """
        if self.stored or self.pending:
            return None
        return NewProducer(self.id, topic_id, self.name, self.epoch)

    def admit(self, holder: object, sequence: int, count: int, after: int) -> int:
        """Return how many messages at the start of a batch are queued or stored, 0 to ``count``.

        Args:
          holder: the connection that sends the batch.
          sequence: the sequence of the batch's first message.
          count: the number of messages in the batch.
          after: the sequence of the message before the batch, -1 if there is none.

        Raises:
          ProducerFenced: if another connection holds the name now.
          SequenceGap: if the message before the batch is neither queued nor stored.
          Busy: if the whole batch is queued or stored, and some of it is not committed yet.
        """
        if holder is not self.holder:
            raise self.fenced_error()
        if after > self.queued_sequence:
            raise SequenceGap(
                f"sequence {sequence} follows {after}, which is not stored; send {after} first"
            )
        known = min(max(self.queued_sequence - sequence + 1, 0), count)
        if known == count and sequence + count - 1 > self.last_sequence:
            raise Busy(f"sequence {sequence} is being committed; send it again")
        return known

    def fenced_error(self) -> ProducerFenced:
        """Return the error for a connection that no longer holds the producer's name."""
        return ProducerFenced(f"a newer producer named {self.name!r} has taken over")

    def fresh(self, sequence: int, count: int, after: int) -> int:
        """Return how many messages of a batch are neither queued nor stored.

        Returns 0 if ``admit`` would refuse the batch with ``SequenceGap``.
        """
        if after > self.queued_sequence:
            return 0
        return min(max(sequence + count - 1 - self.queued_sequence, 0), count)

    def queued(self, last_sequence: int) -> None:
        """Note that a batch up to ``last_sequence`` entered the commit pipeline."""
        assert last_sequence > self.queued_sequence, "a batch was queued out of order"
        self.queued_sequence = last_sequence
        self.pending += 1

    def committed(self, last_sequence: int, last_offset: int) -> None:
        """Note that a batch up to ``last_sequence`` is durable."""
        assert last_sequence > self.last_sequence, "a sequence was committed twice"
        self.stored = True
        self.last_sequence = last_sequence
        self.last_offset = last_offset
        self.pending -= 1

    def refused(self, sequence: int) -> None:
        """Note that a queued batch, from ``sequence`` on, was not stored and may be sent again."""
        self.pending -= 1
        self.queued_sequence = max(min(self.queued_sequence, sequence - 1), self.last_sequence)

    def take_over(self, holder: object, epoch: int) -> object | None:
        """Give the name to a new holder; return the previous holder, which is now fenced."""
        fenced, self.holder = self.holder, holder
        self.epoch = epoch
        return fenced
