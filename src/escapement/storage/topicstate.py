"""How one topic stands, read out of the database beside a running broker.

What is acknowledged, cancelled, moved and attempted is a checkpoint's state and the journal's
tail on top of it (storage/journaltail.py), as in a broker's recovery. Both, and the catalog,
are read in one snapshot: a checkpoint that is written meanwhile moves things from the one to
the other. So is where the log begins, but none of its rows: they never change, and a table that
a snapshot has read cannot be dropped until it ends.

So what this says is true of one moment, and of what was committed by then. It does not know
what is only in a broker's memory: what is in flight, or acknowledged and not yet committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from escapement.errors import NotFound, StorageError
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.storage import journal
from escapement.storage.attempts import AttemptTable, decode_attempts, last_stated
from escapement.storage.catalog import (
    SubscriptionRecord,
    TopicRecord,
    find_topic,
    subscriptions_of,
)
from escapement.storage.checkpoint import load_rows
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journalentry import cancellations_id
from escapement.storage.journaltail import JournalTail
from escapement.storage.log import Log
from escapement.storage.moves import Moves
from escapement.storage.offsets import OffsetSet
from escapement.storage.schema import require

Bools = npt.NDArray[np.bool_]
_NOTHING = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class SubscriptionState:
    """What a subscription has acknowledged, and how often it tried what it has not."""

    record: SubscriptionRecord
    acked: OffsetSet = field(default_factory=OffsetSet)
    tried: Int64s = field(default_factory=lambda: _NOTHING)  # ascending
    counts: Int64s = field(default_factory=lambda: _NOTHING)  # deliveries of each of these

    def covers(self, due_ms: Int64s, offsets: Int64s) -> Bools:
        """Which messages it is to get at all; bool[n]."""
        record = self.record
        covered = offsets >= record.start_offset
        if record.kind == "shared":
            covered |= due_ms >= record.start_due_ms
        return covered


@dataclass(slots=True, eq=False)
class TopicState:
    """A topic at one moment.

    Its log has ``[begin_offset, end_offset)`` in the rows that first stated these messages. Of
    what lies before, it has what ``moves`` names, in the rows that these stand for, as far as
    they are there: none older than ``first_base``.
    """

    record: TopicRecord
    read_at_ms: int  # by the database's clock
    begin_offset: int
    end_offset: int
    first_base: int  # the key of the oldest row that states messages again; 0 without any
    log: Log
    cancelled: OffsetSet
    moves: Moves
    subscriptions: list[SubscriptionState]

    def subscription(self, name: str) -> SubscriptionState:
        """Raises ``NotFound``."""
        for one in self.subscriptions:
            if one.record.name == name:
                return one
        raise NotFound(f"topic {self.record.name} has no subscription {name}")


def read_topic(engine: Engine, connection: Connection, name: TopicName) -> TopicState:
    """How the topic stands; blocking. Its cost is that of the journal and of its own rows.

    Raises:
      NotFound: if there is no such topic.
      SchemaError: if the database was not written by this program's broker.
      StorageUnavailable: when the database cannot be reached.
    """
    try:
        return _read(engine, connection, name)
    except StorageError as error:
        if type(error) is not StorageError:
            raise
        # A generation that the snapshot knows was dropped before its table was looked at. The
        # next snapshot does not know it; whatever else it is will happen again.
        return _read(engine, connection, name)


def _read(engine: Engine, connection: Connection, name: TopicName) -> TopicState:
    connection.snapshot()
    try:
        require(connection)
        record = find_topic(connection, name)
        now_ms = int(connection.execute(f"SELECT {engine.dialect.now_ms}").rows[0][0])
        tail = JournalTail(list(journal.read(connection, record.bundle_id)))
        end = max(record.next_offset, tail.next_offsets().get(record.id, 0))
        log = Log.look(connection)
        # The one look at the log's tables: what is moved must be of the same moment.
        begin = log.first_offset(connection, record.id)
        state = TopicState(
            record,
            now_ms,
            end if begin is None else begin,
            end,
            log.first_base(connection, record.id),
            log,
            _offsets(connection, cancellations_id(record.id)),
            _moves(connection, record.id),
            [
                SubscriptionState(one, _offsets(connection, one.id))
                for one in subscriptions_of(connection, record.id)
            ],
        )
        stored = {
            one.record.id: [
                decode_attempts(data)
                for _, data in load_rows(connection, "attempts", one.record.id)
            ]
            for one in state.subscriptions
        }
    finally:
        connection.rollback()
    _replay(state, tail, stored)
    for step in tail.moved(state.log, connection, lambda id: id == record.id):
        for moved in step:
            state.moves.put(moved.offsets, moved.due_ms, moved.stale_ms, moved.base)
    return state


def read_range(connection: Connection, name: TopicName) -> tuple[int, int, int]:
    """A topic's id, where its log goes on, and where it begins now; a few short queries.

    Rows of one topic are committed in order, so all before the end is committed. Raises as
    :func:`read_topic`.
    """
    record = find_topic(connection, name)
    log = Log.look(connection)
    end = max(record.next_offset, log.end_offset(connection, record.id))
    begin = log.first_offset(connection, record.id)
    return record.id, end, end if begin is None else begin


def _replay(state: TopicState, tail: JournalTail, attempts: dict[int, list[AttemptTable]]) -> None:
    by_id = {one.record.id: one for one in state.subscriptions}
    for acked in tail.acknowledged():
        if acked.subscription_id in by_id:
            by_id[acked.subscription_id].acked.add(acked.offsets)
    for topic_id, offsets in tail.cancelled():
        if topic_id == state.record.id:
            state.cancelled.add(offsets)
    for subscription_id, table in tail.attempted():
        if subscription_id in by_id:
            attempts[subscription_id].append(table)
    for id, one in by_id.items():
        offsets = np.concatenate([_NOTHING, *(table.offsets for table in attempts[id])])
        counts = np.concatenate([_NOTHING, *(table.counts for table in attempts[id])])
        at = last_stated(offsets)
        at = at[~one.acked.contains(offsets[at])]
        one.tried, one.counts = offsets[at], counts[at]


def _offsets(connection: Connection, owner_id: int) -> OffsetSet:
    found = OffsetSet()
    for chunk, data in load_rows(connection, "cursor_chunks", owner_id):
        found.load_chunk(chunk, data)
    return found


def _moves(connection: Connection, topic_id: int) -> Moves:
    found = Moves()
    for chunk, data in load_rows(connection, "moves", topic_id):
        found.load_chunk(chunk, data)
    return found
