"""Forgetting: what an old generation of the log holds, and how it goes.

A generation goes in steps, each of which may be the last before a crash: it is marked
in ``removals``, by the owner, and from then on nobody reads it; its tables are dropped; its
row and the mark are deleted. Whatever was left half-way is found by its mark and done
again. Its tables are worth nothing once it is marked, so that dropping needs no lease.

Who decides that a generation may go is the broker's Forgetter. What he relies on here: a
generation that the journal names nowhere has no row that a start would ask for, and of all
topics in it ``next_offset`` is durable, because a checkpoint writes that before it trims.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from escapement.storage import removal
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journal import journal
from escapement.storage.log.generation import Generation

# Rows deleted in one step where dropping a table takes as long as deleting its rows.
_STEP_ROWS: Final = 64


class Holding(NamedTuple):
    """What one topic has in a generation; offsets ``[first_offset, end_offset)``."""

    topic_id: int
    first_offset: int
    end_offset: int
    lowest_base: int  # keys of rows that say something of earlier messages; 0 without any
    highest_base: int
    size_bytes: int
    max_due_ms: int
    accepted_at_ms: int  # of the newest row

    @property
    def restated(self) -> bool:
        """Whether there are rows that say something of earlier messages."""
        return self.lowest_base < 0


def holdings(connection: Connection, generation: Generation) -> list[Holding]:
    """What each topic has there. Reads every key, and no payload."""
    found: list[Holding] = []
    for table in tables(generation):
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
    """Whether a start would ask for a row of this generation."""
    return any(
        key.generation == generation.id
        for row in journal.read(connection, bundle_id)
        for key in row.entry.rows
    )


def mark(connection: Connection, generation: Generation) -> None:
    """From now on it is going, for every owner to come; inside the open transaction."""
    removal.mark(connection, "generation", generation.id)


def empty_step(engine: Engine, connection: Connection, generation: Generation) -> bool:
    """Delete some rows inside the open transaction; False when nothing is to be deleted.

    MySQL drops a table at once. SQLite frees its pages one by one, and nobody else can write
    until it has done so: there the rows go first.
    """
    if engine.kind != "sqlite":
        return False
    return any(
        connection.execute(
            f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT {_STEP_ROWS})"
        ).affected
        for table in tables(generation)
        if _there(connection, table)
    )


def drop(connection: Connection, generation: Generation) -> None:
    """Drop its tables, those that are still there; outside of a transaction."""
    for table in tables(generation):
        connection.execute(f"DROP TABLE IF EXISTS {table}")


def strike(connection: Connection, generation: Generation) -> None:
    """Forget that there was such a generation, inside the open transaction."""
    connection.execute("DELETE FROM generations WHERE id = ?", (generation.id,))
    removal.done(connection, "generation", generation.id)


def tables(generation: Generation) -> list[str]:
    """The names of its tables."""
    return [generation.table(shard) for shard in range(generation.parallelism)]


def _there(connection: Connection, table: str) -> bool:
    """Whether SQLite has the table: a crash may have left some of them."""
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).rows)
