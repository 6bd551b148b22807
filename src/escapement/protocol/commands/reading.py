"""Commands to read a topic by offset without a subscription, and to look up dedup keys."""

from __future__ import annotations

from typing import Annotated

from escapement.message import Blobs, MessageBatch
from escapement.protocol.body import decode_body
from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import (
    BodyBytes,
    Count,
    CountOrNone,
    DigestColumn,
    FoundColumn,
    Id,
    Int64Column,
    Integer,
    Topic,
)
from escapement.protocol.limits import MAX_BATCH_MESSAGES, MAX_FRAME_BYTES


@command(33, "client")
class Read(Command):
    """A request for the first messages with offsets in ``[start, stop)``.

    A ``stop`` of -1 is the end of the log. Answered by Page, whose ``next_offset`` is the
    ``start`` of the next request.
    """

    request_id: Id
    topic: Topic
    start: Count
    stop: CountOrNone
    max_messages: Annotated[int, Integer(1, MAX_BATCH_MESSAGES)]


@command(34, "broker")
class Page(Command):
    """A page of messages in the order of their offsets, in columns of equal height.

    ``next_offset`` is where the next page begins, ``end_offset`` where the log ends now. A
    page may be empty; then its body has no bytes.
    """

    request_id: Id
    topic: Topic
    next_offset: Count
    end_offset: Count
    offsets: Int64Column
    due_ms: Int64Column
    published_ms: Int64Column
    body: BodyBytes

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        if not len(self.offsets) == len(self.due_ms) == len(self.published_ms):
            raise ValueError("columns differ in height")

    def decode(self) -> MessageBatch:
        """Return the messages, as views of the frame. Raises as ``decode_body``."""
        if not len(self.body) and not len(self.offsets):
            return MessageBatch(Blobs.empty(0))
        return decode_body(self.body, self.offsets)


@command(35, "client")
class Find(Command):
    """A request for the offsets of the messages with dedup keys, given as digests."""

    request_id: Id
    topic: Topic
    dedup: DigestColumn

    MAX_BYTES = MAX_FRAME_BYTES


@command(36, "broker")
class Found(Command):
    """The reply to Find: one offset per digest, in order, or -1 if the key is unknown."""

    request_id: Id
    offsets: FoundColumn

    MAX_BYTES = MAX_FRAME_BYTES
