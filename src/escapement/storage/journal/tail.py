"""The tail of the journal: the changes to the state since the last checkpoint.

The *state* is acknowledged and cancelled messages, attempts, due times, and more
(storage/state/checkpoint.py). To know the current state, a reader loads the state at the last
checkpoint and then applies the changes of the tail, attempts after acknowledgements, because the
attempts of acknowledged messages do not count. A broker does so for all of its topics when it
starts. A reader beside the broker does so for some topics (storage/state/topic_state.py).

All changes here are absolute and in the order of their commits. So applying a change that the state
already has changes nothing, and of two changes to one message the later one counts. Only additions
to the lag are not absolute: storage/state/lag_table.py finds those that the state already has. The
journal may have changes of subscriptions and topics that were deleted since. The reader leaves them
out.
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

# Limit of the bytes of log rows that :meth:`JournalTail.moved` reads at once: a few group commits.
_STEP_BYTES: Final = 4 * 1024 * 1024


class Moved(NamedTuple):
    """Messages of a topic that one log row has rescheduled or relocated."""

    topic_id: int
    offsets: Int64s  # ascending
    due_ms: Int64s  # the new due times
    stale_ms: Int64s  # the previous due times
    base: int  # the base offset of the row, negative


class JournalTail:
    """The changes in the journal rows of a bundle.

    Args:
      rows: the journal rows behind the last checkpoint, in the order of replay.
    """

    def __init__(self, rows: Sequence[JournalRow]) -> None:
        self.rows = rows

    def next_offsets(self) -> dict[int, int]:
        """Return, for each topic with new messages, the offset after the last one; by topic id."""
        ends: dict[int, int] = {}
        for row in self.rows:
            for key in row.entry.rows:
                if key.base_offset < 0:
                    continue  # a restatement, which has no new messages
                ends[key.topic_id] = max(ends.get(key.topic_id, 0), key.end_offset)
        return ends

    def moved(
        self, log: Log, connection: Connection, wanted: Callable[[int], bool]
    ) -> Iterator[list[Moved]]:
        """Yield the messages that were rescheduled or relocated, some at a time. Blocking.

        Reads the log rows that restate them.

        Args:
          wanted: whether to read the rows of the topic with this id. It must return False for
            deleted topics.

        Raises:
          LogDamaged: if such a row is missing or damaged.
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
        """Yield the lapsed offsets of subscriptions: expired or dropped before any delivery.

        They are among the acknowledged offsets, too.
        """
        for row in self.rows:
            for acked in row.entry.acks:
                if acked.subscription_id > (id := lapses_id(acked.subscription_id)) >= 0:
                    yield Acked(id, acked.offsets)

    def cancelled(self) -> Iterator[tuple[int, Int64s]]:
        """Yield the cancelled messages as pairs of a topic id and offsets."""
        for row in self.rows:
            for acked in row.entry.acks:
                if acked.subscription_id < 0:
                    # ``cancellations_id`` is its own inverse, so this is the topic's id.
                    yield cancellations_id(acked.subscription_id), acked.offsets

    def attempted(self) -> Iterator[tuple[int, AttemptTable]]:
        """Yield the attempts of messages as pairs of a subscription id and a table."""
        for row in self.rows:
            attempts = row.entry.attempts
            if attempts is None:
                continue
            for subscription_id in np.unique(attempts.subscription_id).tolist():
                at = attempts.subscription_id == subscription_id
                columns = (attempts.offset, attempts.attempt, attempts.next_ms, attempts.due_ms)
                yield subscription_id, AttemptTable(*(column[at] for column in columns))

    def producers(self) -> dict[int, ProducerMark]:
        """Return the progress of each named producer, by its id: its last sequence and offset."""
        return {mark.producer_id: mark for row in self.rows for mark in row.entry.producers}
