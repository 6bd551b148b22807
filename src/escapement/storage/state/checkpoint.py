"""A checkpoint: the changes to the broker's state since the last one, written to the database.

The journal has a row for each group commit, with its changes to the *state*: acknowledged and
cancelled messages, attempts, due times of rescheduled messages (*moves*), dedup keys, members of
event groups, progress of producers, lag. A checkpoint writes the sum of these changes to the tables
of the state, and then *trims* the journal: it deletes the rows that it covers. Sets of offsets and
moves are stored in *chunks*, which are replaced when they change. Attempts and dedup keys are
stored in numbered *parts*, which override those with lower numbers.

This module owns the tables ``last_checkpoint``, ``cursor_chunks``, ``moves``, ``attempts``,
``dedup_keys`` and ``group_members``, and the order in which a checkpoint changes them and others. A
checkpoint is written in short transactions, each of which begins with the lease check. A long one
would delay the renewal of the lease, and all commits after it.

The *mark*, which identifies the checkpoint, is written first. From then on, an index that lacks the
messages of this checkpoint is not used. The journal is trimmed last. All values are absolute,
except for the lag, whose rows name the journal entries that they cover
(storage/state/lag_table.py). So replaying the journal over a newer state changes nothing. If a
checkpoint ends half-way, or its COMMIT gets no reply, it is simply written again.

:mod:`~escapement.storage.state.state` reads the checkpoint when a broker starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

from escapement.storage.data_table import (
    ATTEMPTS,
    CURSOR_CHUNKS,
    DEDUP_KEYS,
    GROUP_MEMBERS,
    MOVES,
)
from escapement.storage.encoding.attempts import AttemptTable, encode_attempts
from escapement.storage.encoding.dedup_keys import KeyTable, encode_keys
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index.segments.manifest import Mark
from escapement.storage.journal import journal
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.lease import Lease, as_owner
from escapement.storage.log.generation import Generation
from escapement.storage.state import lag_table
from escapement.storage.state.lag_table import LagRow

# Limit of rows written in one transaction, so that it takes only some tens of milliseconds. A large
# row counts as one more for each ``_ROW_BYTES``.
_STEP_ROWS: Final = 1_000
_ROW_BYTES: Final = 4096

_SET_MARK: Final = "REPLACE INTO last_checkpoint (bundle_id, incarnation, number) VALUES (?, ?, ?)"
_FORGET_GROUP: Final = "DELETE FROM group_members WHERE topic_id = ? AND group_name = ?"
_SET_NEXT_OFFSET: Final = "UPDATE topics SET next_offset = ? WHERE id = ?"
_SET_PRODUCER: Final = (
    "UPDATE producers SET last_sequence = ?, last_offset = ?, updated_at_ms = ? WHERE id = ?"
)
_SET_SUBSCRIPTION: Final = "UPDATE subscriptions SET fill_from = ?, fill_until = ? WHERE id = ?"
_SET_FINISHED: Final = "UPDATE subscriptions SET finished_count = ? WHERE id = ?"
_SET_GENERATION: Final = "UPDATE generations SET size_bytes = ? WHERE id = ?"


class ChunkRow(NamedTuple):
    """A chunk of a set of offsets, or of a topic's moves. Empty data deletes the row.

    The owner of a set of acknowledged offsets is a subscription. The owner of a topic's cancelled
    offsets is the negative id of the topic. The owner of moves is a topic.
    """

    owner_id: int
    chunk: int
    data: bytes


class AttemptPart(NamedTuple):
    """A part of the attempts of a subscription's messages."""

    subscription_id: int
    part: int
    table: AttemptTable


class MemberRow(NamedTuple):
    """A chunk of the offsets of the messages of an event group. Empty data deletes the row."""

    topic_id: int
    group: str
    chunk: int
    data: bytes


class KeyPart(NamedTuple):
    """A part of the dedup keys that a topic remembers."""

    topic_id: int
    part: int
    table: KeyTable


class ProducerRow(NamedTuple):
    """The sequence and offset of a producer's last message, and when the producer was last used."""

    producer_id: int
    last_sequence: int
    last_offset: int
    updated_at_ms: int


class SubscriptionRow(NamedTuple):
    """The range of offsets whose messages are still to be read from the log for a subscription."""

    subscription_id: int
    fill_from: int
    fill_until: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The changes since the last checkpoint. Each field may be empty."""

    mark: Mark | None = None  # identifies this checkpoint
    chunks: Sequence[ChunkRow] = ()  # those of acknowledged, cancelled and lapsed offsets
    attempts: Sequence[AttemptPart] = ()
    # By subscription id, the lowest part of its attempts to keep.
    attempts_from: Mapping[int, int] = field(default_factory=dict)
    keys: Sequence[KeyPart] = ()
    # By topic id, the lowest part of its dedup keys to keep.
    keys_from: Mapping[int, int] = field(default_factory=dict)
    next_offsets: Mapping[int, int] = field(default_factory=dict)  # by topic id
    producers: Sequence[ProducerRow] = ()
    subscriptions: Sequence[SubscriptionRow] = ()
    # By subscription id, the number of messages that it need not get any more.
    finished: Mapping[int, int] = field(default_factory=dict)
    generation: Generation | None = None  # the current one of the log, with its size
    # By lane, the last journal entry that the checkpoint covers.
    trims: Mapping[int, JournalPosition] = field(default_factory=dict)
    moves: Sequence[ChunkRow] = ()
    # Event groups to delete, as topic id and name. This happens before ``members`` are written.
    forgotten: Sequence[tuple[int, str]] = ()
    members: Sequence[MemberRow] = ()
    lags: Sequence[LagRow] = ()


def write(engine: Engine, connection: Connection, lease: Lease, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in as many transactions as it needs, then trim the journal.

    Raises:
      LeaseLost: another broker has taken the lease. Nothing was written after that.
      LogDamaged: the database has lost a group commit of ``trims``, so the state is newer than the
        log. Nothing was written.
      TransactionAborted, StorageUnavailable: write the checkpoint again.
    """

    for number, step in enumerate(_steps(_changes(lease.bundle_id, checkpoint))):
        with as_owner(engine, connection, lease):
            if number == 0:
                journal.require(connection, lease.bundle_id, checkpoint.trims)
            for sql, changes in groupby(step, key=lambda change: change[0]):
                connection.execute_many(sql, [params for _, params in changes])
    more = True
    while more:
        with as_owner(engine, connection, lease):
            more = journal.trim_step(connection, lease.bundle_id, checkpoint.trims)


Change = tuple[str, tuple[Any, ...]]


def _changes(bundle_id: int, checkpoint: Checkpoint) -> Iterator[Change]:
    """Yield the SQL statements that write a checkpoint, in order, each with its parameters.

    Equal statements follow each other.
    """
    if checkpoint.mark is not None:
        yield _SET_MARK, (bundle_id, *checkpoint.mark)
    yield from CURSOR_CHUNKS.changes(checkpoint.chunks)
    yield from MOVES.changes(checkpoint.moves)
    for part in checkpoint.attempts:
        yield ATTEMPTS.put, (part.subscription_id, part.part, encode_attempts(part.table))
    # Parts are deleted only after the parts that replace them are written.
    for id, part_number in checkpoint.attempts_from.items():
        yield ATTEMPTS.delete_below, (id, part_number)
    for keys in checkpoint.keys:
        yield DEDUP_KEYS.put, (keys.topic_id, keys.part, encode_keys(keys.table))
    for id, part_number in checkpoint.keys_from.items():
        yield DEDUP_KEYS.delete_below, (id, part_number)
    for forgotten in checkpoint.forgotten:
        yield _FORGET_GROUP, forgotten
    yield from GROUP_MEMBERS.changes(checkpoint.members)
    for lag in checkpoint.lags:
        yield lag_table.SET_ROW, lag.params()
    for id, next_offset in checkpoint.next_offsets.items():
        yield _SET_NEXT_OFFSET, (next_offset, id)
    for producer in checkpoint.producers:
        yield _SET_PRODUCER, (*producer[1:], producer.producer_id)
    for subscription in checkpoint.subscriptions:
        yield _SET_SUBSCRIPTION, (*subscription[1:], subscription.subscription_id)
    # Written after ``next_offsets``, so that the difference of the two is never negative.
    for id, count in checkpoint.finished.items():
        yield _SET_FINISHED, (count, id)
    if (generation := checkpoint.generation) is not None:
        yield _SET_GENERATION, (generation.size_bytes, generation.id)


def _steps(changes: Iterator[Change]) -> Iterator[list[Change]]:
    """Divide the changes, in order, into lists for one short transaction each."""
    step: list[Change] = []
    weight = 0
    for change in changes:
        step.append(change)
        weight += 1 + sum(len(v) for v in change[1] if isinstance(v, bytes)) // _ROW_BYTES
        if weight >= _STEP_ROWS:
            yield step
            step, weight = [], 0
    if step:
        yield step
