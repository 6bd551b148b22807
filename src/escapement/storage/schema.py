"""The database's schema, and the numbered migrations that create it.

Owns ``schema_migrations`` and the files ``migrations/NNNN_name.sql``. Each file is one text for
all engines, with placeholders for the words of the :class:`Dialect`. Each applied migration is
recorded with a checksum of its text. So a migration that was altered after its release is
detected, and so is a database that a newer program has changed. The checksum covers comments, so
never edit them, even if a file that they name has moved.

If two brokers start at once, the first takes a lock, and the second waits and then finds nothing
to do. On SQLite the lock is the write transaction around all changes. MySQL commits before each
CREATE TABLE, so there it is a named lock. A crash may leave a migration begun but not recorded,
so it must be possible to run every statement again. ``ALTER TABLE t ADD COLUMN c ...``, with one
column in each statement, is skipped if the column exists.

The tables of the log are not part of the schema, because generations are created and deleted
(storage/log/log.py).
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import Final, NamedTuple

from escapement.errors import SchemaError, StorageError, StorageUnavailable
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.named_lock import named_lock
from escapement.storage.engine.transaction import transaction

# A migration of a large database may take a while. A broker that waits longer than this for
# another broker's migration fails rather than hangs.
LOCK_TIMEOUT_S: Final = 60

_RECORDS: Final = """
    CREATE TABLE IF NOT EXISTS schema_migrations (
        version BIGINT NOT NULL PRIMARY KEY,
        name {name} NOT NULL,
        checksum VARCHAR(64) NOT NULL,
        applied_at_ms BIGINT NOT NULL
    ){table_end}
"""
_ADDS_COLUMN: Final = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+)\b")


class Migration(NamedTuple):
    """A step of the schema: its number, its name and its text for all engines."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self, words: dict[str, str]) -> list[str]:
        """Return the statements, without comments, in one engine's dialect."""
        lines = [line for line in self.text.splitlines() if not line.lstrip().startswith("--")]
        text = "\n".join(lines).format(**words)
        return [statement.strip() for statement in text.split(";") if statement.strip()]


def migrations() -> list[Migration]:
    """Return the migrations that this program has, in order."""
    found = []
    for file in files("escapement.storage").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    found.sort()
    assert [m.version for m in found] == list(range(1, len(found) + 1)), "gaps in migrations"
    return found


def migrate(engine: Engine, known: list[Migration] | None = None) -> None:
    """Migrate the database to the newest schema. Quick if it is up to date.

    Raises:
      SchemaError: if the database is newer than ``known``, or a recorded migration differs from
        the one in ``known``.
    """
    known = migrations() if known is None else known
    words = asdict(engine.dialect)
    with closing(engine.connect()) as connection, _locked(engine, connection):
        connection.execute(_RECORDS.format(**words))
        applied = _check_applied(connection, known)
        for migration in known[applied:]:
            for statement in migration.statements(words):
                if not _done_already(engine, connection, statement):
                    connection.execute(statement)
            connection.execute(
                f"{engine.dialect.insert_ignore} INTO schema_migrations"
                " (version, name, checksum, applied_at_ms)"
                f" VALUES (?, ?, ?, {engine.dialect.now_ms})",
                (migration.version, migration.name, migration.checksum),
            )
        connection.execute(
            f"{engine.dialect.insert_ignore} INTO log_identity (id, identity) VALUES (1, ?)",
            (secrets.token_bytes(16),),
        )


def require(connection: Connection) -> None:
    """Raise ``SchemaError`` unless the schema is the newest that this program has."""
    known = migrations()
    try:
        applied = _check_applied(connection, known)
    except StorageError as error:
        if isinstance(error, SchemaError | StorageUnavailable):
            raise
        raise SchemaError(f"there is no log in this database: {error}") from error
    if applied < len(known):
        raise SchemaError(
            f"the database has schema {applied}, this program needs {len(known)}; start a"
            " broker of this version on it, which migrates it"
        )


def log_identity(connection: Connection) -> bytes:
    """Return the random id that this log was given when its schema was created."""
    rows = connection.execute("SELECT identity FROM log_identity WHERE id = 1").rows
    if not rows:
        raise SchemaError("the database has no log identity: its schema is incomplete")
    return bytes(rows[0][0])


def _check_applied(connection: Connection, known: list[Migration]) -> int:
    """Return how many of ``known`` are applied, after comparing each with its record."""
    rows = connection.execute(
        "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
    ).rows
    if len(rows) > len(known):
        raise SchemaError(
            f"the database has schema {rows[-1][0]} ({rows[-1][1]}), this program knows up to "
            f"{len(known)}; use the newer version of the program that migrated it"
        )
    for (version, name, checksum), migration in zip(rows, known, strict=False):
        if (version, checksum) != (migration.version, migration.checksum):
            raise SchemaError(
                f"migration {version} ({name}) was applied with checksum {checksum[:12]}, but this "
                f"program's has {migration.checksum[:12]}; use the version of the program that "
                "created the database"
            )
    return len(rows)


def _done_already(engine: Engine, connection: Connection, statement: str) -> bool:
    """Return whether a crash has left the column that this statement adds.

    Only MariaDB has ADD COLUMN IF NOT EXISTS. On SQLite a crash leaves no column.
    """
    added = _ADDS_COLUMN.match(statement)
    if added is None or engine.kind != "mysql":
        return False
    found = connection.execute(
        "SELECT 1 FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?",
        added.groups(),
    ).rows
    return bool(found)


@contextmanager
def _locked(engine: Engine, connection: Connection) -> Iterator[None]:
    if engine.kind != "mysql":
        with transaction(connection):
            yield
        return
    with named_lock(connection, "", LOCK_TIMEOUT_S) as got:
        if not got:
            raise StorageUnavailable(
                f"{engine.location}: another broker has been changing the schema for "
                f"{LOCK_TIMEOUT_S} seconds; try again when it is done"
            )
        yield
