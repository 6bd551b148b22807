"""Appends of inbox entries to the logs of their topics, and the outcomes.

An *inbox target* is a topic name with entries that wait to be moved. The entries of one target
become one *append*: an item of a group commit that adds them to the topic's log. Entries of *bulk
jobs* lie in staged batches, and the append records how far each batch was moved. The inbox relay
works in rounds. A round waits until all of its appends have ended. Otherwise the next round would
read and submit the entries of an unfinished append again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import trio

from escapement.broker.inbox.decoded_entries import DecodedEntry
from escapement.broker.topic.publication import Publication, Stored
from escapement.broker.topic.topic import Topic
from escapement.dedup import DIGEST, Digests
from escapement.errors import Busy, EscapementError, NotFound, ShuttingDown, StorageError
from escapement.message import NO_TIME, NO_TIMES, Buffer, MessageBatch, Times, concat_columns
from escapement.storage.commit.items import Append
from escapement.storage.inbox.amend_request import AmendRequests
from escapement.storage.inbox.entry import Content
from escapement.storage.inbox.staged_batch import Advance


@dataclass(slots=True, eq=False)
class Load:
    """The decoded entries of one inbox target that will be one append."""

    topic: Topic
    of_jobs: bool = False  # whether the entries are of bulk jobs
    whole: bool = False  # whether it has all entries that were read for the target
    ids: list[int] = field(default_factory=list)
    advances: dict[int, Advance] = field(default_factory=dict)  # last progress, by staged batch
    batches: list[MessageBatch] = field(default_factory=list)
    bodies: list[Buffer] = field(default_factory=list)  # the batches, encoded
    times: list[Times] = field(default_factory=list)
    digests: list[Digests | None] = field(default_factory=list)  # of dedup keys
    # Requests about earlier messages, by the id of their entry. They are no part of the append.
    requests: dict[int, AmendRequests] = field(default_factory=dict)

    def take(self, inbox_entry: DecodedEntry) -> None:
        """Add an entry, which is not damaged."""
        content = inbox_entry.content
        if isinstance(content, AmendRequests):
            self.requests[inbox_entry.id] = content
        elif isinstance(content, Content):
            self.ids.append(inbox_entry.id)
            if inbox_entry.advance is not None:
                self.advances[inbox_entry.advance.staged_batch_id] = inbox_entry.advance
            self.batches.append(content.batch)
            self.bodies.append(content.body)
            self.times.append(content.times)
            self.digests.append(content.digests)


class Submitted:
    """The appends of one step of the relay, in progress or ended, and their outcomes.

    Args:
      stuck: how many entries were marked as stuck, because they can never be moved.
    """

    def __init__(self, stuck: int) -> None:
        self.stuck = stuck
        self.going: dict[int, Load] = {}  # in progress or succeeded, by topic id
        self.moved = 0  # number of entries
        self.moved_to: list[Load] = []  # those whose append succeeded
        self.refused: list[tuple[Load, EscapementError]] = []
        self._open = 0
        self._error: EscapementError | None = None
        self._done = trio.Event()

    def publication(self, load: Load) -> Publication:
        """Return the messages of one inbox target as a batch to publish."""
        batch = MessageBatch.concat(load.batches)

        def done(stored: Stored) -> None:
            del stored
            self.moved += len(load.ids)
            self.moved_to.append(load)
            self._ended()

        def fail(error: EscapementError) -> None:
            del self.going[load.topic.id]
            if isinstance(error, StorageError | Busy | ShuttingDown):
                self._error = error
            elif not isinstance(error, NotFound):  # NotFound: topic and entries were deleted
                self.refused.append((load, error))
            self._ended()

        return Publication(
            -1,
            -1,
            batch,
            _times(load),
            load.bodies[0] if len(load.bodies) == 1 else batch.encode(),
            done,
            fail,
            _digests(load),
        )

    def append(self, load: Load, publication: Publication) -> Append:
        """Return the append of one inbox target, and count it as in progress."""
        self.going[load.topic.id] = load
        if not self._open:
            self._done = trio.Event()
        self._open += 1
        return Append(
            load.topic.id,
            publication.body,
            len(publication.batch),
            publication.times,
            context=publication,
            fail=publication.refused,
            entry_ids=() if load.of_jobs else load.ids,
            advances=list(load.advances.values()),
            digests=publication.new_digests,
        )

    async def ended(self) -> None:
        """Wait until all appends have ended, with success or not."""
        await trio.lowlevel.checkpoint()
        while self._open:
            await self._done.wait()

    async def settled(self) -> None:
        """Wait until all appends have ended.

        Raises:
          StorageError, Busy, ShuttingDown: if an append failed with this error. The refusal of a
            single append is in ``refused`` instead.
        """
        await self.ended()
        if self._error is not None:
            raise self._error

    def _ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._done.set()


def _times(load: Load) -> Times:
    """Return the times of all entries of a load, in order."""
    if all(times is NO_TIMES for times in load.times):
        return NO_TIMES

    heights = [len(batch) for batch in load.batches]
    delays_ms = [times.delay_ms for times in load.times]
    ats_ms = [times.at_ms for times in load.times]
    return Times(
        concat_columns(list(zip(heights, delays_ms, strict=True)), NO_TIME, np.int64),
        concat_columns(list(zip(heights, ats_ms, strict=True)), NO_TIME, np.int64),
    )


def _digests(load: Load) -> Digests | None:
    """Return the digests of all entries of a load, in order; None if no message has a dedup key."""
    if all(digests is None for digests in load.digests):
        return None
    heights = [len(batch) for batch in load.batches]
    return np.concatenate(
        [
            np.zeros(height, DIGEST) if digests is None else digests
            for height, digests in zip(heights, load.digests, strict=True)
        ]
    )
