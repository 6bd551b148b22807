"""The statements that select the due rows of a message table, and the indexes that they need.

The statement for the current edition reads the index ``(time_acked, priority, time_next DESC)`` in
its order, so a ``LIMIT`` ends it early. Among due rows of one priority it returns the newest first,
because that is the order of the index. A statement with the oldest first would sort all rows that
are not acknowledged.

A new row of the first edition has no ``time_next``: its ``time_scheduled`` counts. So this edition
has a second statement, for these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from escapement.storage.engine.base import Connection
from escapement.tables.columns import DEFAULT_PRIORITY, Edition
from escapement.tables.identifier import quoted

# The statements of each edition, with the name of the table as {table}. Parameters are the time in
# nanoseconds, and the most rows. Each row has id, priority, epoch and time_next.
_STATEMENTS: Final[Mapping[Edition, tuple[str, ...]]] = {
    "current": (
        f"SELECT id, COALESCE(priority, {DEFAULT_PRIORITY}), COALESCE(epoch, 0), time_next"
        " FROM {table} WHERE time_acked IS NULL AND time_next <= ?"
        " ORDER BY priority, time_next DESC LIMIT ?",
    ),
    "first": (
        f"SELECT id, {DEFAULT_PRIORITY}, COALESCE(epoch, 0), time_next"
        " FROM {table} WHERE time_acked IS NULL AND time_next <= ?"
        " ORDER BY time_next LIMIT ?",
        f"SELECT id, {DEFAULT_PRIORITY}, COALESCE(epoch, 0), time_scheduled"
        " FROM {table} WHERE time_acked IS NULL AND time_next IS NULL AND time_scheduled <= ?"
        " ORDER BY time_scheduled LIMIT ?",
    ),
}
# The definition of the index that serves all statements of an edition.
_INDEXES: Final[Mapping[Edition, str]] = {
    "current": "`poller_idx` (time_acked, priority, time_next DESC)",
    "first": "`next_idx` (time_next, epoch)",
}
# The place of ``possible_keys`` in a row of EXPLAIN, by the length of the row. The longer row is
# MySQL's, which has a column for partitions before it.
_POSSIBLE_KEYS: Final = {10: 4, 12: 5}
# The parameters with which the statements are explained: a time after all others, and some rows.
_EXPLAINED: Final = ((1 << 63) - 1, 1000)


def load_statements(table: str, edition: Edition) -> list[str]:
    """Return the statements that select the due rows of a table.

    Parameters of each are the time in nanoseconds since 1970, and the most rows. Each row has id,
    priority, epoch, and the time in nanoseconds for which the message is scheduled.
    """
    return [text.replace("{table}", quoted(table)) for text in _STATEMENTS[edition]]


def index_warning(connection: Connection, table: str, edition: Edition) -> str | None:
    """Return which index to add to a table whose due rows are found only by a scan; else None.

    Asks the database by EXPLAIN whether any index applies. Even if one does, a database may prefer
    a scan, while the table is small or nearly all of its rows are due. Such a scan needs no other
    index.

    Raises:
      StorageError: if the statements cannot be explained, for example for lack of a privilege.
    """
    for statement in load_statements(table, edition):
        rows = connection.execute(f"EXPLAIN FORMAT=TRADITIONAL {statement}", _EXPLAINED).rows
        if any(row[_POSSIBLE_KEYS[len(row)]] is None for row in rows):
            return (
                "Each look for due messages scans the whole table. ALTER TABLE"
                f" {quoted(table)} ADD INDEX {_INDEXES[edition]}."
            )
    return None
