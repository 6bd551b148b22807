"""The columns of a topic's messages as Spark sees them.

This module does not use Spark: types are given in Spark's SQL.
"""

from __future__ import annotations

from typing import Final

# The columns of messages, with their types. A read returns all of them, unless the user's schema
# names only some.
READ_COLUMNS: Final[dict[str, str]] = {
    "topic": "STRING",
    "offset": "BIGINT",
    "deliver_at": "TIMESTAMP",
    "published_at": "TIMESTAMP",
    "key": "BINARY",
    "properties": "MAP<STRING, STRING>",
    "priority": "SMALLINT",
    "attempt": "INT",
    "state": "STRING",
    "payload": "BINARY",
}
# Spark's type of a point in time. The name TIMESTAMP means this type or another one, depending on a
# setting of Spark.
INSTANT: Final = "TIMESTAMP_LTZ"
# Columns that may be null: a message may have no key, and its attempts may be unknown.
NULLABLE: Final = frozenset({"key", "attempt"})


def read_schema() -> str:
    """Return the schema of all columns, in SQL that means the same with all settings of Spark."""
    # The setting spark.sql.timestampType determines the meaning of TIMESTAMP.
    kinds = {name: kind.replace("TIMESTAMP", INSTANT) for name, kind in READ_COLUMNS.items()}
    # Spark need not check each row for null if a column is NOT NULL.
    never = {name: "" if name in NULLABLE else " NOT NULL" for name in kinds}
    return ", ".join(f"`{name}` {kind}{never[name]}" for name, kind in kinds.items())
