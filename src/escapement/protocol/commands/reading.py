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
    """A request for the first messages with offsets from ``start`` to below ``stop``.

    A ``stop`` of -1 means the end of the log. The broker answers with Page, whose ``next_offset``
    is the ``start`` of the next Read.
    """

    request_id: Id
    topic: Topic
    start: Count
    stop: CountOrNone
    max_messages: Annotated[int, Integer(1, MAX_BATCH_MESSAGES)]


@command(34, "broker")
class Page(Command):
    """The reply to Read: messages ordered by offset, in columns with one row per message.

    ``next_offset`` is the offset at which the next page begins, and ``end_offset`` is the current
    end of the log. ``published_ms`` has the times at which the broker accepted the messages. A page
    may have no messages; then its body has no bytes.
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
        """Return the messages, as views of the frame. Raises the errors of ``decode_body``."""
        if not len(self.body) and not len(self.offsets):
            return MessageBatch(Blobs.empty(0))
        return decode_body(self.body, self.offsets)


@command(35, "client")
class Find(Command):
    """A request to look up messages by their dedup keys, of which ``dedup`` has the digests."""

    request_id: Id
    topic: Topic
    dedup: DigestColumn

    MAX_BYTES = MAX_FRAME_BYTES


@command(36, "broker")
class Found(Command):
    """The reply to Find: the offset of the message with each dedup key, -1 for an unknown key."""

    request_id: Id
    offsets: FoundColumn

    MAX_BYTES = MAX_FRAME_BYTES
