"""The purge of a message table: old acknowledged rows are deleted.

If the table is partitioned by range, whole partitions are dropped instead: each one whose rows are
all acknowledged and old enough, except the last, into which the application inserts. Dropping a
partition needs a lock of the table. Under the lock, the rows of the partition are checked again,
because an application may have inserted some meanwhile.

Otherwise, and if the user may not drop partitions, rows are deleted in small portions, by their
primary keys. A portion skips rows that other
sessions have locked, so it does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from escapement.errors import StorageError
from escapement.identifier import quoted
from escapement.storage.engine.base import Connection
from escapement.storage.engine.mysql.errors import may_not
from escapement.tables.discovery import MessageTable
from escapement.tables.priorities import WITHOUT_WAIT
from escapement.tables.row_ids import RowIds

# The most rows of one portion.
MOST_ROWS: Final = 1_000
# How long to wait for the lock of a table. Meanwhile statements of applications wait behind it.
_LOCK_WAIT_S: Final = 1

_PARTITIONS: Final = (
    "SELECT CAST(PARTITION_NAME AS CHAR) FROM information_schema.PARTITIONS WHERE"
    " TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? AND PARTITION_METHOD LIKE 'RANGE%'"
    " AND SUBPARTITION_NAME IS NULL ORDER BY PARTITION_ORDINAL_POSITION"
)


def to_purge(
    connection: Connection, tables: Sequence[tuple[MessageTable, int]]
) -> list[MessageTable]:
    """Return the tables that have rows to delete; blocking. One statement asks for all.

    Args:
      tables: each table, with the time before which its rows must have been acknowledged.
    """
    if not tables:
        return []
    branches = [
        f"(SELECT {number} FROM {quoted(table.name)} WHERE {_old(table)} {before_ns:d} LIMIT 1)"
        for number, (table, before_ns) in enumerate(tables)
    ]
    found = connection.execute(WITHOUT_WAIT + " UNION ALL ".join(branches)).rows
    return [tables[row[0]][0] for row in found]


def _old(table: MessageTable) -> str:
    """Return the condition for old rows, without the time at its end."""
    index = table.layout.due_index
    by_time = index is not None and index.columns[0].lower() == "time_next"
    # Acknowledged rows have no time_next, so an index that begins with it finds them.
    return f"{'time_next IS NULL AND ' if by_time else ''}time_acked <"


def purge(connection: Connection, table: MessageTable, before_ns: int) -> int:
    """Delete rows that were acknowledged before this time; blocking.

    Returns how many rows or partitions were deleted. Call again while it is not 0.

    Raises:
      StorageError: for example if the user has no right to delete rows.
    """
    if table.layout.is_partitioned:
        partitions = [row[0] for row in connection.execute(_PARTITIONS, (table.name,)).rows]
        if partitions:
            try:
                return sum(_drop(connection, table, name, before_ns) for name in partitions[:-1])
            except StorageError as error:
                if not may_not(error):
                    raise
    return _delete(connection, table, before_ns)


def _delete(connection: Connection, table: MessageTable, before_ns: int) -> int:
    name, ids = quoted(table.name), RowIds(table.layout.id)
    connection.begin()
    rows = connection.execute(
        f"SELECT {ids.selected} FROM {name} WHERE {_old(table)} ? LIMIT {MOST_ROWS}"
        " FOR UPDATE SKIP LOCKED",
        (before_ns,),
    ).rows
    # A DELETE of several rows may scan the table, and wait for rows that others have locked.
    delete = f"DELETE FROM {name} WHERE id = {ids.placeholder}"
    connection.execute_many(delete, [(ids.of(row[0]),) for row in rows])
    connection.commit()
    return len(rows)


def _drop(connection: Connection, table: MessageTable, partition: str, before_ns: int) -> bool:
    """Drop a partition if all of its rows may be deleted; return whether it was dropped."""
    if not _is_over(connection, table, partition, before_ns):
        return False
    name = quoted(table.name)
    connection.execute(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
    connection.execute(f"LOCK TABLES {name} WRITE")
    try:
        if not _is_over(connection, table, partition, before_ns):
            return False
        connection.execute(f"ALTER TABLE {name} DROP PARTITION {quoted(partition)}")
        return True
    finally:
        connection.execute("UNLOCK TABLES")


def _is_over(connection: Connection, table: MessageTable, partition: str, before_ns: int) -> bool:
    """Return whether a partition has rows, and all of them may be deleted."""
    source = f"{quoted(table.name)} PARTITION ({quoted(partition)})"
    # These are three statements, because under LOCK TABLES one cannot name the table twice.
    for condition in ("time_acked IS NULL", f"time_acked >= {before_ns:d}"):
        if connection.execute(f"SELECT 1 FROM {source} WHERE {condition} LIMIT 1").rows:
            return False
    return bool(connection.execute(f"SELECT 1 FROM {source} LIMIT 1").rows)
