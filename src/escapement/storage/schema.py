"""The database's schema, and the numbered migrations that create it.

Owns the tables ``schema_migrations`` and ``log_identity``, and the files
``migrations/NNNN_name.sql``. Each file is one text for all engines. Placeholders in it stand for
the words in which SQL dialects differ (``Dialect`` in storage/engine/base.py). Each applied
migration is recorded with a checksum of its statements, which does not cover comments. So a program
refuses a database that a newer program has changed, or a development version with other migrations
has created.

A broker migrates the database before it acquires the lease, so an older broker may still own the
database and write to it meanwhile. From the first release on, a migration never changes, and new
ones only add tables and columns. An added column has a default or may be NULL, because the older
broker inserts rows without it.

If two brokers start at once, the first takes a lock, and the second waits and then finds nothing to
do. On SQLite the lock is the write transaction around all changes. On MySQL it is a named lock,
because MySQL commits the transaction before each CREATE TABLE. A crash may leave a migration begun
but not recorded, so it must be possible to run every statement again. The statement ``ALTER TABLE t
ADD COLUMN c ...``, with one column in each statement, is skipped if the column exists.

A broker whose user may not create tables starts only on a schema that is up to date. `escapement
migrate` runs the same migrations with another user (storage/upgrade.py).

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

from escapement.errors import MissingRight, SchemaError, StorageError, StorageUnavailable
from escapement.failpoints import failpoint
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.existing import tables
from escapement.storage.engine.mysql.errors import lacks_right
from escapement.storage.engine.named_lock import named_lock
from escapement.storage.engine.transaction import transaction

# How long a broker waits while another broker migrates the database. After that its start fails.
# Migrating a large database may take a while.
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
    """A migration: its number, its name, and its SQL text with placeholders for all engines."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self._without_comments().encode()).hexdigest()

    def statements(self, words: dict[str, str]) -> list[str]:
        """Return the SQL statements of the migration for one engine, without comments.

        Args:
          words: the engine's word for each placeholder.
        """
        text = self._without_comments().format(**words)
        return [statement.strip() for statement in text.split(";") if statement.strip()]

    def _without_comments(self) -> str:
        lines = [line.strip() for line in self.text.splitlines()]
        return "\n".join(line for line in lines if line and not line.startswith("--"))


def migrations() -> list[Migration]:
    """Return the migrations that this program has, in the order of their numbers."""
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

    Args:
      known: the migrations to apply, in order; None for those of this program.

    Raises:
      SchemaError: if the database has more migrations than ``known``, or one of them differs.
        Nothing has changed then.
      MissingRight: if the user may not create or alter tables, and some are missing.
      StorageUnavailable: if another broker migrates for longer than ``LOCK_TIMEOUT_S``.
    """
    with closing(engine.connect()) as connection:
        if next(pending(engine, connection, known), None) is None:
            return  # a broker without the right to create tables gets here
        with locked(engine, connection):
            try:
                for statement in pending(engine, connection, known):
                    failpoint("migration")
                    connection.execute(statement)
            except StorageError as error:
                if not lacks_right(error):
                    raise
                raise MissingRight(
                    f"{error}. The tables of this database must be created or altered, and this"
                    " user may not do that. Run `escapement migrate --log URL` with a user that"
                    " may, and start the broker again"
                ) from error


def pending(
    engine: Engine, connection: Connection, known: list[Migration] | None = None
) -> Iterator[str]:
    """Yield the SQL statements that the database lacks. Run each one before the next.

    Raises:
      SchemaError: as :func:`migrate`, before the first statement.
    """
    known = migrations() if known is None else known
    words = asdict(engine.dialect)
    ignore, now_ms = engine.dialect.insert_ignore, engine.dialect.now_ms
    there, applied = tables(engine, connection), 0
    if "schema_migrations" in there:
        applied = _check_applied(connection, known)
    else:
        yield _RECORDS.format(**words)
    for migration in known[applied:]:
        for statement in migration.statements(words):
            if not _done_already(engine, connection, statement):
                yield statement
        yield (
            f"{ignore} INTO schema_migrations (version, name, checksum, applied_at_ms) VALUES"
            f" ({migration.version}, '{migration.name}', '{migration.checksum}', {now_ms})"
        )
    identity = "SELECT 1 FROM log_identity"
    if "log_identity" not in there or not connection.execute(identity).rows:
        random = secrets.token_hex(16)
        yield f"{ignore} INTO log_identity (id, identity) VALUES (1, X'{random}')"


def require(connection: Connection) -> None:
    """Raise ``SchemaError`` unless the database has exactly the migrations of this program."""
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
            " broker of this version on it, or run `escapement migrate`"
        )


def is_current(connection: Connection) -> bool:
    """Return whether the database has all migrations of this program, and not only some of them.

    Raises:
      SchemaError: if a newer program or another development version made the tables.
    """
    known = migrations()
    return _check_applied(connection, known) == len(known)


def log_identity(connection: Connection) -> bytes:
    """Return the random id that this database's log was given when its schema was created."""
    rows = connection.execute("SELECT identity FROM log_identity WHERE id = 1").rows
    if not rows:
        raise SchemaError("the database has no log identity: its schema is incomplete")
    return bytes(rows[0][0])


def _check_applied(connection: Connection, known: list[Migration]) -> int:
    """Return how many of the migrations ``known`` are applied.

    Raises:
      SchemaError: if the database has more migrations, or an applied one has another checksum.
    """
    rows = connection.execute(
        "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
    ).rows
    for (version, name, checksum), migration in zip(rows, known, strict=False):
        if (version, checksum) != (migration.version, migration.checksum):
            raise SchemaError(
                "a development version of escapement with another schema created this database:"
                f" its migration {version} ({name}) has checksum {checksum[:12]}, and that of this"
                f" program ({migration.name}) has {migration.checksum[:12]}. It cannot be migrated."
                " Use a new, empty database, or the version of the program that created this one"
            )
    if len(rows) > len(known):
        raise SchemaError(
            f"the database has schema {rows[-1][0]} ({rows[-1][1]}), this program knows up to "
            f"{len(known)}; use the newer version of the program that migrated it"
        )
    return len(rows)


def _done_already(engine: Engine, connection: Connection, statement: str) -> bool:
    """Return whether the statement adds a column that an interrupted migration added already.

    MySQL has no ADD COLUMN IF NOT EXISTS. On SQLite an interrupted migration is rolled back.
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
def locked(engine: Engine, connection: Connection) -> Iterator[None]:
    """Hold the lock of the schema until the ``with`` block ends.

    Raises:
      StorageUnavailable: if another program holds it for longer than ``LOCK_TIMEOUT_S``.
    """
    if engine.kind != "mysql":
        with transaction(connection):
            yield
        return
    with named_lock(connection, "", LOCK_TIMEOUT_S) as got:
        if not got:
            raise StorageUnavailable(
                f"{engine.location}: another program has been changing the schema for "
                f"{LOCK_TIMEOUT_S} seconds; try again when it is done"
            )
        yield
