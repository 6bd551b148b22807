"""Deletion of old generations of the log.

A generation is deleted in steps, with a crash possible after each. First the owner marks it in
``removals``, and no reader uses it any more. Then its tables are dropped. Then its row and the
mark are deleted. After a crash, the deletion of marked generations continues. The tables of
a marked generation have no value, so dropping them needs no lease.

The broker's Forgetter decides which generations to delete. It relies on two facts. A generation
that no journal entry names has no row that a start would read. And for all topics in such a
generation ``next_offset`` is durable, because a checkpoint writes it before it trims the journal.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from escapement.storage import removal
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journal import journal
from escapement.storage.log.generation import Generation

# Rows deleted in one step, on an engine where dropping a table takes as long as deleting its rows.
_STEP_ROWS: Final = 64


class Holding(NamedTuple):
    """The content of one topic in a generation; offsets ``[first_offset, end_offset)``."""

    topic_id: int
    first_offset: int
    end_offset: int
    lowest_base: int  # range of the keys of rows that restate earlier messages; 0 if none
    highest_base: int
    size_bytes: int
    max_due_ms: int
    accepted_at_ms: int  # of the newest row

    @property
    def restated(self) -> bool:
        """Whether there are rows that restate earlier messages."""
        return self.lowest_base < 0


def holdings(connection: Connection, generation: Generation) -> list[Holding]:
    """Return the content of each topic in the generation. Reads every key, but no payload."""
    found: list[Holding] = []
    for table in generation.tables:
        rows = connection.execute(
            "SELECT topic_id, MIN(CASE WHEN base_offset < 0 THEN NULL ELSE base_offset END),"
            " MAX(base_offset + message_count), MIN(base_offset),"
            " MAX(CASE WHEN base_offset < 0 THEN base_offset ELSE NULL END), SUM(size_bytes),"
            f" MAX(max_due_ms), MAX(accepted_at_ms) FROM {table} GROUP BY topic_id"
        ).rows
        for topic_id, first, end, lowest, highest, *rest in rows:
            first, end = (0, 0) if first is None else (int(first), int(end))
            bases = (0, 0) if highest is None else (int(lowest), int(highest))
            found.append(Holding(topic_id, first, end, *bases, *map(int, rest)))
    return found


def named_by_journal(connection: Connection, bundle_id: int, generation: Generation) -> bool:
    """Return whether a start would read a row of this generation.

    Reads one snapshot, because a checkpoint may trim the journal between two reads.
    """
    connection.snapshot()
    try:
        return any(
            key.generation == generation.id
            for row in journal.read(connection, bundle_id)
            for key in row.entry.rows
        )
    finally:
        connection.rollback()


def mark(connection: Connection, generation: Generation) -> None:
    """Mark the generation as being deleted, inside the open transaction. Permanent."""
    removal.mark(connection, "generation", generation.id)


def empty_step(engine: Engine, connection: Connection, generation: Generation) -> bool:
    """Delete some rows inside the open transaction. Return False if none need deleting.

    MySQL drops a table at once. SQLite frees its pages one by one and blocks all other writers
    meanwhile, so there the rows are deleted first.
    """
    if engine.kind != "sqlite":
        return False
    return any(
        connection.execute(
            f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT {_STEP_ROWS})"
        ).affected
        for table in generation.tables
        if _there(connection, table)
    )


def drop(connection: Connection, generation: Generation) -> None:
    """Drop those tables of the generation that still exist, outside of a transaction."""
    for table in generation.tables:
        connection.execute(f"DROP TABLE IF EXISTS {table}")


def strike(connection: Connection, generation: Generation) -> None:
    """Delete the generation's row and its mark, inside the open transaction."""
    connection.execute("DELETE FROM generations WHERE id = ?", (generation.id,))
    removal.done(connection, "generation", generation.id)


def _there(connection: Connection, table: str) -> bool:
    """Return whether SQLite has the table. A crash may have left only some of them."""
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).rows)
