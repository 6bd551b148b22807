"""The journal's tail: the changes that its rows make to the state of the last checkpoint.

To know the current state, a reader loads the state that a checkpoint wrote
(storage/state/checkpoint.py) and then applies the changes here in this order: rescheduled due
times, acknowledgements and cancellations, attempts. A broker does so for all of its topics when it
starts; a reader beside the broker does so for one topic at a time (storage/state/topic_state.py).

All changes here are absolute and in the order of their commits. So applying a change that the
state already has changes nothing, and of two changes to one message the later one counts. The
additions to the lag are not absolute: storage/state/lag_table.py finds those that the state already
has. The journal may have rows of subscriptions and topics that were deleted since; the reader
leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from escapement.message import Int64s
from escapement.storage.encoding.attempts import AttemptTable
from escapement.storage.engine.base import Connection
from escapement.storage.journal.entry import Acked, ProducerMark, cancellations_id, lapses_id
from escapement.storage.journal.journal import JournalRow
from escapement.storage.log.log import Log

# The bytes of log rows to read at once: a few group commits.
_STEP_BYTES: Final = 4 * 1024 * 1024


class Moved(NamedTuple):
    """Messages of a topic that are due at ``due_ms`` by the log row ``base``; offsets ascend."""

    topic_id: int
    offsets: Int64s
    due_ms: Int64s
    stale_ms: Int64s
    base: int


class JournalTail:
    """The changes in the journal rows of a bundle, which must be in the order of reading."""

    def __init__(self, rows: Sequence[JournalRow]) -> None:
        self.rows = rows

    def next_offsets(self) -> dict[int, int]:
        """Return the next offset of the log of each topic with new messages, by topic id."""
        ends: dict[int, int] = {}
        for row in self.rows:
            for key in row.entry.rows:
                if key.base_offset < 0:
                    continue  # the row restates earlier messages
                ends[key.topic_id] = max(ends.get(key.topic_id, 0), key.end_offset)
        return ends

    def moved(
        self, log: Log, connection: Connection, wanted: Callable[[int], bool]
    ) -> Iterator[list[Moved]]:
        """Yield the rescheduled due times, in bounded steps; blocking.

        Args:
          wanted: whether a topic, given by its id, matters and still exists.

        Raises:
          LogDamaged: if a row with such times is missing or damaged.
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
        """Yield the offsets that subscriptions acknowledged."""
        for row in self.rows:
            for acked in row.entry.acks:
                if 0 <= acked.subscription_id < lapses_id(acked.subscription_id):
                    yield acked

    def lapsed(self) -> Iterator[Acked]:
        """Yield the acknowledged offsets that expired or were dropped before any delivery."""
        for row in self.rows:
            for acked in row.entry.acks:
                if acked.subscription_id > (id := lapses_id(acked.subscription_id)) >= 0:
                    yield Acked(id, acked.offsets)

    def cancelled(self) -> Iterator[tuple[int, Int64s]]:
        """Yield the cancelled messages as ``(topic id, offsets)``."""
        for row in self.rows:
            for acked in row.entry.acks:
                if acked.subscription_id < 0:
                    # The function is its own inverse.
                    yield cancellations_id(acked.subscription_id), acked.offsets

    def attempted(self) -> Iterator[tuple[int, AttemptTable]]:
        """Yield the attempts as ``(subscription id, attempts)``."""
        for row in self.rows:
            attempts = row.entry.attempts
            if attempts is None:
                continue
            for subscription_id in np.unique(attempts.subscription_id).tolist():
                at = attempts.subscription_id == subscription_id
                columns = (attempts.offset, attempts.attempt, attempts.next_ms, attempts.due_ms)
                yield subscription_id, AttemptTable(*(column[at] for column in columns))

    def producers(self) -> dict[int, ProducerMark]:
        """Return the last sequence and offset of each producer, by its id."""
        return {mark.producer_id: mark for row in self.rows for mark in row.entry.producers}
