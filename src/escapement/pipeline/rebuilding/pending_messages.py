"""The pending messages of each topic: those that a rebuilt index must have.

The state of the last checkpoint and the journal's entries since then determine them, as in a
broker's recovery. A message that the index has without need costs space. A pending message that it
lacks would never be delivered. So the rules are those by which a broker's checkpoint keeps
messages. The result is valid while no process writes to the log.

A *key* is a message's due time and offset. After a rescheduling, the keys with other due times than
the current one are *stale*. Keys are in columns: one array of due times, one of offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from escapement.message import Bools, Int64s, MessageBatch
from escapement.storage.data_table import loaded
from escapement.storage.encoding.attempts import decode_attempts
from escapement.storage.encoding.moves import Moves
from escapement.storage.engine.base import Connection
from escapement.storage.journal.entry import cancellations_id
from escapement.storage.journal.tail import JournalTail
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.state import State
from escapement.storage.state.topic_state import SubscriptionState, replay


@dataclass(slots=True, eq=False)
class PendingMessages:
    """The state of one topic that determines which messages an index must have."""

    cancelled: OffsetSet = field(default_factory=OffsetSet)
    moves: Moves = field(default_factory=Moves)
    # The shared subscriptions. Subscriptions of other kinds read the log and not the index.
    shared: list[SubscriptionState] = field(default_factory=list)

    def live(self, due_ms: Int64s, offsets: Int64s, now_ms: int) -> Bools:
        """Return a mask of the keys that an index must have; bool[n].

        An index must have the keys of messages that are not due, because a new subscription may
        need them, and of messages that a shared subscription covers and has not acknowledged. It
        must have a stale key, or the key of a cancelled message, only if such a subscription has
        attempts at the message.
        """
        gone = self._gone(due_ms, offsets)
        live: Bools = due_ms > now_ms
        if gone is not None:
            live &= ~gone
        elif live.all():
            return live
        for one in self.shared:
            wanted = one.covers(due_ms, offsets)
            if gone is not None:
                wanted &= ~gone | np.isin(offsets, one.tried)
            if len(one.acked):
                wanted &= ~one.acked.contains(offsets)
            live |= wanted
        return live

    def _gone(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        gone = self.moves.stale(due_ms, offsets)
        if len(self.cancelled):
            cancelled = self.cancelled.contains(offsets)
            gone = cancelled if gone is None else gone | cancelled
        return gone


# For each topic id, the state that determines which of its messages an index must have.
PendingByTopic = Mapping[int, PendingMessages]


def pending_of(
    row: LogRow, pending_by_topic: PendingByTopic, now_ms: int
) -> tuple[Int64s, Int64s, list[MessageBatch]]:
    """Return the due times, offsets and contents of a log row's pending messages."""
    due_ms, offsets = row.content.due_ms, row.offsets
    of_topic = pending_by_topic.get(row.key.topic_id)
    if of_topic is None:
        return due_ms[:0], offsets[:0], []  # the topic was deleted, but its rows not yet
    batches = row.content.batches()
    live = of_topic.live(due_ms, offsets, now_ms)
    if not live.all():
        at = np.flatnonzero(live)
        due_ms, offsets, batches = due_ms[at], offsets[at], [MessageBatch.concat(batches).take(at)]
    return due_ms, offsets, batches


def pending_messages_of(
    state: State, tail: JournalTail, log: Log, connection: Connection
) -> dict[int, PendingMessages]:
    """Return the state that determines which messages an index must have; blocking.

    Args:
      state: the state of the last checkpoint. The function removes the entries that it uses.
      tail: the journal's entries since then.

    Raises:
      LogDamaged: if a row that restates a due time is missing or damaged.
    """
    pending_by_topic = {topic.id: PendingMessages() for topic in state.topics}
    shared: dict[int, SubscriptionState] = {}
    for record in state.subscriptions:
        if record.kind == "shared" and record.topic_id in pending_by_topic:
            one = shared[record.id] = SubscriptionState(record)
            pending_by_topic[record.topic_id].shared.append(one)
            loaded(state.chunks.pop(record.id, ()), one.acked)
    for topic_id, topic in pending_by_topic.items():
        loaded(state.chunks.pop(cancellations_id(topic_id), ()), topic.cancelled)
        loaded(state.moves.pop(topic_id, ()), topic.moves)
    attempts = {
        id: [decode_attempts(data) for _, data in state.attempts.pop(id, ())] for id in shared
    }
    replay([tail], pending_by_topic, shared, attempts, log, connection)
    return pending_by_topic
