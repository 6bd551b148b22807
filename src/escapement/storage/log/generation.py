"""A generation of the log: a set of tables that is created, filled and dropped as a whole.

A generation has ``parallelism`` tables with the names ``log_<generation>_<shard>``. The rows of a
topic are in the shard ``topic_id % parallelism``. New rows go into the newest generation, which
ends when it is large enough or the UTC day ends. A change of parallelism takes effect with the next
generation. This module owns the table ``generations``, the *catalog* of the generations, which has
a row for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from escapement.storage.engine.base import Connection, Engine

# A generation ends at this size. It is so large that readers have few generations to search, and so
# small that dropping one frees space in reasonable steps.
GENERATION_SIZE_BYTES: Final = 8 << 30
DAY_MS: Final = 86_400_000
_TABLE: Final = re.compile(r"log_[0-9]+_[0-9]+")

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
        PRIMARY KEY (topic_id, base_offset)
    ){table_end}
"""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of the log.

    In the database, ``size_bytes`` is as of the last checkpoint. In memory it is up to date.
    """

    id: int
    parallelism: int
    created_at_ms: int
    size_bytes: int

    def table(self, topic_id: int) -> str:
        return f"log_{self.id}_{topic_id % self.parallelism}"

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
    words = engine.dialect
    for table in new.tables:
        connection.execute(_CREATE.format(table=table, blob=words.blob, table_end=words.table_end))


def enter(connection: Connection, new: Generation) -> None:
    """Add a generation to the catalog of generations, inside the open transaction."""
    connection.execute(
        "INSERT INTO generations (id, parallelism, created_at_ms, size_bytes) VALUES (?, ?, ?, 0)",
        (new.id, new.parallelism, new.created_at_ms),
    )


def read_generations(connection: Connection) -> list[Generation]:
    """Return all generations in the catalog, oldest first, including those being dropped."""
    rows = connection.execute(
        "SELECT id, parallelism, created_at_ms, size_bytes FROM generations ORDER BY id"
    ).rows
    return [Generation(*row) for row in rows]


def existing_tables(engine: Engine, connection: Connection) -> set[str]:
    """Return the names of all log tables in the database, whatever the catalog says."""
    if engine.kind == "mysql":
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
    else:
        sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
    names = (str(name) for (name,) in connection.execute(sql).rows)
    return {name for name in names if _TABLE.fullmatch(name)}
