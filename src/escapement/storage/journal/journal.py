"""The journal: one row for each group commit, until a checkpoint covers it.

This module owns the tables ``journal`` and ``journal_trim``; the key is ``(bundle, lane, seq)``.
Within a lane, ``seq`` counts up by one from 1 forever, across restarts and epochs. A trimmed lane
stores its last deleted position. So the lane can continue the count, and an index that is complete
up to exactly there is still recognised.

**Order.** Entries of one topic must be replayed in the order of their commits. In one epoch a
topic has one lane, so the lane's order is enough. The number of lanes may change between starts.
As every start has its own epoch, reading goes by epoch first, then lane, then seq, which keeps the
order of every topic.

Reading goes in bounded steps. storage/journal/entry.py defines the content of an entry.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from escapement.errors import LogDamaged
from escapement.storage.engine.base import Connection, Step
from escapement.storage.engine.paging import pages
from escapement.storage.journal.entry import JournalEntry, decode_entry

# Rows of a lane to read at once; each has some hundred bytes to some hundred kilobytes.
_ROWS_AT_ONCE: Final = 64
# Rows of a lane to delete in one transaction, for which commits have to wait on SQLite.
_ROWS_TRIMMED_AT_ONCE: Final = 512


class JournalPosition(NamedTuple):
    """A position in a lane's journal: the entry ``seq``, and the random id of its group."""

    seq: int
    group_id: bytes


# The position before the first entry of a lane.
START: Final = JournalPosition(0, bytes(8))


class JournalRow(NamedTuple):
    """One entry as read back; sorting by the first two fields gives the order of replay."""

    epoch: int
    lane: int
    position: JournalPosition
    created_at_ms: int
    entry: JournalEntry


def insertion(
    bundle_id: int,
    lane: int,
    position: JournalPosition,
    epoch: int,
    created_at_ms: int,
    data: bytes,
) -> Step:
    """Return the step that writes one entry."""
    return Step(
        "INSERT INTO journal (bundle_id, lane, seq, epoch, group_id, created_at_ms, data)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(bundle_id, lane, position.seq, epoch, position.group_id, created_at_ms, data)],
    )


def read(
    connection: Connection, bundle_id: int, after: Mapping[int, int] | None = None
) -> Iterator[JournalRow]:
    """Iterate over the bundle's entries in order; in a lane of ``after`` only past that seq."""
    done = {lane: position.seq for lane, position in trims(connection, bundle_id).items()}
    for lane, seq in (after or {}).items():
        done[lane] = max(seq, done.get(lane, 0))
    lanes = connection.execute(
        "SELECT DISTINCT lane FROM journal WHERE bundle_id = ?", (bundle_id,)
    ).rows
    streams = [_read_lane(connection, bundle_id, lane, done.get(lane, 0)) for (lane,) in lanes]
    return heapq.merge(*streams, key=lambda row: row[:2])


def ends(connection: Connection, bundle_id: int) -> dict[int, JournalPosition]:
    """Return the last position of every lane that ever existed, where the lane goes on."""
    found = trims(connection, bundle_id)
    rows = connection.execute(
        "SELECT lane, MAX(seq) FROM journal WHERE bundle_id = ? GROUP BY lane", (bundle_id,)
    ).rows
    for lane, seq in rows:
        group_id = find(connection, bundle_id, lane, seq)
        assert group_id is not None
        found[lane] = JournalPosition(seq, group_id)
    return found


def trims(connection: Connection, bundle_id: int) -> dict[int, JournalPosition]:
    """Return the position up to which each lane's entries were deleted."""
    rows = connection.execute(
        "SELECT lane, seq, group_id FROM journal_trim WHERE bundle_id = ?", (bundle_id,)
    ).rows
    return {lane: JournalPosition(seq, bytes(group_id)) for lane, seq, group_id in rows}


def find(connection: Connection, bundle_id: int, lane: int, seq: int) -> bytes | None:
    """Return the group id of an entry, or None if it does not exist."""
    rows = connection.execute(
        "SELECT group_id FROM journal WHERE bundle_id = ? AND lane = ? AND seq = ?",
        (bundle_id, lane, seq),
    ).rows
    return bytes(rows[0][0]) if rows else None


def touch(connection: Connection, bundle_id: int, lane: int, seq: int) -> None:
    """Change one entry without effect on its meaning, to make a commit reach the disk."""
    connection.execute(
        "UPDATE journal SET created_at_ms = created_at_ms + 1"
        " WHERE bundle_id = ? AND lane = ? AND seq = ?",
        (bundle_id, lane, seq),
    )


def knows(connection: Connection, bundle_id: int, lane: int, position: JournalPosition) -> bool:
    """Whether this database's lane passed through ``position`` and can go on from it.

    False for another database, for one restored from an older backup, and for a position
    that has been trimmed past.
    """
    trimmed = trims(connection, bundle_id).get(lane, START)
    if position.seq <= trimmed.seq:
        return position == trimmed
    return find(connection, bundle_id, lane, position.seq) == position.group_id


def trim_step(
    connection: Connection, bundle_id: int, positions: Mapping[int, JournalPosition]
) -> bool:
    """Delete some of each lane's entries up to its position, inside the open transaction.

    Returns whether there is more to delete.
    """
    more = False
    for lane, position in positions.items():
        rows = connection.execute(
            "SELECT seq, group_id FROM journal WHERE bundle_id = ? AND lane = ? AND seq < ?"
            f" ORDER BY seq LIMIT 1 OFFSET {_ROWS_TRIMMED_AT_ONCE - 1}",
            (bundle_id, lane, position.seq),
        ).rows
        seq, group_id = rows[0] if rows else position
        more = more or bool(rows)
        connection.execute(
            "DELETE FROM journal WHERE bundle_id = ? AND lane = ? AND seq <= ?",
            (bundle_id, lane, seq),
        )
        connection.execute(
            "REPLACE INTO journal_trim (bundle_id, lane, seq, group_id) VALUES (?, ?, ?, ?)",
            (bundle_id, lane, seq, group_id),
        )
    return more


def _read_lane(
    connection: Connection, bundle_id: int, lane: int, after: int
) -> Iterator[JournalRow]:
    columns = "seq, epoch, group_id, created_at_ms, data"
    which = ("bundle_id = ? AND lane = ?", (bundle_id, lane))
    rows = pages(connection, "journal", ["seq"], columns, _ROWS_AT_ONCE, (after,), *which)
    for seq, epoch, group_id, created_at_ms, data in rows:
        if seq != after + 1:
            raise LogDamaged(f"lane {lane} of the journal lacks entry {after + 1}")
        after = seq
        position = JournalPosition(seq, bytes(group_id))
        try:
            entry = decode_entry(data)
        except LogDamaged as error:
            raise LogDamaged(f"journal lane {lane}, entry {seq}: {error}") from error
        yield JournalRow(epoch, lane, position, created_at_ms, entry)
