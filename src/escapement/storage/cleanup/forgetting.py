"""Deletion of old generations of the log.

A *generation* is a set of log tables that is dropped as a whole (storage/log/generation.py). Its
deletion has three steps. First the owner of the lease marks it in the table ``removals``, and no
reader uses it any more. Then its tables are dropped. A broker without the right to do that, and one
whose generation uses a table set (storage/log/table_sets.py), deletes all rows instead. Then the
row in the table ``generations`` and the mark are deleted, and a table set is free again. The broker
may crash after each step. Its next start continues the deletion of marked generations. Nobody needs
the tables of a marked generation, so dropping them needs no lease.

The broker's Forgetter decides which generations to delete. It relies on two facts. If no journal
entry names a row of a generation, no start of the broker reads the generation. And for all topics
in such a generation ``next_offset`` is durable, because a checkpoint writes it before it trims the
journal.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from escapement.errors import StorageError
from escapement.storage import removal
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.existing import tables
from escapement.storage.engine.mysql.errors import lacks_right
from escapement.storage.journal import journal
from escapement.storage.log import generation as catalog
from escapement.storage.log import table_sets
from escapement.storage.log.generation import Generation
from escapement.storage.log.log_table import KEYS_AT_ONCE, bounded, keys_of_table

# Limit of rows that one call of :func:`empty_step` deletes on SQLite.
_STEP_ROWS: Final = 64
# Limit of the size of the rows that one call of :func:`empty_step` deletes on MySQL. Without it, a
# transaction could have a gigabyte, and the server writes all of it to its undo and binary logs.
_STEP_BYTES: Final = 16 << 20


class Holding(NamedTuple):
    """The messages of one topic in a generation, in figures.

    The generation has the first rows of the messages ``[first_offset, end_offset)``. It may also
    have restatements, which are rows with negative base offsets that state earlier messages again.
    """

    topic_id: int
    first_offset: int
    end_offset: int
    lowest_base: int  # lowest base offset of the restatements; 0 if there are none
    highest_base: int  # highest base offset of the restatements; 0 if there are none
    size_bytes: int
    max_due_ms: int
    accepted_at_ms: int  # when the newest row was accepted

    @property
    def restated(self) -> bool:
        """Whether the generation has restatements of the topic."""
        return self.lowest_base < 0


def holdings(connection: Connection, generation: Generation) -> list[Holding]:
    """Return the figures of each topic with rows in a generation.

    Reads the columns of every row except the messages.
    """
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
    """Return whether the journal names a row of a generation, which a start would then read.

    Reads the journal in one snapshot, because a checkpoint may trim it between two reads.
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
    """Mark a generation as being deleted, inside the open transaction. This cannot be undone."""
    removal.mark(connection, "generation", generation.id, generation.bundle_id)


def drop_at_once(connection: Connection, engine: Engine, generation: Generation) -> bool:
    """Drop the tables of a marked generation, unless its rows must be deleted first.

    SQLite drops a table by freeing its pages one by one, and blocks all other writers meanwhile. So
    its rows are deleted first, in steps. MySQL drops a table quickly.

    Runs outside of a transaction.

    Returns:
      Whether the tables are dropped. If not, call :func:`empty_step` until it returns False, and
      then :func:`drop`.
    """
    return engine.kind != "sqlite" and drop(connection, generation)


def empty_step(engine: Engine, connection: Connection, generation: Generation) -> bool:
    """Delete some rows of a marked generation, inside the open transaction.

    Returns:
      Whether rows were deleted. False means that there are none left.
    """
    there = tables(engine, connection)  # a crash may have left only some of them
    return any(
        _delete_some(engine, connection, generation, table)
        for table in generation.tables
        if table in there
    )


def drop(connection: Connection, generation: Generation) -> bool:
    """Drop the tables of a marked generation that still exist, outside of a transaction.

    Returns:
      Whether there are none left. Tables of a table set stay. So do those that the broker may not
      drop: `escapement migrate` drops them later.
    """
    if generation.table_set:
        return False
    try:
        for table in generation.tables:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
    except StorageError as error:
        if not lacks_right(error):
            raise
        return False
    return True


def strike(connection: Connection, generation: Generation) -> None:
    """Delete the generation's row in the catalog and its mark, inside the open transaction."""
    table_sets.free(connection, generation)
    catalog.strike(connection, generation)
    removal.done(connection, "generation", generation.id)


def _delete_some(
    engine: Engine, connection: Connection, generation: Generation, table: str
) -> bool:
    """Delete the first rows of a table. Return whether it had any."""
    if engine.kind == "sqlite":
        which = f"WHERE rowid IN (SELECT rowid FROM {table} LIMIT {_STEP_ROWS})"
    else:
        keys = islice(keys_of_table(connection, generation, table), KEYS_AT_ONCE)
        count = len(next(bounded(keys, _STEP_BYTES), ()))
        which = f"ORDER BY topic_id, base_offset LIMIT {count}"
    return bool(connection.execute(f"DELETE FROM {table} {which}").affected)
