"""Appends of inbox entries to the logs of their topics, and the outcomes.

The entries of one inbox target become one append. A round waits until all of its appends have
ended. Otherwise the next round would read and submit the entries of an unfinished append again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import trio

from escapement.broker.topic.topic import Topic
from escapement.errors import Busy, EscapementError, NotFound, ShuttingDown, StorageError
from escapement.message import NO_TIME, NO_TIMES, Buffer, MessageBatch, Times, concat_columns
from escapement.storage.commit.items import Append
from escapement.storage.inbox.staged_batch import Advance


@dataclass(slots=True, eq=False)
class RelayedAppend:
    """Entries of one target on their way into a log, as a ``Publication`` is for publishes."""

    batch: MessageBatch
    done: Callable[[], None]
    producer: None = None  # entries have no sequence numbers

    def committed(self, base_offset: int) -> None:
        """Note that the entries are durable, beginning at ``base_offset``."""
        del base_offset
        self.done()


@dataclass(slots=True, eq=False)
class Load:
    """The decoded entries of one inbox target."""

    topic: Topic
    of_jobs: bool = False
    whole: bool = False  # whether the topic took all entries that were found
    ids: list[int] = field(default_factory=list)
    advances: dict[int, Advance] = field(default_factory=dict)  # the last, by staged batch
    batches: list[MessageBatch] = field(default_factory=list)
    bodies: list[Buffer] = field(default_factory=list)  # the batches, encoded
    times: list[Times] = field(default_factory=list)


class Submitted:
    """Appends that are in progress or have ended, and their outcomes.

    Args:
      held: how many entries were left out for good.
    """

    def __init__(self, held: int) -> None:
        self.held = held
        self.going: dict[int, Load] = {}  # by topic: in progress, or moved
        self.moved = 0  # entries
        self.moved_to: list[Load] = []
        self.refused: list[tuple[Load, EscapementError]] = []
        self._open = 0
        self._error: EscapementError | None = None
        self._done = trio.Event()

    def append(self, load: Load) -> Append:
        """Return the append of one inbox target, and count it as in progress."""
        batch = MessageBatch.concat(load.batches)
        self.going[load.topic.id] = load

        def done() -> None:
            self.moved += len(load.ids)
            self.moved_to.append(load)
            self._ended()

        def fail(error: EscapementError) -> None:
            del self.going[load.topic.id]
            if isinstance(error, StorageError | Busy | ShuttingDown):
                self._error = error
            elif not isinstance(error, NotFound):  # NotFound: deleted with the topic
                self.refused.append((load, error))
            self._ended()

        if not self._open:
            self._done = trio.Event()
        self._open += 1
        return Append(
            load.topic.id,
            load.bodies[0] if len(load.bodies) == 1 else batch.encode(),
            len(batch),
            _concat(load),
            context=RelayedAppend(batch, done),
            fail=fail,
            entry_ids=() if load.of_jobs else load.ids,
            advances=list(load.advances.values()),
        )

    async def ended(self) -> None:
        """Wait until all appends have ended, with success or not."""
        await trio.lowlevel.checkpoint()
        while self._open:
            await self._done.wait()

    async def settled(self) -> None:
        """Wait until all appends have ended. Raise an error that makes the round fail."""
        await self.ended()
        if self._error is not None:
            raise self._error

    def _ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._done.set()


def _concat(load: Load) -> Times:
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
