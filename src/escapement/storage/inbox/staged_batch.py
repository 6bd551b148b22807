"""Staged batches: inbox entries that a bulk job has staged for one target.

Owns the table ``parcels``. The entries of a staged batch are in the inbox under the batch's
negative id. No target has a negative id, so no reader sees them. The commit of the job
(storage/inbox/job.py) gives the batch the id of its target. That changes no entry, and queues
the batch's entries after the target's own. They are moved in the order of their ids, as other
entries are. But moving does not delete them, because deleting them costs the database more than
writing them to the log. Instead the same group commit records the batch's progress
(:func:`advancing`). When all entries have been moved, the batch is deleted, and its entries are
deleted later (storage/cleanup/freeing.py).

All functions that write run inside a transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from escapement.errors import StorageError
from escapement.storage import removal
from escapement.storage.engine.base import Connection, Dialect, Row, Step

# Staged batches, and entries of each, that one step reads.
_STEP_STAGED_BATCHES: Final = 64
_STEP_ENTRIES: Final = 64
# Staged batches that one step of ``purge_step`` abandons.
_PURGE_STEP: Final = 64
# A job without a commit is abandoned when it has staged nothing for this time.
STAGING_IDLE_MS: Final = 3 * 86_400_000
# Condition that entry ``i`` of the committed batch ``p`` has not been moved yet.
WAITS: Final = "(i.id > p.moved_id OR i.held = 1)"


class Place(NamedTuple):
    """The place of an entry in a target's staged batches, in the order they are moved."""

    staged_batch_id: int
    entry_id: int


FIRST: Final = Place(0, 0)


class Advance(NamedTuple):
    """The progress of a staged batch: entries up to ``after`` were moved, now up to ``last``."""

    staged_batch_id: int
    after: int
    last: int


def next_entries(
    connection: Connection, target_id: int, max_bytes: int, after: Place = FIRST
) -> tuple[list[Advance], list[int], Place]:
    """Find entries of a target's staged batches after ``after``: one, or as many as fit.

    When reading ahead, all entries up to ``after`` must be on their way into the log.

    Returns:
      An advance for each entry, in the order they are to be moved; the ids of staged batches
      with no entries to be moved; and the place of the last entry.
    """
    staged_batches = connection.execute(
        "SELECT p.id, p.moved_id FROM parcels p JOIN mailboxes m ON m.id = p.mailbox_id"
        f" WHERE p.mailbox_id = ? AND p.held = 0 AND p.id >= ? ORDER BY p.id"
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
            "SELECT id, size_bytes FROM inbox WHERE mailbox_id = ? AND held = 0 AND id > ?"
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
            last = Place(staged_batch_id, id)
    return advances, emptied, last


def joined(advances: Iterable[Advance]) -> list[Advance]:
    """Merge consecutive advances into one for each staged batch."""
    found: dict[int, Advance] = {}
    for one in advances:
        before = found.get(one.staged_batch_id, one)
        assert before is one or before.last == one.after, "a skipped inbox entry between advances"
        found[one.staged_batch_id] = one._replace(after=before.after)
    return list(found.values())


def advancing(dialect: Dialect, advances: Sequence[Advance]) -> list[Step]:
    """Return the statements that record the progress of staged batches in this transaction.

    Pass the rows that they return to :func:`check_advanced` before the commit.

    Args:
      advances: one for each staged batch.
    """
    if not advances:
        return []
    find = f"SELECT id, moved_id FROM parcels WHERE id = ? AND mailbox_id > 0{dialect.update_lock}"
    return [
        Step(find, [(one.staged_batch_id,) for one in advances]),
        Step(
            "UPDATE parcels SET moved_id = ? WHERE id = ?",
            [(one.last, one.staged_batch_id) for one in advances],
        ),
    ]


def check_advanced(advances: Sequence[Advance], rows: Sequence[Row]) -> None:
    """Check by the rows of ``advancing`` that each batch was where its advance says.

    Raises:
      StorageError: if one was not: its entries were moved, or it was deleted, elsewhere.
    """
    found: dict[int, int] = dict(rows)
    for staged_batch_id, after, _ in advances:
        if found.get(staged_batch_id) != after:
            raise StorageError(
                f"Staged batch {staged_batch_id} is gone, or its entries after {after} have been"
                " moved already. Do not change rows of the table parcels by hand."
            )


def advance(dialect: Dialect, connection: Connection, advances: Sequence[Advance]) -> None:
    """Record progress at once, inside the open transaction. Raises as ``check_advanced``."""
    check_advanced(advances, connection.execute_all(advancing(dialect, advances)))


def settle(dialect: Dialect, connection: Connection, staged_batch_ids: Sequence[int]) -> None:
    """Delete batches with no entries left to move, or hold them if they have held entries."""
    for id in staged_batch_ids:
        held = connection.execute(
            "SELECT 1 FROM inbox WHERE mailbox_id = ? AND held = 1 LIMIT 1", (-id,)
        ).rows
        if held:
            connection.execute("UPDATE parcels SET held = 1 WHERE id = ?", (id,))
        else:
            connection.execute("DELETE FROM parcels WHERE id = ?", (id,))
        removal.mark(connection, "adopted", id)
    _finish_jobs(dialect, connection)


def _finish_jobs(dialect: Dialect, connection: Connection) -> None:
    """Set ``adopted_at_ms`` of committed jobs that have no staged batches left."""
    connection.execute(
        f"UPDATE jobs SET adopted_at_ms = {dialect.now_ms} WHERE adopted_at_ms IS NULL"
        " AND committed_at_ms IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM parcels p WHERE p.job_id = jobs.id AND p.mailbox_id > 0)"
    )


def close(connection: Connection, target_id: int) -> int:
    """Delete a target's staged batches. Return the number of their entries, deleted later."""
    ((inbox_entries,),) = connection.execute(
        "SELECT COUNT(*) FROM parcels p JOIN inbox i ON i.mailbox_id = -p.id"
        f" AND {WAITS} WHERE p.mailbox_id = ?",
        (target_id,),
    ).rows
    connection.execute(
        "REPLACE INTO removals (kind, id) SELECT 'parcel', id FROM parcels WHERE mailbox_id = ?",
        (target_id,),
    )
    connection.execute("DELETE FROM parcels WHERE mailbox_id = ?", (target_id,))
    return int(inbox_entries)


def give_up(connection: Connection, id: int, touched_at_ms: int) -> bool:
    """Delete a batch unless it was committed or changed since. Return whether it did."""
    gone = connection.execute(
        "DELETE FROM parcels WHERE id = ? AND mailbox_id = 0 AND touched_at_ms = ?",
        (id, touched_at_ms),
    ).affected
    if gone:
        removal.mark(connection, "parcel", id)
    return bool(gone)


def note_given_up(dialect: Dialect, connection: Connection, job_id: int) -> None:
    """Record that batches of a job were abandoned now, unless the job is committed."""
    connection.execute(
        f"UPDATE jobs SET given_up_at_ms = {dialect.now_ms}"
        " WHERE id = ? AND committed_at_ms IS NULL",
        (job_id,),
    )


def purge_step(dialect: Dialect, connection: Connection) -> bool:
    """Abandon some batches that no commit can use. Return whether there may be more.

    These are other attempts of committed jobs, and all batches of a job that has been idle for
    too long. A batch alone may be idle for longer: finished tasks wait for the rest of the job.
    """
    found = connection.execute(
        "SELECT p.id, p.touched_at_ms, p.job_id FROM parcels p LEFT JOIN jobs j ON j.id = p.job_id"
        " JOIN (SELECT job_id, MAX(touched_at_ms) AS last_ms FROM parcels WHERE mailbox_id = 0"
        "  GROUP BY job_id) staged ON staged.job_id = p.job_id"
        " WHERE p.mailbox_id = 0 AND (j.id IS NULL OR j.committed_at_ms IS NOT NULL"
        f" OR staged.last_ms < {dialect.now_ms} - {STAGING_IDLE_MS}) LIMIT {_PURGE_STEP}"
    ).rows
    left = {job for id, touched, job in found if give_up(connection, id, touched)}
    for job_id in sorted(left):
        note_given_up(dialect, connection, job_id)
    _finish_jobs(dialect, connection)  # covers jobs whose topics were deleted
    return len(found) == _PURGE_STEP
