"""The status of topics, read from the database beside a running broker.

The acknowledged, cancelled and moved messages and the attempts are those of a checkpoint plus the
journal's tail (storage/journal/tail.py), as in a broker's recovery. Both, and the catalog,
are read in one snapshot, because a concurrent checkpoint moves data from one to the other. The
begin of the log is read there too, but none of its rows: rows never change, and a table that a
snapshot has read cannot be dropped until the snapshot ends.

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
import numpy.typing as npt

from escapement.errors import NotFound, StorageError
from escapement.message import Int64s
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

Bools = npt.NDArray[np.bool_]
_NOTHING = np.zeros(0, np.int64)
_TOPICS_AT_ONCE: Final = 100


@dataclass(slots=True, eq=False)
class SubscriptionState:
    """The acknowledged messages of a subscription, and the attempts of the others."""

    record: SubscriptionRecord
    acked: OffsetSet = field(default_factory=OffsetSet)
    tried: Int64s = field(default_factory=lambda: _NOTHING)  # ascending
    counts: Int64s = field(default_factory=lambda: _NOTHING)  # deliveries of each of these
    lapsed: OffsetSet = field(default_factory=OffsetSet)  # acknowledged without a delivery

    def covers(self, due_ms: Int64s, offsets: Int64s) -> Bools:
        """Return which messages the subscription gets at all; bool[n]."""
        record = self.record
        covered = offsets >= record.start_offset
        if record.kind == "shared":
            covered |= due_ms >= record.start_due_ms
        return covered


@dataclass(slots=True, eq=False)
class TopicState:
    """The status of a topic at one moment.

    The first rows of messages ``[begin_offset, end_offset)`` are in the log. Of earlier messages,
    the log has those that ``moves`` names, in the rows that restate them, unless these are older
    than ``first_base``.
    """

    name: str  # in full
    record: TopicRecord
    read_at_ms: int  # by the database's clock
    begin_offset: int
    end_offset: int
    first_base: int  # key of the oldest row with restatements; 0 if there is none
    log: Log
    cancelled: OffsetSet
    moves: Moves
    subscriptions: list[SubscriptionState]

    def subscription(self, name: str) -> SubscriptionState:
        """Return the status of a subscription. Raises ``NotFound``."""
        for one in self.subscriptions:
            if one.record.name == name:
                return one
        raise NotFound(f"{self.name} has no subscription {name}")


def read_topic(engine: Engine, connection: Connection, name: TopicName) -> TopicState:
    """Return the status of a topic. Blocking. Costs reading the journal and the topic's rows.

    Raises:
      NotFound: if the topic does not exist.
      SchemaError: if this program's broker did not write the database.
      StorageUnavailable: if the database cannot be reached.
    """
    (state,) = read_topics(engine, connection, [name])
    if isinstance(state, NotFound):
        raise state
    return state


def read_topics(
    engine: Engine, connection: Connection, names: Sequence[TopicName]
) -> Iterator[TopicState | NotFound]:
    """Yield the status of each topic, in their order, or ``NotFound``. Blocking.

    The topics are not all read at the same moment. Costs reading their rows, and the journal once
    for each hundred of them. The connection is free between two topics. Raises as
    :func:`read_topic`.
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
        # A generation that the snapshot lists was dropped before its table was read. The next
        # snapshot does not list it. Any other error happens again.
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
        log = Log.look(connection)
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
    """Return a topic as of the last checkpoint; ``end`` is the end of its log by the journal."""
    end = max(record.next_offset, end)
    # The only access to the log's tables. Moves must be read at the same moment.
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
    """Return a topic's id, and the current end and begin of its log. A few short queries.

    Rows of one topic are committed in order, so all rows before the end are committed. Raises as
    :func:`read_topic`.
    """
    record = find_topic(connection, name)

    def look(log: Log) -> tuple[int, int, int]:
        end = max(record.next_offset, log.end_offset(connection, record.id))
        begin = log.first_offset(connection, record.id)
        return record.id, end, end if begin is None else begin

    return Log.reading(connection, look)


class _Amended(Protocol):
    """The changed messages of a topic."""

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
    """Apply the changes of the tails to these topics and subscriptions, by their ids; blocking.

    Args:
      attempts: the attempts of each of the subscriptions at the last checkpoint.

    Raises:
      LogDamaged: if a row that restates a due time is missing or damaged.
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
