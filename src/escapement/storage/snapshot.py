"""Snapshots of a log in SQLite: taken from a running broker, and restored for another one.

A *snapshot* is a copy of ``log.sqlite3`` at one moment, in a single file. Copying that file by hand
loses commits, because the last ones are in the file ``log.sqlite3-wal`` beside it, and SQLite moves
them while the copy is made.

A restored log is an earlier state of the same log. The original broker may have delivered messages
since then that the snapshot has as pending. So :func:`restore` marks the last owner of the lease as
one that did not stop cleanly, and the next broker marks such messages as redelivered. It also
releases the lease: the former owner cannot write to the new file. The index in the data directory
belongs to another state, so it is deleted.

Both functions write under a temporary name, check the file, and rename it. So the target never has
an incomplete file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from escapement.errors import AlreadyExists, LogDamaged, NotFound, StorageError
from escapement.storage import schema
from escapement.storage.bundles import MAX_BUNDLES, bundle_count
from escapement.storage.data_directory import DataDirectory
from escapement.storage.directory import sync_directory
from escapement.storage.engine.base import Connection
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.engine.transaction import transaction
from escapement.storage.index import DelayedIndex
from escapement.storage.journal import journal
from escapement.storage.log.log import Log
from escapement.storage.state.state import load_state

Progress = Callable[[str, int, int], None]

# The endings of the files that SQLite keeps beside a database while it is in use.
_BESIDE: Final = ("-wal", "-shm", "-journal")
# The size of the log rows that are checked at once.
_STEP_BYTES: Final = 4 << 20


def take(data: Path, target: Path, progress: Progress) -> int:
    """Copy the log of a data directory into a new file, and check the copy; blocking.

    A broker may run in the directory. Its commits do not wait for the copy.

    Args:
      progress: called repeatedly with the name of the step, and its bytes done and in total.

    Returns:
      The size of the snapshot in bytes.

    Raises:
      NotFound: if the directory has no log.
      AlreadyExists: if the target exists.
      SchemaError: if a newer program made the tables.
      LogDamaged, StorageError: if the log cannot be read, is damaged, or the copy not written.
    """
    source = data / FILE_NAME
    if not source.exists():
        raise NotFound(f"{data} has no log in SQLite: there is no file {source}")
    if target.exists():
        raise AlreadyExists(f"{target} exists. Give the snapshot a name of its own")
    with _new_file(target) as partial:
        SqliteEngine(source).copy_to(partial, lambda done, total: progress("copied", done, total))
        return _check(partial, progress)


def restore(snapshot: Path, data: Path, progress: Progress) -> int:
    """Copy a snapshot into a data directory without a log; blocking.

    Migrates the copy to the schema of this program, and deletes the index in the directory.

    Returns:
      The size of the log in bytes.

    Raises:
      NotFound: if the snapshot does not exist.
      AlreadyExists: if the directory has a log, or the snapshot is a database in use.
      DataDirectoryInUse: if a broker runs in the directory.
      SchemaError: if a newer program made the tables.
      LogDamaged, StorageError: if the snapshot is damaged or cannot be copied.
    """
    if not snapshot.is_file():
        raise NotFound(f"there is no snapshot {snapshot}")
    if there := _beside(snapshot):
        raise AlreadyExists(
            f"{snapshot} is a database that was in use, because {there[0]} exists. It may lack"
            " commits. Take a snapshot of it with `escapement backup`, and restore that"
        )
    target = data / FILE_NAME
    with DataDirectory.open(data) as directory:
        if there := [path for path in (target, *_beside(target)) if path.exists()]:
            raise AlreadyExists(
                f"{data} has a log: {there[0]}. Restore into an empty directory, or move all files"
                f" {FILE_NAME}* away first"
            )
        with _new_file(target) as partial:
            shutil.copyfile(snapshot, partial)
            with _in_words(partial):
                _adopt(SqliteEngine(partial))
            size_bytes = _check(partial, progress)
            for bundle_id in range(MAX_BUNDLES):
                if directory.index_of(bundle_id).is_dir():
                    DelayedIndex.discard(directory.index_of(bundle_id))
    return size_bytes


def _adopt(engine: SqliteEngine) -> None:
    """Make a log usable for another owner, with the schema of this program."""
    with closing(engine.connect()) as connection:
        schema.is_current(connection)  # raises unless it is a log; migrate would make one
    schema.migrate(engine)
    with closing(engine.connect()) as connection, transaction(connection):
        connection.execute("UPDATE leases SET expires_at_ms = 0, connection_ids = '', clean = 0")
        connection.execute("UPDATE brokers SET expires_at_ms = 0, connection_ids = ''")


def _beside(database: Path) -> list[Path]:
    """Return the files that SQLite has left beside a database, because it was not closed."""
    paths = [database.with_name(database.name + ending) for ending in _BESIDE]
    return [path for path in paths if path.exists()]


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """Create a file that gets the name ``target`` when the ``with`` block ends, durably.

    The block fills the file, to which only its owner has access. If the block fails, the file and
    those beside it are deleted.
    """
    partial = target.with_name(target.name + ".partial")
    try:
        for left in (partial, *_beside(partial)):
            left.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.rename(target)
            sync_directory(target.parent)
        finally:
            for left in (partial, *_beside(partial)):
                left.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}") from error


def _check(database: Path, progress: Progress) -> int:
    """Check a copy of a log, which nothing else uses, and return its size in bytes.

    Checks the structure of the file, and that state, journal and log rows can be decoded. Of tables
    of an older program, only the structure is checked.
    """
    total = database.stat().st_size
    progress("checked", 0, total)
    with _in_words(database), closing(SqliteEngine(database).connect()) as connection:
        found = connection.execute("PRAGMA integrity_check(1)").rows
        if found != [("ok",)]:
            raise LogDamaged(f"{database} is damaged: {found[0][0]}")
        if schema.is_current(connection):
            for bundle_id in range(bundle_count(connection)):
                load_state(connection, bundle_id)
                for _ in journal.read(connection, bundle_id):
                    pass
            _check_rows(connection, total, progress)
        connection.execute("PRAGMA journal_mode = DELETE")
    return total


def _check_rows(connection: Connection, total: int, progress: Progress) -> None:
    done = 0
    for rows in Log.look(connection).scan(connection, _STEP_BYTES):
        done += sum(row.key.size_bytes for row in rows)
        progress("checked", min(done, total), total)


@contextmanager
def _in_words(database: Path) -> Iterator[None]:
    """Report a file that is no log as such."""
    try:
        yield
    except StorageError as error:
        if type(error) is not StorageError:
            raise
        raise LogDamaged(f"{database} is damaged, or is no log: {error}") from error
