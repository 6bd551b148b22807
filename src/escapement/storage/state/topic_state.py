"""The status of topics, read from the database beside a running broker.

The *status* of a topic is the extent of its log, its cancelled and moved messages, and the
acknowledged messages and attempts of each subscription. A *moved* message was rescheduled or
relocated: another row of the log, a *restatement*, has it too.

The status is the state at the last checkpoint plus the changes in the *tail* of the journal, the
entries behind it (storage/journal/tail.py), as in a broker's recovery. Both, and the catalog, are
read in one snapshot, because a concurrent checkpoint moves data from one to the other. The snapshot
also finds the beginning of the log, but reads no messages: log rows never change, and a table that
a snapshot has read cannot be dropped until the snapshot ends.

So the status is that of one moment, and covers everything committed by then. It does not include
the state in a broker's memory: messages in flight, and acknowledgements not yet committed.

The journal's tail covers all topics, so several topics are read together. A snapshot covers a
hundred topics at most, because it delays the dropping of tables that it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from escapement.errors import NotFound, StorageError
from escapement.message import Bools, Int64s
from escapement.names import TopicName
from escapement.storage.catalog.catalog import (
    SubscriptionRecord,
    TopicRecord,
    find_topic,
    subscriptions_of,
)
from escapement.storage.data_table import ATTEMPTS, CURSOR_CHUNKS, MOVES, loaded
from escapement.storage.encoding.attempts import AttemptTable, decode_attempts, last_stated
from escapement.storage.encoding.moves import Moves
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journal import journal
from escapement.storage.journal.entry import cancellations_id, lapses_id
from escapement.storage.journal.tail import JournalTail
from escapement.storage.log.log import Log
from escapement.storage.offsets import OffsetSet
from escapement.storage.schema import require

_NOTHING = np.zeros(0, np.int64)
_TOPICS_AT_ONCE: Final = 100


@dataclass(slots=True, eq=False)
class SubscriptionState:
    """The status of a subscription: its acknowledged messages, and the attempts of the others."""

    record: SubscriptionRecord
    acked: OffsetSet = field(default_factory=OffsetSet)
    # Offsets of messages that were delivered and are not acknowledged; ascending.
    tried: Int64s = field(default_factory=lambda: _NOTHING)
    # Number of deliveries of each message in ``tried``.
    counts: Int64s = field(default_factory=lambda: _NOTHING)
    # Acknowledged messages that expired or were dropped before any delivery.
    lapsed: OffsetSet = field(default_factory=OffsetSet)

    def covers(self, due_ms: Int64s, offsets: Int64s) -> Bools:
        """Return which messages the subscription gets, by where it begins; bool[n]."""
        record = self.record
        covered = offsets >= record.start_offset
        if record.kind == "shared":
            covered |= due_ms >= record.start_due_ms
        return covered


@dataclass(slots=True, eq=False)
class TopicState:
    """The status of a topic at one moment.

    The log has the first rows of messages ``[begin_offset, end_offset)``. Of earlier messages, it
    has those in ``moves``, in the restatements that ``moves`` names. It does not have restatements
    older than ``first_base``.
    """

    name: str  # the full name
    record: TopicRecord
    read_at_ms: int  # when the status was read, by the database's clock
    begin_offset: int
    end_offset: int
    first_base: int  # base offset of the oldest restatement; 0 if there is none
    log: Log
    cancelled: OffsetSet
    moves: Moves
    subscriptions: list[SubscriptionState]

    def subscription(self, name: str) -> SubscriptionState:
        """Return the status of the topic's subscription with this name. Raises ``NotFound``."""
        for one in self.subscriptions:
            if one.record.name == name:
                return one
        raise NotFound(f"{self.name} has no subscription {name}")


def read_topics(
    engine: Engine, connection: Connection, names: Sequence[TopicName]
) -> Iterator[TopicState | NotFound]:
    """Yield the status of each topic, in the order of ``names``, or ``NotFound``. Blocking.

    A hundred topics at a time are read at the same moment. That costs reading the state of these
    topics, and the whole journal. Between two results the caller may use the connection.

    Raises:
      SchemaError: if the database has no log, or its schema is not that of this program.
      StorageUnavailable: if the database cannot be reached.
    """
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        yield from _read_again(engine, connection, names[first : first + _TOPICS_AT_ONCE])


def _read_again(
    engine: Engine, connection: Connection, names: Sequence[TopicName]
) -> list[TopicState | NotFound]:
    try:
        return _read(engine, connection, names)
    except StorageError as error:
        if type(error) is not StorageError:
            raise
        # Probably a generation that the snapshot lists was dropped before its table was read. The
        # next snapshot does not list it. Any other error happens again.
        return _read(engine, connection, names)


def _read(
    engine: Engine, connection: Connection, names: Sequence[TopicName]
) -> list[TopicState | NotFound]:
    connection.snapshot()
    try:
        require(connection)
        found = [_found(connection, name) for name in names]
        records = [one for one in found if isinstance(one, TopicRecord)]
        if not records:
            return [one for one in found if isinstance(one, NotFound)]
        now_ms = int(connection.execute(f"SELECT {engine.dialect.now_ms}").rows[0][0])
        bundles = sorted({record.bundle_id for record in records})
        tails = [JournalTail(list(journal.read(connection, bundle))) for bundle in bundles]
        ends = {id: end for tail in tails for id, end in tail.next_offsets().items()}
        log = Log.look(connection, bundles[0] if len(bundles) == 1 else None)
        states = {
            one.id: _stored(connection, name, one, log, now_ms, ends.get(one.id, 0))
            for name, one in zip(names, found, strict=True)
            if isinstance(one, TopicRecord)
        }
        subscriptions = {
            one.record.id: one for state in states.values() for one in state.subscriptions
        }
        attempts = {
            id: [decode_attempts(data) for _, data in ATTEMPTS.rows_of(connection, id)]
            for id in subscriptions
        }
    finally:
        connection.rollback()
    replay(tails, states, subscriptions, attempts, log, connection)
    return [one if isinstance(one, NotFound) else states[one.id] for one in found]


def _found(connection: Connection, name: TopicName) -> TopicRecord | NotFound:
    try:
        return find_topic(connection, name)
    except NotFound as error:
        return error


def _stored(
    connection: Connection, name: TopicName, record: TopicRecord, log: Log, now_ms: int, end: int
) -> TopicState:
    """Return the status of a topic at the last checkpoint, without the journal's changes.

    Args:
      end: the offset after the topic's last message that the journal names; 0 for none.
    """
    end = max(record.next_offset, end)
    # Only this and ``first_base`` read the log's tables in the snapshot. They must see the same
    # moment as the reading of the moves.
    begin = log.first_offset(connection, record.id)
    return TopicState(
        name.full,
        record,
        now_ms,
        end if begin is None else begin,
        end,
        log.first_base(connection, record.id),
        log,
        _offsets(connection, cancellations_id(record.id)),
        loaded(MOVES.rows_of(connection, record.id), Moves()),
        [
            SubscriptionState(
                one,
                _offsets(connection, one.id),
                lapsed=_offsets(connection, lapses_id(one.id)),
            )
            for one in subscriptions_of(connection, record.id)
        ],
    )


def read_range(connection: Connection, name: TopicName) -> tuple[int, int, int]:
    """Return a topic's id, and the end and the beginning of its log as offsets. A few queries.

    The rows of a topic are committed in order, so all rows before the end are committed.

    Raises:
      NotFound: if the topic does not exist, or the log has no generation.
      StorageUnavailable: if the database cannot be reached.
    """
    record = find_topic(connection, name)

    def look(log: Log) -> tuple[int, int, int]:
        end = max(record.next_offset, log.end_offset(connection, record.id))
        begin = log.first_offset(connection, record.id)
        return record.id, end, end if begin is None else begin

    return Log.reading(connection, look, record.bundle_id)


class _Amended(Protocol):
    """The cancelled and the moved messages of a topic, to which :func:`replay` adds others."""

    cancelled: OffsetSet
    moves: Moves


def replay(
    tails: Sequence[JournalTail],
    topics: Mapping[int, _Amended],
    subscriptions: Mapping[int, SubscriptionState],
    attempts: Mapping[int, list[AttemptTable]],
    log: Log,
    connection: Connection,
) -> None:
    """Apply the changes in the journal's tails to the status of topics and subscriptions. Blocking.

    Args:
      topics: the topics to change, by their ids.
      subscriptions: the subscriptions to change, by their ids.
      attempts: the attempts of each of these subscriptions at the last checkpoint. The tables of
        later attempts are added to it.

    Raises:
      LogDamaged: if a restatement is missing or damaged.
    """
    for tail in tails:
        for acked in tail.acknowledged():
            if acked.subscription_id in subscriptions:
                subscriptions[acked.subscription_id].acked.add(acked.offsets)
        for lapsed in tail.lapsed():
            if lapsed.subscription_id in subscriptions:
                subscriptions[lapsed.subscription_id].lapsed.add(lapsed.offsets)
        for topic_id, offsets in tail.cancelled():
            if topic_id in topics:
                topics[topic_id].cancelled.add(offsets)
        for subscription_id, table in tail.attempted():
            if subscription_id in subscriptions:
                attempts[subscription_id].append(table)
        for step in tail.moved(log, connection, topics.__contains__):
            for moved in step:
                moves = topics[moved.topic_id].moves
                moves.put(moved.offsets, moved.due_ms, moved.stale_ms, moved.base)
    for id, one in subscriptions.items():
        _count_attempts(one, attempts[id])


def _count_attempts(one: SubscriptionState, tables: Sequence[AttemptTable]) -> None:
    offsets = np.concatenate([_NOTHING, *(table.offsets for table in tables)])
    counts = np.concatenate([_NOTHING, *(table.counts for table in tables)])
    at = last_stated(offsets)
    at = at[~one.acked.contains(offsets[at])]
    one.tried, one.counts = offsets[at], counts[at]


def _offsets(connection: Connection, owner_id: int) -> OffsetSet:
    return loaded(CURSOR_CHUNKS.rows_of(connection, owner_id), OffsetSet())
