"""Bulk changes: one action on all messages of a topic that match a filter, and its progress.

Owns the tables ``bulk_changes`` and ``bulk_parts``. A bulk change first *selects*: it finds the
offsets of the matching messages and stores them in parts. Then it *runs*: it carries out its action
on a slice of these offsets at a time, in ascending order, and stores how far it has come. So it
handles each message once, however due times change meanwhile. When it has ended, its row stays for
a while, and its parts are freed in the background.

All functions run inside a transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from escapement.message import Int64s
from escapement.storage import removal
from escapement.storage.engine.base import Connection
from escapement.storage.engine.paging import by_id
from escapement.storage.offsets.offset_column import decode_offsets, encode_offsets

# The most offsets in one part, which take up to half a megabyte.
PART_OFFSETS: Final = 65_536


class Action(StrEnum):
    """The effect of a bulk change on each message."""

    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    RUN_NOW = "run_now"
    REDRIVE = "redrive"


class BulkState(StrEnum):
    """The state of a bulk change. It has ended in the last three."""

    SELECTING = "selecting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class Filter(NamedTuple):
    """The conditions that messages must fulfil.

    They are due from ``from_ms`` on and before ``until_ms``. They have the message key ``key``, if
    it is given, and all of ``properties``, a map in MessagePack.
    """

    from_ms: int = 0
    until_ms: int | None = None
    key: bytes | None = None
    properties: bytes = b""


class Counts(NamedTuple):
    """The number of messages by outcome.

    ``done`` were changed. ``delivered`` had been delivered already. ``skipped`` needed no change
    for another reason: they were cancelled, expired, dropped, or redriven already.
    """

    done: int = 0
    delivered: int = 0
    skipped: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(slots=True)
class BulkChange:
    """A bulk change. Fields up to ``created_at_ms`` never change."""

    id: int
    topic: str
    topic_id: int  # of the topic with the messages, see ``lies_in``
    action: Action
    subscription: str  # of a redrive; "" for other actions
    dead_letter_topic: str  # of a redrive; "" for other actions
    filter: Filter
    bound: int  # only messages below this offset match
    at_ms: int | None  # the new due time; None: at once
    spread_ms: int
    role: str | None  # of the client that started it; None: the log has no roles
    reason: str
    created_at_ms: int
    state: BulkState
    total: int  # 0 while it selects
    next_offset: int  # the action was carried out for lower offsets
    counts: Counts
    error: str
    updated_at_ms: int
    ended_at_ms: int | None

    @property
    def lies_in(self) -> str:
        """The full name of the topic that has the messages."""
        return self.dead_letter_topic or self.topic

    @property
    def has_ended(self) -> bool:
        return self.state not in (BulkState.SELECTING, BulkState.RUNNING)


_INSERTED: Final = (
    "bundle_id, topic, topic_id, action, subscription, dead_letter_topic, from_ms, until_ms,"
    " message_key, properties, bound, new_at_ms, spread_ms, role, reason, state, total,"
    " next_offset, done_count, delivered_count, skipped_count, error, created_at_ms,"
    " updated_at_ms, ended_at_ms"
)


def create(connection: Connection, change: BulkChange, bundle_id: int = 0) -> int:
    """Store a new bulk change, and return the id that it gets."""
    marks = ", ".join("?" * (_INSERTED.count(",") + 1))
    return connection.execute(
        f"INSERT INTO bulk_changes ({_INSERTED}) VALUES ({marks})",
        (
            bundle_id,
            change.topic.encode(),
            change.topic_id,
            change.action.value,
            change.subscription,
            change.dead_letter_topic.encode(),
            *change.filter,
            change.bound,
            change.at_ms,
            change.spread_ms,
            change.role,
            change.reason.encode(),
            change.state.value,
            change.total,
            change.next_offset,
            *change.counts,
            change.error.encode(),
            change.created_at_ms,
            change.updated_at_ms,
            change.ended_at_ms,
        ),
    ).last_id


def bundle_of(connection: Connection, id: int) -> int | None:
    """Return the bundle whose owner carries out a bulk change; None if no row has this id."""
    rows = connection.execute("SELECT bundle_id FROM bulk_changes WHERE id = ?", (id,)).rows
    return int(rows[0][0]) if rows else None


def save(connection: Connection, change: BulkChange, bundle_id: int = 0) -> None:
    """Store the state and the progress of a bulk change. Mark the parts of an ended one."""
    connection.execute(
        "UPDATE bulk_changes SET state = ?, total = ?, next_offset = ?, done_count = ?,"
        " delivered_count = ?, skipped_count = ?, error = ?, updated_at_ms = ?, ended_at_ms = ?"
        " WHERE id = ?",
        (
            change.state.value,
            change.total,
            change.next_offset,
            *change.counts,
            change.error.encode(),
            change.updated_at_ms,
            change.ended_at_ms,
            change.id,
        ),
    )
    if change.has_ended:
        removal.mark(connection, "bulk_change", change.id, bundle_id)


def delete(connection: Connection, ids: Sequence[int]) -> None:
    """Delete bulk changes that have ended."""
    connection.execute_many("DELETE FROM bulk_changes WHERE id = ?", [(id,) for id in ids])


def discard_parts(connection: Connection, change_id: int) -> bool:
    """Delete some parts that an interrupted selection has left; return whether there were any."""
    rows = connection.execute(
        "SELECT last_offset FROM bulk_parts WHERE change_id = ? ORDER BY last_offset LIMIT 64",
        (change_id,),
    ).rows
    connection.execute_many(
        "DELETE FROM bulk_parts WHERE change_id = ? AND last_offset = ?",
        [(change_id, last) for (last,) in rows],
    )
    return bool(rows)


def add_parts(connection: Connection, change_id: int, parts: Iterable[Int64s]) -> None:
    """Store parts of a selection. Each has at most ``PART_OFFSETS`` offsets, ascending."""
    connection.execute_many(
        "REPLACE INTO bulk_parts (change_id, last_offset, data) VALUES (?, ?, ?)",
        [(change_id, int(part[-1]), encode_offsets(part)) for part in parts],
    )


def read_part(connection: Connection, change_id: int, from_offset: int) -> Int64s:
    """Return the next offsets of a bulk change, from one offset on; none if it is finished."""
    rows = connection.execute(
        "SELECT data FROM bulk_parts WHERE change_id = ? AND last_offset >= ?"
        " ORDER BY last_offset LIMIT 1",
        (change_id, from_offset),
    ).rows
    if not rows:
        return np.zeros(0, np.int64)
    offsets = decode_offsets(rows[0][0])
    return offsets[np.searchsorted(offsets, from_offset) :]


def read_all(connection: Connection, bundle_id: int) -> Iterator[BulkChange]:
    """Yield all bulk changes of a bundle, in the order of their ids."""
    columns = "id, " + _INSERTED.removeprefix("bundle_id, ")
    for row in by_id(connection, "bulk_changes", columns, "bundle_id = ?", (bundle_id,)):
        id, topic, topic_id, action, subscription, dead_letters, *filter_and_rest = row
        from_ms, until_ms, key, properties, *rest = filter_and_rest
        bound, at_ms, spread_ms, role, reason, state, total, next_offset, *figures = rest
        done, delivered, skipped, error, created_at_ms, updated_at_ms, ended_at_ms = figures
        yield BulkChange(
            id,
            bytes(topic).decode(),
            topic_id,
            Action(action),
            subscription,
            bytes(dead_letters).decode(),
            Filter(from_ms, until_ms, None if key is None else bytes(key), bytes(properties)),
            bound,
            at_ms,
            spread_ms,
            role,
            bytes(reason).decode(),
            created_at_ms,
            BulkState(state),
            total,
            next_offset,
            Counts(done, delivered, skipped),
            bytes(error).decode(),
            updated_at_ms,
            ended_at_ms,
        )
