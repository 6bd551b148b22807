"""The rows of a database, saved and put back, as a backup and a restore would do."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from escapement.storage.engine.base import Connection, Engine, Row
from escapement.storage.engine.transaction import transaction

# Names of the tables, without SQLite's own.
_TABLES: Final = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
    "mysql": "SELECT table_name FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'",
}


def tables(engine: Engine, connection: Connection) -> list[str]:
    """Return the names of all tables of the database."""
    return [str(name) for (name,) in connection.execute(_TABLES[engine.kind]).rows]


def save(engine: Engine) -> dict[str, list[Row]]:
    """Return all rows of the database by table."""
    with closing(engine.connect()) as connection:
        found = tables(engine, connection)
        return {name: connection.execute(f"SELECT * FROM {name}").rows for name in found}


def put_back(engine: Engine, saved: dict[str, list[Row]]) -> None:
    """Make the tables have the saved rows again. Tables that are newer become empty."""
    with closing(engine.connect()) as connection, transaction(connection):
        for name in tables(engine, connection):
            connection.execute(f"DELETE FROM {name}")
            for row in saved.get(name, []):
                values = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {name} VALUES ({values})", tuple(row))
