"""Migrations of the schema, and schemas that are refused."""

from __future__ import annotations

import threading

import pytest

from escapement.errors import SchemaError
from escapement.storage import schema
from escapement.storage.engine.base import Engine
from support.database.rows import rows


def query(engine: Engine, sql: str) -> list[tuple[object, ...]]:
    connection = engine.connect()
    try:
        return connection.execute(sql).rows
    finally:
        connection.close()


def test_migrating_again_changes_nothing(engine: Engine) -> None:
    schema.migrate(engine)
    before = query(engine, "SELECT * FROM schema_migrations")
    identity = query(engine, "SELECT identity FROM log_identity")
    schema.migrate(engine)
    assert query(engine, "SELECT * FROM schema_migrations") == before
    assert query(engine, "SELECT identity FROM log_identity") == identity
    assert query(engine, "SELECT bundle_id, epoch FROM leases") == [(0, 0)]


def test_brokers_that_start_together_migrate_once(engine: Engine) -> None:
    start = threading.Barrier(4)
    failures: list[BaseException] = []

    def broker() -> None:
        start.wait()
        try:
            schema.migrate(engine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=broker) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(query(engine, "SELECT version FROM schema_migrations")) == len(schema.migrations())
    assert len(query(engine, "SELECT identity FROM log_identity")) == 1


def test_a_migration_that_crashed_half_way_is_run_again(engine: Engine) -> None:
    """On MySQL each statement commits separately. SQLite rolls the whole migration back."""
    broken = schema.Migration(2, "broken", "CREATE TABLE IF NOT EXISTS a (x BIGINT); NONSENSE")
    mended = schema.Migration(2, "mended", "CREATE TABLE IF NOT EXISTS a (x BIGINT)")
    known = schema.migrations()[:1]
    with pytest.raises(Exception, match="NONSENSE"):
        schema.migrate(engine, [*known, broken])
    schema.migrate(engine, [*known, mended])
    assert query(engine, "SELECT * FROM a") == []
    assert query(engine, "SELECT version, name FROM schema_migrations ORDER BY version")[-1] == (
        2,
        "mended",
    )


def test_a_column_that_a_crash_left_behind_is_not_added_twice(engine: Engine) -> None:
    """MySQL does not have ADD COLUMN IF NOT EXISTS, and each ALTER commits separately."""
    add = "ALTER TABLE namespaces ADD COLUMN extra BIGINT NOT NULL DEFAULT 7;"
    known = schema.migrations()[:2]
    with pytest.raises(Exception, match="NONSENSE"):
        schema.migrate(engine, [*known, schema.Migration(3, "broken", f"{add} NONSENSE")])
    schema.migrate(engine, [*known, schema.Migration(3, "mended", add)])
    assert query(engine, "SELECT extra FROM namespaces") == []


def test_a_newer_schema_is_refused(engine: Engine) -> None:
    newer = schema.Migration(2, "later", "CREATE TABLE IF NOT EXISTS later (x BIGINT)")
    known = schema.migrations()[:1]
    schema.migrate(engine, [*known, newer])
    with pytest.raises(SchemaError, match=r"has schema 2 \(later\), this program knows up to 1"):
        schema.migrate(engine, known)


def test_an_altered_migration_is_refused(engine: Engine) -> None:
    schema.migrate(engine)
    first, *rest = schema.migrations()
    altered = first._replace(text=first.text + "\nSELECT 1;")
    with pytest.raises(SchemaError, match="new, empty database"):
        schema.migrate(engine, [altered, *rest])


@pytest.mark.parametrize("more", [-2, 0, 7])
def test_database_of_another_development_version_is_refused_and_unchanged(
    engine: Engine, more: int
) -> None:
    """It may have fewer or more migrations than this program. The error tells what to do."""
    known = schema.migrations()
    first = known[0]._replace(text=f"{known[0].text} CREATE TABLE IF NOT EXISTS old (x BIGINT);")
    other = [
        schema.Migration(number, "old", f"CREATE TABLE IF NOT EXISTS old_{number} (x BIGINT)")
        for number in range(2, len(known) + more + 1)
    ]
    schema.migrate(engine, [first, *other])
    tables, applied = rows(engine), query(engine, "SELECT * FROM schema_migrations")
    with pytest.raises(SchemaError, match=r"migration 1 .* Use a new, empty database"):
        schema.migrate(engine)
    connection = engine.connect()
    with pytest.raises(SchemaError, match=r"migration 1 .* Use a new, empty database"):
        schema.require(connection)
    connection.close()
    assert (rows(engine), query(engine, "SELECT * FROM schema_migrations")) == (tables, applied)


def test_the_log_identity_is_random(engine: Engine) -> None:
    schema.migrate(engine)
    connection = engine.connect()
    identity = schema.log_identity(connection)
    connection.execute("DELETE FROM log_identity")
    with pytest.raises(SchemaError):
        schema.log_identity(connection)
    connection.close()
    schema.migrate(engine)
    connection = engine.connect()
    assert len(identity) == 16
    assert schema.log_identity(connection) != identity
    connection.close()
