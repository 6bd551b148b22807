"""Staged batches: inbox entries that a bulk job writes before it commits.

A *bulk job* (storage/inbox/job.py) writes many messages, which all become visible when it commits.
Until then they are in *staged batches*. A staged batch contains inbox entries for one target, which
is a topic. It is a row of the table ``staged_batches``, which this module owns. Its entries are
rows of ``inbox``, where they have the negative id of the batch in place of the id of a target. No
target has a negative id, so no reader sees them.

The commit of the job stores the id of the target in the batch. It changes no entry. From then on
the inbox relay *moves* the entries, in the order of their ids, after the target's other entries: it
appends their messages to the log of the topic. A moved entry of a staged batch is not deleted at
once, because deleting it costs the database more than writing it to the log. Instead the group
commit that writes the log also records in the batch the id of the last entry that was moved: the
batch *advances* (:func:`advancing`). When all entries have been moved, the batch is deleted, and
its entries are deleted later (storage/cleanup/freeing.py). An entry that can never be moved is
*stuck*: it stays for an operator to see. A batch that cannot be committed any more is *abandoned*:
it is deleted with its entries.

All functions that write run inside a transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from escapement.errors import StorageError
from escapement.storage import removal
from escapement.storage.engine.base import Connection, Dialect, Row, Step

# Limits of :func:`next_entries`: batches that one call reads, and entries of each batch.
_STEP_STAGED_BATCHES: Final = 64
_STEP_ENTRIES: Final = 64
# Limit of staged batches that one call of :func:`purge_step` abandons.
_PURGE_STEP: Final = 64
# The staged batches of an uncommitted job are abandoned when it has staged nothing for this time.
STAGING_IDLE_MS: Final = 3 * 86_400_000
# SQL condition: the inbox entry ``i`` of the committed batch ``b`` has not been moved to the log.
WAITS: Final = "(i.id > b.moved_id OR i.stuck = 1)"


class EntryPosition(NamedTuple):
    """The position of an entry among all staged batches of a target. Entries move in this order."""

    staged_batch_id: int
    entry_id: int


FIRST: Final = EntryPosition(0, 0)


class Advance(NamedTuple):
    """One advance of a staged batch.

    Entries with ids up to ``after`` were moved before. This advance moves those up to ``last``.
    """

    staged_batch_id: int
    after: int
    last: int


def next_entries(
    connection: Connection, target_id: int, max_bytes: int, after: EntryPosition = FIRST
) -> tuple[list[Advance], list[int], EntryPosition]:
    """Find the next entries to move from the staged batches of one target.

    Args:
      max_bytes: limit for the size of the entries together. One entry may exceed it.
      after: the position after which to begin. All entries up to it must be submitted for moving.

    Returns:
      An advance for each entry, in the order to move them; the ids of staged batches without
      entries left to move; and the position of the last entry found.
    """
    staged_batches = connection.execute(
        "SELECT b.id, b.moved_id FROM staged_batches b JOIN inbox_targets t ON t.id = b.target_id"
        f" WHERE b.target_id = ? AND b.stuck = 0 AND b.id >= ? ORDER BY b.id"
        f" LIMIT {_STEP_STAGED_BATCHES}",
        (target_id, after.staged_batch_id),
    ).rows
    advances: list[Advance] = []
    emptied: list[int] = []
    last = after
    for staged_batch_id, moved_id in staged_batches:
        begun = staged_batch_id == after.staged_batch_id
        stands = after.entry_id if begun else moved_id
        rows = connection.execute(
            "SELECT id, size_bytes FROM inbox WHERE target_id = ? AND stuck = 0 AND id > ?"
            f" ORDER BY id LIMIT {_STEP_ENTRIES}",
            (-staged_batch_id, stands),
        ).rows
        if not rows and not begun:
            emptied.append(staged_batch_id)
        for id, size_bytes in rows:
            max_bytes -= size_bytes
            if advances and max_bytes < 0:
                return advances, emptied, last
            advances.append(Advance(staged_batch_id, stands, id))
            last = EntryPosition(staged_batch_id, id)
    return advances, emptied, last


def joined(advances: Iterable[Advance]) -> list[Advance]:
    """Merge the consecutive advances of each staged batch into one advance."""
    found: dict[int, Advance] = {}
    for one in advances:
        before = found.get(one.staged_batch_id, one)
        assert before is one or before.last == one.after, "a skipped inbox entry between advances"
        found[one.staged_batch_id] = one._replace(after=before.after)
    return list(found.values())


def advancing(dialect: Dialect, advances: Sequence[Advance]) -> list[Step]:
    """Return the SQL statements that record advances of staged batches.

    Before the commit, pass the rows that the statements return to :func:`check_advanced`.

    Args:
      advances: one for each staged batch.
    """
    if not advances:
        return []
    find = (
        "SELECT id, moved_id FROM staged_batches"
        f" WHERE id = ? AND target_id > 0{dialect.update_lock}"
    )
    return [
        Step(find, [(one.staged_batch_id,) for one in advances]),
        Step(
            "UPDATE staged_batches SET moved_id = ? WHERE id = ?",
            [(one.last, one.staged_batch_id) for one in advances],
        ),
    ]


def check_advanced(advances: Sequence[Advance], rows: Sequence[Row]) -> None:
    """Check that each staged batch had been moved exactly up to ``after`` of its advance.

    Args:
      rows: the rows that the statements of :func:`advancing` returned.

    Raises:
      StorageError: if another transaction has moved entries of a batch or deleted the batch.
    """
    found: dict[int, int] = dict(rows)
    for staged_batch_id, after, _ in advances:
        if found.get(staged_batch_id) != after:
            raise StorageError(
                f"Staged batch {staged_batch_id} is gone, or its entries after {after} have been"
                " moved already. Do not change rows of the table staged_batches by hand."
            )


def advance(dialect: Dialect, connection: Connection, advances: Sequence[Advance]) -> None:
    """Record advances of staged batches in the open transaction.

    Raises:
      StorageError: if another transaction has moved entries of a batch or deleted the batch.
    """
    check_advanced(advances, connection.execute_all(advancing(dialect, advances)))


def settle(
    dialect: Dialect,
    connection: Connection,
    staged_batch_ids: Sequence[int],
    bundle_id: int = 0,
) -> None:
    """Finish staged batches that have no entries left to move, as the owner of their bundle.

    A batch is deleted, or marked as stuck if it has stuck entries. Its moved entries are deleted
    later. A job that has no batches left is marked as adopted.
    """
    for id in staged_batch_ids:
        stuck = connection.execute(
            "SELECT 1 FROM inbox WHERE target_id = ? AND stuck = 1 LIMIT 1", (-id,)
        ).rows
        if stuck:
            connection.execute("UPDATE staged_batches SET stuck = 1 WHERE id = ?", (id,))
        else:
            connection.execute("DELETE FROM staged_batches WHERE id = ?", (id,))
        removal.mark(connection, "moved_batch", id, bundle_id)
    _finish_jobs(dialect, connection)


def _finish_jobs(dialect: Dialect, connection: Connection) -> None:
    """Mark each committed job without committed staged batches as adopted.

    *Adopted* means that all messages of the job have been moved to the logs of their topics, or
    were deleted with their topic.
    """
    connection.execute(
        f"UPDATE jobs SET adopted_at_ms = {dialect.now_ms} WHERE adopted_at_ms IS NULL"
        " AND committed_at_ms IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM staged_batches b WHERE b.job_id = jobs.id AND b.target_id > 0)"
    )


def close(connection: Connection, target_id: int, bundle_id: int = 0) -> int:
    """Delete a target's staged batches. The owner of the bundle deletes their entries later.

    Returns:
      The number of entries that were not moved to the log.
    """
    ((inbox_entries,),) = connection.execute(
        "SELECT COUNT(*) FROM staged_batches b JOIN inbox i ON i.target_id = -b.id"
        f" AND {WAITS} WHERE b.target_id = ?",
        (target_id,),
    ).rows
    connection.execute(
        "REPLACE INTO removals (kind, id, bundle_id)"
        " SELECT 'staged_batch', id, ? FROM staged_batches WHERE target_id = ?",
        (bundle_id, target_id),
    )
    connection.execute("DELETE FROM staged_batches WHERE target_id = ?", (target_id,))
    return int(inbox_entries)


def give_up(connection: Connection, id: int, staged_at_ms: int) -> bool:
    """Abandon a staged batch, unless it was committed or has got more entries.

    Args:
      staged_at_ms: when entries were last staged, as the caller has read it. If it has changed
        since, the batch stays.

    Returns:
      Whether the batch was abandoned.
    """
    gone = connection.execute(
        "DELETE FROM staged_batches WHERE id = ? AND target_id = 0 AND staged_at_ms = ?",
        (id, staged_at_ms),
    ).affected
    if gone:
        removal.mark(connection, "staged_batch", id)
    return bool(gone)


def note_given_up(dialect: Dialect, connection: Connection, job_id: int) -> None:
    """Record the present time as the one at which staged batches of a job were abandoned.

    Has no effect if the job is committed.
    """
    connection.execute(
        f"UPDATE jobs SET given_up_at_ms = {dialect.now_ms}"
        " WHERE id = ? AND committed_at_ms IS NULL",
        (job_id,),
    )


def purge_step(dialect: Dialect, connection: Connection) -> bool:
    """Abandon some staged batches that no commit can use. Return whether there may be more.

    These are batches that the commit of their job left out, and all batches of a job that has
    staged nothing for ``STAGING_IDLE_MS``. A single batch may be older, while other tasks of its
    job still stage entries.
    """
    found = connection.execute(
        "SELECT b.id, b.staged_at_ms, b.job_id FROM staged_batches b"
        " LEFT JOIN jobs j ON j.id = b.job_id"
        " JOIN (SELECT job_id, MAX(staged_at_ms) AS last_ms FROM staged_batches WHERE target_id = 0"
        "  GROUP BY job_id) staged ON staged.job_id = b.job_id"
        " WHERE b.target_id = 0 AND (j.id IS NULL OR j.committed_at_ms IS NOT NULL"
        f" OR staged.last_ms < {dialect.now_ms} - {STAGING_IDLE_MS}) LIMIT {_PURGE_STEP}"
    ).rows
    left = {job for id, staged_at_ms, job in found if give_up(connection, id, staged_at_ms)}
    for job_id in sorted(left):
        note_given_up(dialect, connection, job_id)
    _finish_jobs(dialect, connection)  # there are jobs whose last batch was deleted with its topic
    return len(found) == _PURGE_STEP
