"""The size of all log tables of a database: their rows, and the space that they take."""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

from escapement.storage.engine.base import Connection, Engine
from escapement.storage.log.generation import existing_tables

# MySQL 8 otherwise answers sizes that are up to a day old. MariaDB ignores the comment.
_NEWEST_SIZES: Final = (
    "SET /*!80000 SESSION information_schema_stats_expiry = 0, */ @escapement = 0"
)
_SIZES: Final = (
    "SELECT CAST(TABLE_NAME AS CHAR), TABLE_ROWS, DATA_LENGTH + INDEX_LENGTH"
    " FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"
)


class LogSize(NamedTuple):
    """The size of all log tables of a database, of all bundles.

    Attributes:
      rows: an estimate. A row has the messages of one topic in one group commit.
      disk_bytes: the space of the tables with their indexes; for SQLite that of the whole file.
    """

    rows: int
    disk_bytes: int


def read_log_size(engine: Engine) -> LogSize:
    """Read the size of the log in a connection of its own. Blocking, some milliseconds.

    Raises:
      StorageError: if the database does not answer.
    """
    with closing(engine.connect()) as connection:
        if engine.kind == "sqlite":
            return _in_sqlite(engine, connection)
        connection.execute(_NEWEST_SIZES)
        tables = existing_tables(engine, connection)
        found = [row for row in connection.execute(_SIZES).rows if row[0] in tables]
        return LogSize(
            sum(int(row[1] or 0) for row in found), sum(int(row[2] or 0) for row in found)
        )


def _in_sqlite(engine: Engine, connection: Connection) -> LogSize:
    """Read the size of the file, and the numbers of the first and the last row of each table."""
    connection.snapshot()
    try:
        rows = 0
        for table in existing_tables(engine, connection):
            ((last, first),) = connection.execute(
                f"SELECT (SELECT MAX(rowid) FROM {table}), (SELECT MIN(rowid) FROM {table})"
            ).rows
            rows += 0 if last is None else int(last) - int(first) + 1
        pages, page_bytes = (
            int(connection.execute(f"PRAGMA {name}").rows[0][0])
            for name in ("page_count", "page_size")
        )
    finally:
        connection.rollback()
    return LogSize(rows, pages * page_bytes)
