"""The table of mappings in the database of an application.

The mappings are in the application's database, not in the log. So they hold no address or password,
and a broker finds all outboxes of a database. An outbox keeps its identity when its mapping is
removed. If the table is mapped again, even in another way, the rows of its last batch are settled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from escapement.errors import InvalidRequest
from escapement.storage.engine.base import Connection
from escapement.storage.outbox.ack_table import CREATE_ACKS
from escapement.storage.outbox.mapping import OutboxMapping
from escapement.storage.outbox.shape import read_shape
from escapement.storage.outbox.statements import Statements, statements
from escapement.storage.outbox.tables import CREATE, IDENTITY, MAPPING

# The most outboxes of one database, with ``escapement_outbox``. Each has a connection and a thread.
MAX_OUTBOXES: Final = 64
# The statements that create all tables in the database of an application.
INSTALLED: Final = (*CREATE, CREATE_ACKS)
_EXISTS: Final = (
    "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"
    f" AND TABLE_NAME = '{MAPPING}'"
)


def install(connection: Connection) -> None:
    """Create the tables of ``INSTALLED`` that do not exist yet."""
    for statement in INSTALLED:
        connection.execute(statement)


def read_mappings(connection: Connection) -> dict[str, str]:
    """Return the mapping of each mapped table as JSON, by the name of the table."""
    if not connection.execute(_EXISTS).rows[0][0]:
        return {}
    rows = connection.execute(f"SELECT outbox, mapping FROM {MAPPING} ORDER BY outbox").rows
    return dict(rows)


def checked(connection: Connection, mapping: OutboxMapping) -> Statements:
    """Return the statements of a mapping.

    Raises:
      InvalidRequest: if the mapping does not fit its table.
    """
    return statements(mapping, read_shape(connection, mapping.table))


def add_mapping(connection: Connection, mapping: OutboxMapping) -> None:
    """Map a table, and give it an identity unless it has one from an earlier mapping.

    The table is noted under the name that the server has for it. Under two names it would have two
    outboxes, and each would settle only its own batches.

    Raises:
      InvalidRequest: if the table does not exist or has another mapping, or the database has too
        many.
    """
    mapping = replace(mapping, table=read_shape(connection, mapping.table).table)
    before = read_mappings(connection)
    new = mapping.to_json()
    if before.get(mapping.table, new) != new:
        raise InvalidRequest(
            f"table {mapping.table} has another mapping; use `escapement outbox remove` first"
        )
    if mapping.table not in before and len(before) + 1 >= MAX_OUTBOXES:
        raise InvalidRequest(f"a database may have at most {MAX_OUTBOXES - 1} mapped tables")
    connection.begin()
    connection.execute(
        f"INSERT IGNORE INTO {IDENTITY} (outbox, identity, log, batch)"
        " VALUES (?, UNHEX(REPLACE(UUID(), '-', '')), NULL, 0)",
        (mapping.table,),
    )
    connection.execute(
        f"INSERT IGNORE INTO {MAPPING} (outbox, mapping, added_at) VALUES (?, ?, UTC_TIMESTAMP(3))",
        (mapping.table, new),
    )
    connection.commit()


def remove_mapping(connection: Connection, table: str) -> None:
    """Remove the mapping of a table, after the batch in progress.

    Raises:
      InvalidRequest: if the table is not mapped.
    """
    if table not in read_mappings(connection):
        raise InvalidRequest(
            f"table {table} is not mapped; `escapement outbox list` shows which are"
        )
    connection.begin()
    connection.execute(f"SELECT batch FROM {IDENTITY} WHERE outbox = ? FOR UPDATE", (table,))
    connection.execute(f"DELETE FROM {MAPPING} WHERE outbox = ?", (table,))
    connection.commit()
