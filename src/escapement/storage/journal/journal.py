"""The journal: one row for each group commit, until a checkpoint covers it.

An *entry* is the content of a row: the changes that the group commit made
(storage/journal/entry.py). The key of a row is ``(bundle_id, lane, seq)``. A *bundle* is the set of
topics of one broker, and a *lane* is a task of the broker that writes group commits. Within a lane,
``seq`` counts up by one from 1 forever, across restarts. A *position* is a ``seq`` with the random
id of the group commit there. A checkpoint *trims* a lane: it deletes the entries that it covers,
and stores the last deleted position. So the lane can continue the count, and an index on disk that
is complete up to exactly this position is still recognised. This module owns the tables ``journal``
and ``journal_trim``.

**Order.** Entries of one topic must be replayed in the order of their commits. In one epoch a topic
has one lane, so the lane's order is enough. The number of lanes may change between starts of the
broker. As every start has its own epoch, entries are read by epoch first, then lane, then seq,
which keeps the order of every topic.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from escapement.errors import LogDamaged
from escapement.storage.engine.base import Connection, Step
from escapement.storage.engine.paging import pages
from escapement.storage.journal.entry import JournalEntry, decode_entry

# Rows of a lane read in one query. Each has from some hundred bytes to some hundred kilobytes.
_ROWS_AT_ONCE: Final = 64
# Limit of rows of a lane deleted in one transaction. On SQLite commits have to wait for it.
_ROWS_TRIMMED_AT_ONCE: Final = 512


class JournalPosition(NamedTuple):
    """A position in a lane's journal: the number of an entry, and the id of its group commit."""

    seq: int
    group_id: bytes


# The position before the first entry of a lane.
START: Final = JournalPosition(0, bytes(8))


class JournalRow(NamedTuple):
    """A journal row that was read from the database. Replay goes by epoch, lane and position."""

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
    """Return the SQL statement that inserts a journal row.

    Args:
      data: the encoded entry.
    """
    return Step(
        "INSERT INTO journal (bundle_id, lane, seq, epoch, group_id, created_at_ms, data)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(bundle_id, lane, position.seq, epoch, position.group_id, created_at_ms, data)],
    )


def read(
    connection: Connection, bundle_id: int, after: Mapping[int, int] | None = None
) -> Iterator[JournalRow]:
    """Yield the rows of a bundle's journal in the order of replay.

    Args:
      after: by lane, a ``seq``. Entries of the lane up to this one are left out.

    Raises:
      LogDamaged: if an entry is missing or damaged.
    """
    done = {lane: position.seq for lane, position in trims(connection, bundle_id).items()}
    for lane, seq in (after or {}).items():
        done[lane] = max(seq, done.get(lane, 0))
    lanes = connection.execute(
        "SELECT DISTINCT lane FROM journal WHERE bundle_id = ?", (bundle_id,)
    ).rows
    streams = [_read_lane(connection, bundle_id, lane, done.get(lane, 0)) for (lane,) in lanes]
    return heapq.merge(*streams, key=lambda row: row[:2])


def ends(connection: Connection, bundle_id: int) -> dict[int, JournalPosition]:
    """Return the last position of every lane that ever wrote an entry, by lane."""
    found = trims(connection, bundle_id)
    rows = connection.execute(
        "SELECT lane, MAX(seq) FROM journal WHERE bundle_id = ? GROUP BY lane", (bundle_id,)
    ).rows
    for lane, seq in rows:
        group_id = find(connection, bundle_id, lane, seq)
        assert group_id is not None
        found[lane] = JournalPosition(seq, group_id)
    return found


def last_epoch(connection: Connection, bundle_id: int) -> int:
    """Return the highest epoch in a bundle's journal, or 0 if it is empty. Decodes no entry."""
    found = connection.execute(
        "SELECT MAX(epoch) FROM journal WHERE bundle_id = ?", (bundle_id,)
    ).rows[0][0]
    return found or 0


def trims(connection: Connection, bundle_id: int) -> dict[int, JournalPosition]:
    """Return the last position that was deleted from each lane, by lane."""
    rows = connection.execute(
        "SELECT lane, seq, group_id FROM journal_trim WHERE bundle_id = ?", (bundle_id,)
    ).rows
    return {lane: JournalPosition(seq, bytes(group_id)) for lane, seq, group_id in rows}


def find(connection: Connection, bundle_id: int, lane: int, seq: int) -> bytes | None:
    """Return the group commit's id of a journal entry, or None if the entry does not exist."""
    rows = connection.execute(
        "SELECT group_id FROM journal WHERE bundle_id = ? AND lane = ? AND seq = ?",
        (bundle_id, lane, seq),
    ).rows
    return bytes(rows[0][0]) if rows else None


def touch(connection: Connection, bundle_id: int, lane: int, seq: int) -> None:
    """Change a journal row without effect, so that committing this makes the row durable.

    It adds 1 ms to ``created_at_ms``. A server may show a commit before it is on disk.
    """
    connection.execute(
        "UPDATE journal SET created_at_ms = created_at_ms + 1"
        " WHERE bundle_id = ? AND lane = ? AND seq = ?",
        (bundle_id, lane, seq),
    )


def knows(connection: Connection, bundle_id: int, lane: int, position: JournalPosition) -> bool:
    """Return whether the lane has written the entry at ``position`` and still has all later ones.

    It returns False if the position comes from another database, if the database was restored from
    an older backup, or if entries after the position were deleted.
    """
    trimmed = trims(connection, bundle_id).get(lane, START)
    if position.seq <= trimmed.seq:
        return position == trimmed
    return find(connection, bundle_id, lane, position.seq) == position.group_id


def require(
    connection: Connection, bundle_id: int, positions: Mapping[int, JournalPosition]
) -> None:
    """Check, inside the open transaction, that the database knows a position of each lane.

    Args:
      positions: by lane, the position of a group commit that was durable.

    Raises:
      LogDamaged: if the database has lost one of these group commits.
    """
    for lane, position in positions.items():
        if not knows(connection, bundle_id, lane, position):
            raise LogDamaged(
                f"the database has lost group commit {position.seq} of lane {lane}, which it had"
                " confirmed: it was restored from a backup, or replaced by a replica that was"
                " behind. Start the broker again; it goes on with what the database has"
            )


def trim_step(
    connection: Connection, bundle_id: int, positions: Mapping[int, JournalPosition]
) -> bool:
    """Delete some of each lane's entries, inside the open transaction. Return whether more remain.

    Args:
      positions: by lane, the position of the last entry to delete.
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
