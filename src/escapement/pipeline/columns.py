"""The columns of a topic's messages as Spark sees them.

No Spark in here: the types are words of its SQL.
"""

from __future__ import annotations

from typing import Final

# What a read gives, unless the user's schema asks for some of it only.
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
# A type of Spark's: an instant, whatever TIMESTAMP means.
INSTANT: Final = "TIMESTAMP_LTZ"
# Those that not every message has.
NULLABLE: Final = frozenset({"key", "attempt"})


def read_schema() -> str:
    """All of them, as the text of a schema, which says the same under any of Spark's settings."""
    # What TIMESTAMP means is one of them (spark.sql.timestampType).
    kinds = {name: kind.replace("TIMESTAMP", INSTANT) for name, kind in READ_COLUMNS.items()}
    # Of what may not be null Spark does not look, row by row, whether it is.
    never = {name: "" if name in NULLABLE else " NOT NULL" for name in kinds}
    return ", ".join(f"`{name}` {kind}{never[name]}" for name, kind in kinds.items())
