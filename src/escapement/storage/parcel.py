"""Parcels: letters that a job has staged for one target, and their way into its mailbox.

Owns the table ``parcels``. A parcel's letters lie in the inbox under its negative id, where no
mailbox is, so nobody sees them. The commit of its job (storage/job.py) gives it the id of its
target's mailbox, and with that, without a letter being touched, they wait behind the
mailbox's own. A committed parcel only ever loses letters: they are moved as all others are,
and when none is left it is gone.

Everything here runs inside a transaction of the caller's, but for what reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from escapement.storage import removal
from escapement.storage.engine.base import Connection, Dialect

# Parcels, and letters of each, that one step looks at.
_STEP_PARCELS: Final = 64
_STEP_LETTERS: Final = 256
# Parcels and jobs given up in one step of the upkeep.
_PURGE_STEP: Final = 64
# What nobody has written to for so long, and nobody committed, is given up.
STAGING_IDLE_MS: Final = 3 * 86_400_000


class Place(NamedTuple):
    """A letter among those of a mailbox's parcels, in the order in which they are moved."""

    parcel_id: int
    letter_id: int


FIRST: Final = Place(0, 0)


class Opened(NamedTuple):
    """What one step of a mailbox's parcels found."""

    ids: list[int]  # of letters, in the order they are to be moved
    emptied: list[int]  # parcels that have none to be moved
    last: Place  # of these letters


def next_letters(
    connection: Connection, mailbox_id: int, max_bytes: int, after: Place = FIRST
) -> Opened:
    """The letters of a mailbox's parcels behind ``after``: one, or as many as fit."""
    parcels = connection.execute(
        "SELECT p.id FROM parcels p JOIN mailboxes m ON m.id = p.mailbox_id"
        f" WHERE p.mailbox_id = ? AND p.held = 0 AND p.id >= ? ORDER BY p.id LIMIT {_STEP_PARCELS}",
        (mailbox_id, after.parcel_id),
    ).rows
    ids: list[int] = []
    emptied: list[int] = []
    last = after
    for (parcel_id,) in parcels:
        begun = parcel_id == after.parcel_id
        rows = connection.execute(
            "SELECT id, size_bytes FROM inbox WHERE mailbox_id = ? AND held = 0 AND id > ?"
            f" ORDER BY id LIMIT {_STEP_LETTERS}",
            (-parcel_id, after.letter_id if begun else 0),
        ).rows
        if not rows and not begun:
            emptied.append(parcel_id)
        for id, size_bytes in rows:
            max_bytes -= size_bytes
            if ids and max_bytes < 0:
                return Opened(ids, emptied, last)
            ids.append(id)
            last = Place(parcel_id, id)
    return Opened(ids, emptied, last)


def settle(dialect: Dialect, connection: Connection, parcel_ids: Sequence[int]) -> None:
    """These had nothing left to be moved: they are gone, or held with what they have."""
    for id in parcel_ids:
        left = connection.execute("SELECT 1 FROM inbox WHERE mailbox_id = ? LIMIT 1", (-id,)).rows
        if left:
            connection.execute("UPDATE parcels SET held = 1 WHERE id = ?", (id,))
        else:
            connection.execute("DELETE FROM parcels WHERE id = ?", (id,))
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
        " WHERE p.mailbox_id = ?",
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

    That is other attempts of what is committed, and what was staged and left alone.
    """
    found = connection.execute(
        "SELECT p.id, p.touched_at_ms FROM parcels p LEFT JOIN jobs j ON j.id = p.job_id"
        " WHERE p.mailbox_id = 0 AND (j.id IS NULL OR j.committed_at_ms IS NOT NULL"
        f" OR p.touched_at_ms < {dialect.now_ms} - {STAGING_IDLE_MS}) LIMIT {_PURGE_STEP}"
    ).rows
    for id, touched_at_ms in found:
        give_up(connection, id, touched_at_ms)
    _finish_jobs(dialect, connection)  # those whose topics were deleted
    return len(found) == _PURGE_STEP
