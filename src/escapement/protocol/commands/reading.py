"""Reading a topic by offset, without a subscription; and by dedup key, to the offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from escapement.errors import RemoteProtocolError
from escapement.message import Blobs, MessageBatch
from escapement.protocol.commands.command import Command, command
from escapement.protocol.fields import (
    BodyBytes,
    Count,
    CountOrNone,
    DigestColumn,
    DueColumn,
    FoundColumn,
    Id,
    Integer,
    OffsetColumn,
    Topic,
)
from escapement.protocol.limits import MAX_BATCH_MESSAGES, MAX_FRAME_BYTES


@command(33, "client")
@dataclass(frozen=True, slots=True)
class Read(Command):
    """Asks for messages with offsets in ``[start, stop)``, the first ones there are.

    ``stop`` of -1 is the log's end. Answered by Page, whose ``next_offset`` is the
    ``start`` of the next request.
    """

    request_id: Id
    topic: Topic
    start: Count
    stop: CountOrNone
    max_messages: Annotated[int, Integer(1, MAX_BATCH_MESSAGES)]


@command(34, "broker")
@dataclass(frozen=True, slots=True, eq=False)
class Page(Command):
    """Messages in the order of their offsets, in columns of equal height; perhaps none.

    ``next_offset`` is where to go on, ``end_offset`` where the log ends now. The body of
    no messages is no bytes.
    """

    request_id: Id
    topic: Topic
    next_offset: Count
    end_offset: Count
    offsets: OffsetColumn
    due_ms: DueColumn
    published_ms: DueColumn
    body: BodyBytes

    MAX_BYTES = MAX_FRAME_BYTES

    def check(self) -> None:
        if not len(self.offsets) == len(self.due_ms) == len(self.published_ms):
            raise ValueError("columns differ in height")

    def decode(self) -> MessageBatch:
        """The messages, as views of the frame.

        Raises:
          RemoteProtocolError: if the body is none, or differs in height.
        """
        batch = MessageBatch.decode(self.body) if len(self.body) else MessageBatch(Blobs.empty(0))
        if len(batch) != len(self.offsets):
            raise RemoteProtocolError(
                f"a page of {len(batch)} messages came with {len(self.offsets)} offsets"
            )
        return batch


@command(35, "client")
@dataclass(frozen=True, slots=True, eq=False)
class Find(Command):
    """Asks for the messages that were stored with dedup keys, named by their digests."""

    request_id: Id
    topic: Topic
    dedup: DigestColumn

    MAX_BYTES = MAX_FRAME_BYTES


@command(36, "broker")
@dataclass(frozen=True, slots=True, eq=False)
class Found(Command):
    """The offset of each message of a Find, in its order; -1 where no key is remembered."""

    request_id: Id
    offsets: FoundColumn

    MAX_BYTES = MAX_FRAME_BYTES
