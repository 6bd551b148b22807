"""Parcels: letters that a job has staged for one target, and their way into its mailbox.

Owns the table ``parcels``. A parcel's letters lie in the inbox under its negative id, where no
mailbox is, so nobody sees them. The commit of its job (storage/letters/job.py) gives it the id of
its target's mailbox, and with that, without a letter being touched, they wait behind the
mailbox's own. They are moved in the order of their ids, as all others are; but none is deleted
then, which would cost the database more than to write it into the log. Instead the parcel notes
in the same group commit how far it is (:func:`advancing`). When nothing of it is left it is gone,
and its letters are freed later (storage/freeing.py).

Everything here runs inside a transaction of the caller's, but for what reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from escapement.errors import StorageError
from escapement.storage import removal
from escapement.storage.engine.base import Connection, Dialect, Row, Step

# Parcels, and letters of each, that one step looks at.
_STEP_PARCELS: Final = 64
_STEP_LETTERS: Final = 64
# Parcels and jobs given up in one step of the upkeep.
_PURGE_STEP: Final = 64
# What a job has staged that nobody has written to for so long, and nobody committed, is given up.
STAGING_IDLE_MS: Final = 3 * 86_400_000
# Whether a letter ``i`` of a committed parcel ``p`` is not moved yet.
WAITS: Final = "(i.id > p.moved_id OR i.held = 1)"


class Place(NamedTuple):
    """A letter among those of a mailbox's parcels, in the order in which they are moved."""

    parcel_id: int
    letter_id: int


FIRST: Final = Place(0, 0)


class Advance(NamedTuple):
    """A parcel that had been moved up to the letter ``after`` is moved up to ``last``."""

    parcel_id: int
    after: int
    last: int


class Opened(NamedTuple):
    """What one step of a mailbox's parcels found."""

    advances: list[Advance]  # one for each letter, in the order they are to be moved
    emptied: list[int]  # parcels that have none to be moved
    last: Place  # of these letters


def next_letters(
    connection: Connection, mailbox_id: int, max_bytes: int, after: Place = FIRST
) -> Opened:
    """The letters of a mailbox's parcels behind ``after``: one, or as many as fit.

    Where they are read ahead, all up to ``after`` must be on their way into the log.
    """
    parcels = connection.execute(
        "SELECT p.id, p.moved_id FROM parcels p JOIN mailboxes m ON m.id = p.mailbox_id"
        f" WHERE p.mailbox_id = ? AND p.held = 0 AND p.id >= ? ORDER BY p.id LIMIT {_STEP_PARCELS}",
        (mailbox_id, after.parcel_id),
    ).rows
    advances: list[Advance] = []
    emptied: list[int] = []
    last = after
    for parcel_id, moved_id in parcels:
        begun = parcel_id == after.parcel_id
        stands = after.letter_id if begun else moved_id
        rows = connection.execute(
            "SELECT id, size_bytes FROM inbox WHERE mailbox_id = ? AND held = 0 AND id > ?"
            f" ORDER BY id LIMIT {_STEP_LETTERS}",
            (-parcel_id, stands),
        ).rows
        if not rows and not begun:
            emptied.append(parcel_id)
        for id, size_bytes in rows:
            max_bytes -= size_bytes
            if advances and max_bytes < 0:
                return Opened(advances, emptied, last)
            advances.append(Advance(parcel_id, stands, id))
            last = Place(parcel_id, id)
    return Opened(advances, emptied, last)


def joined(advances: Iterable[Advance]) -> list[Advance]:
    """One advance of each parcel, for several that follow one another."""
    found: dict[int, Advance] = {}
    for one in advances:
        before = found.get(one.parcel_id, one)
        assert before is one or before.last == one.after, "a letter between them is left out"
        found[one.parcel_id] = one._replace(after=before.after)
    return list(found.values())


def advancing(dialect: Dialect, advances: Sequence[Advance]) -> list[Step]:
    """What notes how far parcels are whose letters are moved in this transaction.

    The rows that it gives are for :func:`check_advanced`, before the commit.

    Args:
      advances: one of each parcel.
    """
    if not advances:
        return []
    find = f"SELECT id, moved_id FROM parcels WHERE id = ? AND mailbox_id > 0{dialect.update_lock}"
    return [
        Step(find, [(one.parcel_id,) for one in advances]),
        Step(
            "UPDATE parcels SET moved_id = ? WHERE id = ?",
            [(one.last, one.parcel_id) for one in advances],
        ),
    ]


def check_advanced(advances: Sequence[Advance], rows: Sequence[Row]) -> None:
    """Raise unless each parcel was where its advance says, by the rows that ``advancing`` gave.

    Raises:
      StorageError: one was not; then its letters were moved, or it was deleted, by another.
    """
    found: dict[int, int] = dict(rows)
    for parcel_id, after, _ in advances:
        if found.get(parcel_id) != after:
            raise StorageError(
                f"the parcel {parcel_id} whose letters behind {after} are being moved is not there"
                " any more, or farther: rows of it must not be changed by hand"
            )


def advance(dialect: Dialect, connection: Connection, advances: Sequence[Advance]) -> None:
    """Note it at once, inside the open transaction. Raises as ``check_advanced``."""
    check_advanced(advances, connection.execute_all(advancing(dialect, advances)))


def settle(dialect: Dialect, connection: Connection, parcel_ids: Sequence[int]) -> None:
    """These had nothing left to be moved: they are gone, or held with what they have."""
    for id in parcel_ids:
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
    """Note of committed jobs that have no parcels any more that nothing of them waits."""
    connection.execute(
        f"UPDATE jobs SET adopted_at_ms = {dialect.now_ms} WHERE adopted_at_ms IS NULL"
        " AND committed_at_ms IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM parcels p WHERE p.job_id = jobs.id AND p.mailbox_id > 0)"
    )


def close(connection: Connection, mailbox_id: int) -> int:
    """End a mailbox's parcels, whose letters are freed later; how many letters."""
    ((letters,),) = connection.execute(
        "SELECT COUNT(*) FROM parcels p JOIN inbox i ON i.mailbox_id = -p.id"
        f" AND {WAITS} WHERE p.mailbox_id = ?",
        (mailbox_id,),
    ).rows
    connection.execute(
        "REPLACE INTO removals (kind, id) SELECT 'parcel', id FROM parcels WHERE mailbox_id = ?",
        (mailbox_id,),
    )
    connection.execute("DELETE FROM parcels WHERE mailbox_id = ?", (mailbox_id,))
    return int(letters)


def give_up(connection: Connection, id: int, touched_at_ms: int) -> bool:
    """End a parcel that was not committed, nor written to since; whether it was so."""
    gone = connection.execute(
        "DELETE FROM parcels WHERE id = ? AND mailbox_id = 0 AND touched_at_ms = ?",
        (id, touched_at_ms),
    ).affected
    if gone:
        removal.mark(connection, "parcel", id)
    return bool(gone)


def purge_step(dialect: Dialect, connection: Connection) -> bool:
    """Give up some of what no commit will ever want; whether there may be more.

    That is other attempts of what is committed, and what was staged and left alone. A job may take
    longer than a parcel may be left: those of tasks that are at their end wait for the others.
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
        connection.execute(
            f"UPDATE jobs SET given_up_at_ms = {dialect.now_ms}"
            " WHERE id = ? AND committed_at_ms IS NULL",
            (job_id,),
        )
    _finish_jobs(dialect, connection)  # those whose topics were deleted
    return len(found) == _PURGE_STEP
