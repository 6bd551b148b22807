"""The names of the tables and views that a database has."""

from __future__ import annotations

from escapement.storage.engine.base import Connection, Engine


def tables(engine: Engine, connection: Connection) -> set[str]:
    """Return the names of all tables that this user may see."""
    return _names(engine, connection, "table")


def views(engine: Engine, connection: Connection) -> set[str]:
    """Return the names of all views that this user may see."""
    return _names(engine, connection, "view")


def _names(engine: Engine, connection: Connection, kind: str) -> set[str]:
    if engine.kind == "sqlite":
        sql = f"SELECT name FROM sqlite_master WHERE type = '{kind}'"
    else:
        types = {"table": "BASE TABLE", "view": "VIEW"}
        sql = (
            "SELECT CAST(table_name AS CHAR) FROM information_schema.tables"
            f" WHERE table_schema = DATABASE() AND table_type = '{types[kind]}'"
        )
    return {name for (name,) in connection.execute(sql).rows}
