"""A generation of the log: a set of tables that is created, filled and dropped as a whole.

A generation has ``parallelism`` tables with the names ``log_<generation>_<shard>``. If the broker
may not create tables, they are those of a *table set* instead, which was created ahead
(storage/log/table_sets.py). The rows of a topic are in the shard ``topic_id % parallelism``. New
rows go into the newest generation, which ends when it is large enough or the UTC day ends. A change
of parallelism takes effect with the next generation. Each bundle of topics has generations of its
own. This module owns the table ``generations``,
the *catalog* of the generations, which has a row for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from escapement.storage.engine.base import Connection, Dialect, Engine
from escapement.storage.engine.existing import tables

# A generation ends at this size. It is so large that readers have few generations to search, and so
# small that dropping one frees space in reasonable steps.
GENERATION_SIZE_BYTES: Final = 8 << 30
DAY_MS: Final = 86_400_000
_TABLE: Final = re.compile(r"log_(set_)?[0-9]+_[0-9]+")

_CREATE: Final = """
    CREATE TABLE IF NOT EXISTS {table} (
        topic_id BIGINT NOT NULL,
        base_offset BIGINT NOT NULL,
        message_count BIGINT NOT NULL,
        min_due_ms BIGINT NOT NULL,
        max_due_ms BIGINT NOT NULL,
        owner_epoch BIGINT NOT NULL,
        accepted_at_ms BIGINT NOT NULL,
        kind SMALLINT NOT NULL,
        size_bytes BIGINT NOT NULL,
        data {blob} NOT NULL,
        PRIMARY KEY (topic_id, base_offset){index}
    ){table_end}
"""
# The index finds the rows with messages that are due first, for a broker that has lost its delayed
# index (storage/log/earlier_rows.py). Tables from before it was added have no such index, and are
# read as a whole.
_DUE: Final = "(min_due_ms, topic_id, base_offset)"


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of the log.

    In the database, ``size_bytes`` is as of the last checkpoint. In memory it is up to date.
    """

    id: int
    parallelism: int
    created_at_ms: int
    size_bytes: int
    table_set: int = 0  # the table set that the generation uses; 0 if it has tables of its own
    bundle_id: int = 0  # the bundle whose topics have rows in it

    def table(self, topic_id: int) -> str:
        shard = topic_id % self.parallelism
        return set_table(self.table_set, shard) if self.table_set else f"log_{self.id}_{shard}"

    @property
    def guard(self) -> str:
        """SQL to append to the WHERE of a query for a range of rows: " AND ...", or "".

        A later generation may use the same table set. A reader beside the broker that still has
        this generation in its list then finds no rows, as if they had been deleted. The server
        looks at the rows and at the user of the set at the same moment. A query for rows by their
        keys needs no guard, because keys are never used again.
        """
        if not self.table_set:
            return ""
        return (
            f" AND EXISTS (SELECT 1 FROM table_sets WHERE id = {self.table_set}"
            f" AND generation = {self.id})"
        )

    @property
    def tables(self) -> list[str]:
        """The names of the generation's tables."""
        return [self.table(shard) for shard in range(self.parallelism)]


def should_roll(current: Generation, now_ms: int) -> bool:
    """Return whether a new generation should replace the current one for new rows.

    It should if the current one is too large, or began on an earlier UTC day and is not empty.
    """
    if current.size_bytes >= GENERATION_SIZE_BYTES:
        return True
    return current.size_bytes > 0 and now_ms // DAY_MS > current.created_at_ms // DAY_MS


def create(engine: Engine, connection: Connection, new: Generation) -> None:
    """Create the tables of a generation that do not exist. Blocking.

    Call this outside of a transaction. It can be repeated after a failure.
    """
    for table in new.tables:
        for statement in creation(engine.dialect, table):
            connection.execute(statement)


def creation(dialect: Dialect, table: str) -> list[str]:
    """Return the SQL statements that create a table of the log and its index."""
    index = f", KEY due {_DUE}" if dialect.inner_index else ""
    table_end = dialect.table_end
    statement = _CREATE.format(table=table, blob=dialect.blob, index=index, table_end=table_end)
    if dialect.inner_index:
        return [statement]
    return [statement, f"CREATE INDEX IF NOT EXISTS {table}_due ON {table} {_DUE}"]


def set_table(table_set: int, shard: int) -> str:
    """Return the name of a table of a table set."""
    return f"log_set_{table_set}_{shard}"


def enter(connection: Connection, new: Generation) -> None:
    """Add a generation to the catalog of generations, inside the open transaction."""
    connection.execute(
        "INSERT INTO generations (id, parallelism, created_at_ms, size_bytes, bundle_id)"
        " VALUES (?, ?, ?, 0, ?)",
        (new.id, new.parallelism, new.created_at_ms, new.bundle_id),
    )


def strike(connection: Connection, old: Generation) -> None:
    """Delete a generation from the catalog of generations, inside the open transaction."""
    connection.execute("DELETE FROM generations WHERE id = ?", (old.id,))


def read_generations(connection: Connection, bundle_id: int | None = None) -> list[Generation]:
    """Return the generations in the catalog, oldest first, including those being dropped.

    Args:
      bundle_id: the bundle whose generations are read; None for those of all bundles.
    """
    rows = connection.execute(
        "SELECT g.id, g.parallelism, g.created_at_ms, g.size_bytes, COALESCE(s.id, 0), g.bundle_id"
        " FROM generations g LEFT JOIN table_sets s ON s.generation = g.id ORDER BY g.id"
    ).rows
    found = [Generation(*row) for row in rows]
    return [one for one in found if bundle_id is None or one.bundle_id == bundle_id]


def existing_tables(engine: Engine, connection: Connection) -> set[str]:
    """Return the names of all log tables in the database, whatever the catalog says."""
    return {name for name in tables(engine, connection) if _TABLE.fullmatch(name)}
