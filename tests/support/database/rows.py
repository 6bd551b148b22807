"""The numbers of rows in the tables of a broker."""

from __future__ import annotations

from escapement.storage.engine.base import Engine

OF_THE_BROKER = {
    *(
        "schema_migrations",
        "log_identity",
        "leases",
        "brokers",
        "journal",
        "journal_trim",
        "generations",
    ),
    *("last_checkpoint", "created_views", "shared_numbers", "audit"),
    *("jobs", "sqlite_sequence"),  # a job leaves one row after its commit
}


def rows(engine: Engine) -> dict[str, int]:
    """Return the number of rows by table, without the tables in ``OF_THE_BROKER``."""
    listed = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
        "mysql": "SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'",
    }
    connection = engine.connect()
    try:
        tables = {str(name) for (name,) in connection.execute(listed[engine.kind]).rows}
        return {
            table: int(connection.execute(f"SELECT COUNT(*) FROM {table}").rows[0][0])
            for table in tables - OF_THE_BROKER
        }
    finally:
        connection.close()
