"""The journal's tail: what its rows add to the state of the last checkpoint.

Whoever wants to know how things stand reads the state that a checkpoint wrote
(storage/checkpoint.py) and then takes in what is said here, in this order: which times were
moved, what was acknowledged or cancelled, what was attempted. A broker does so for all of its
topics when it starts, a reader beside it for one topic at a time (storage/topicstate.py).

All that is said here is absolute and in the order in which it was committed, so taking in what the
state has already changes nothing, and of two statements about one message the later counts. What
entries add to the lag is not: storage/lagtable.py tells what of it is in the state.
Journal rows of subscriptions and topics that were deleted since may be among it: who takes it
in leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from escapement.message import Int64s
from escapement.storage.attempts import AttemptTable
from escapement.storage.engine.base import Connection
from escapement.storage.journal.journal import JournalRow
from escapement.storage.journal.journalentry import Acked, ProducerMark, cancellations_id, lapses_id
from escapement.storage.log.log import Log

# Log rows read at once: a few group commits.
_STEP_BYTES: Final = 4 * 1024 * 1024


class Moved(NamedTuple):
    """Messages of a topic that are due at ``due_ms``, as the row ``base`` says; offsets ascend."""

    topic_id: int
    offsets: Int64s
    due_ms: Int64s
    stale_ms: Int64s
    base: int


class JournalTail:
    """See the module's docstring. ``rows`` are those of a bundle, in the order of reading."""

    def __init__(self, rows: Sequence[JournalRow]) -> None:
        self.rows = rows

    def next_offsets(self) -> dict[int, int]:
        """Where the log of each topic with new messages goes on, by topic id."""
        ends: dict[int, int] = {}
        for row in self.rows:
            for key in row.entry.rows:
                if key.base_offset < 0:
                    continue  # it states earlier messages again
                end = key.base_offset + key.message_count
                ends[key.topic_id] = max(ends.get(key.topic_id, 0), end)
        return ends

    def moved(
        self, log: Log, connection: Connection, wanted: Callable[[int], bool]
    ) -> Iterator[list[Moved]]:
        """The times that were moved, in bounded steps; blocking.

        Args:
          wanted: says of a topic's id whether that topic matters, and is still there.

        Raises:
          LogDamaged: if a row that says so is not there or not as it was written.
        """
        keys = [
            key
            for row in self.rows
            for key in row.entry.rows
            if key.base_offset < 0 and wanted(key.topic_id)
        ]
        for rows in log.read_rows(connection, keys, _STEP_BYTES):
            step = []
            for row in rows:
                again = row.content.restating
                assert again is not None, "a restatement names its offsets"
                due_ms, base = row.content.due_ms, row.key.base_offset
                step.append(Moved(row.key.topic_id, again.offsets, due_ms, again.stale_ms, base))
            yield step

    def acknowledged(self) -> Iterator[Acked]:
        """What subscriptions acknowledged."""
        for row in self.rows:
            for acked in row.entry.acks:
                if 0 <= acked.subscription_id < lapses_id(acked.subscription_id):
                    yield acked

    def lapsed(self) -> Iterator[Acked]:
        """What of it nobody had been handed."""
        for row in self.rows:
            for acked in row.entry.acks:
                if acked.subscription_id > (id := lapses_id(acked.subscription_id)) >= 0:
                    yield Acked(id, acked.offsets)

    def cancelled(self) -> Iterator[tuple[int, Int64s]]:
        """What was cancelled: ``(topic id, offsets)``."""
        for row in self.rows:
            for acked in row.entry.acks:
                if acked.subscription_id < 0:
                    # Which is its own inverse.
                    yield cancellations_id(acked.subscription_id), acked.offsets

    def attempted(self) -> Iterator[tuple[int, AttemptTable]]:
        """What was tried: ``(subscription id, attempts)``."""
        for row in self.rows:
            attempts = row.entry.attempts
            if attempts is None:
                continue
            for subscription_id in np.unique(attempts.subscription_id).tolist():
                at = attempts.subscription_id == subscription_id
                columns = (attempts.offset, attempts.attempt, attempts.next_ms, attempts.due_ms)
                yield subscription_id, AttemptTable(*(column[at] for column in columns))

    def producers(self) -> dict[int, ProducerMark]:
        """How far each producer has come, by its id."""
        return {mark.producer_id: mark for row in self.rows for mark in row.entry.producers}
