"""The SQLite engine: a database in one file of the data directory, or in memory for tests.

This module owns the file and the way it is opened. It knows no tables. Every commit is fsynced
(WAL, ``synchronous=FULL``) before ``commit`` returns. SQLite has one write lock, which ``begin``
takes at once (``BEGIN IMMEDIATE``), so a transaction that reads and then writes cannot deadlock.
For the same reason rows need no locks, and the row locks of the dialect are empty.

An in-memory database exists as long as its engine. SQLite's VFS ``memdb`` shares it between all
connections of this process that open it by name, and a connection that is never used, the *anchor*,
keeps it in existence. A reader of it waits until an open write transaction has ended, where a
reader of a file would see the state before that transaction. Otherwise it behaves like a file, and
passes the same contract suite.

A connection is closed only while no other thread is inside one of its methods. Closing it during a
call would crash the process, because SQLite frees memory that the other thread reads.

Errors: if the write lock is not free within the busy timeout, that is ``TransactionAborted``. A
full disk and I/O errors are ``StorageUnavailable``, because space or a disk may come back. During
COMMIT they are ``OutcomeUnknown``, because the state after a failed fsync is unknown. A file that
may not be written is ``StorageReadOnly``.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from escapement.errors import (
    OutcomeUnknown,
    StorageError,
    StorageReadOnly,
    StorageUnavailable,
    UnfitDatabase,
)
from escapement.storage.engine.base import (
    Dialect,
    DuplicateKey,
    Params,
    Result,
    Row,
    Step,
    TransactionAborted,
)
from escapement.storage.engine.result_buffer import Landing

FILE_NAME: Final = "log.sqlite3"
# How long a writer waits for the write lock. A longer wait means that another process is stuck.
BUSY_TIMEOUT_S: Final = 5
# With transactions of about 1 MB, this gives 1.7 times as many commits a second as the default of
# 4096 bytes.
PAGE_SIZE_BYTES: Final = 16384
# Copy the write-ahead log (WAL) into the database file every 32 MiB. The default would do so after
# every few transactions of 1 MB.
WAL_CHECKPOINT_PAGES: Final = 2048
# A WAL that has grown larger is cut to this size when SQLite begins to write it from the start.
WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
# A copy of the database reports its progress each time it has copied this many pages: 16 MiB.
_COPIED_PAGES: Final = 1024
# The first version with memdb, the VFS that shares an in-memory database between connections.
OLDEST_SQLITE: Final = (3, 36, 0)

DIALECT: Final = Dialect(
    id_column="id INTEGER PRIMARY KEY AUTOINCREMENT",
    share_lock="",
    update_lock="",
    blob="BLOB",
    name="TEXT",
    inner_index=False,
    table_end="",
    now_ms="CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    insert_ignore="INSERT OR IGNORE",
    may_be_silent="",
)

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, bytearray, memoryview})


class SqliteEngine:
    """One SQLite database: ``SqliteEngine(path)`` or ``SqliteEngine.in_memory()``."""

    kind: Final = "sqlite"
    is_shared: Final = False
    dialect: Final = DIALECT
    lock_wait_s: Final = BUSY_TIMEOUT_S
    max_lanes: Final = 1  # because SQLite has one write lock

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        self._uri = path.absolute().as_uri()
        self._anchor: sqlite3.Connection | None = None
        # Taken to open one connection at a time: switching a new file to WAL mode fails at once if
        # another connection has a lock, instead of waiting for it.
        self._opening = threading.Lock()

    @classmethod
    def in_memory(cls) -> SqliteEngine:
        """Create an engine with a new in-memory database, which ``close`` deletes."""
        engine = cls(Path("memory"))
        engine.location = "memory"
        engine._uri = f"file:/escapement-{uuid.uuid4().hex}?vfs=memdb"
        engine._anchor = engine._open()
        return engine

    def connect(self) -> SqliteConnection:
        return SqliteConnection(self._open(), self.location)

    def limited(self, silence_s: float) -> Self:
        return self  # the file is on this machine, and its locks end with the process

    def check_fitness(self) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            wanted = ".".join(map(str, OLDEST_SQLITE))
            raise UnfitDatabase(
                f"SQLite {sqlite3.sqlite_version} is too old; it must be {wanted} or newer"
            )
        with contextlib.closing(self.connect()) as connection:
            try:
                connection.begin()
            except StorageReadOnly as error:
                raise UnfitDatabase(f"{self.location} cannot be written: {error}") from error

    def copy_to(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Copy the present state of the database into an empty file; blocking.

        Other connections may read and write meanwhile. One read transaction covers the whole copy,
        for otherwise SQLite begins again whenever another connection writes. The write-ahead log
        grows until the copy ends. The copy is a single file without such a log.

        Args:
          progress: called after each step with the bytes that are copied, and with their total.

        Raises:
          StorageUnavailable: if a file cannot be read or written.
        """

        def tell(_: int, remaining: int, total: int) -> None:
            progress((total - remaining) * PAGE_SIZE_BYTES, total * PAGE_SIZE_BYTES)

        where = f"copying {self.location} to {target}"
        with contextlib.closing(self._open()) as raw, _in_our_words(where):
            raw.execute("BEGIN")
            raw.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            with contextlib.closing(sqlite3.connect(target)) as copy:
                raw.backup(copy, pages=_COPIED_PAGES, progress=tell)
                copy.execute("PRAGMA journal_mode = DELETE").fetchall()

    def kill(self, connection_ids: Sequence[int]) -> None:
        """Do nothing: the lock of the data directory lets one broker at a time use the file."""

    def close(self) -> None:
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None

    def _open(self) -> sqlite3.Connection:
        with self._opening, _in_our_words(self.location):
            raw = sqlite3.connect(
                self._uri,
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                raw.execute(f"PRAGMA page_size = {PAGE_SIZE_BYTES}")
                if raw.execute("PRAGMA page_count").fetchone() == (0,):
                    # This setting, which storage/cleanup/sqlite_vacuum.py needs, is possible only
                    # while the file is new.
                    raw.execute("PRAGMA auto_vacuum = INCREMENTAL")
                raw.execute("PRAGMA journal_mode = WAL").fetchall()
                raw.execute("PRAGMA synchronous = FULL")
                raw.execute(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}").fetchall()
                raw.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}").fetchall()
                raw.execute("PRAGMA foreign_keys = OFF")
            except BaseException:
                raw.close()
                raise
            return raw


class SqliteConnection:
    """A connection to a SQLite database."""

    id: Final = 0

    def __init__(self, raw: sqlite3.Connection, location: str) -> None:
        self._raw = raw
        self._location = location
        self._lost = False
        # Held during calls into SQLite, so that ``close`` in another thread waits for them.
        self._inside = threading.RLock()

    @property
    def ended(self) -> bool:
        return self._lost

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        _check_plain(params)
        with self._guarded():
            cursor = self._raw.execute(sql, params)
            if cursor.description is not None:
                return Result(cursor.fetchall(), 0, 0)
            return Result([], max(cursor.rowcount, 0), cursor.lastrowid or 0)

    def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        assert self._lost or self._raw.in_transaction, "execute_many outside a transaction"
        for params in rows:
            _check_plain(params)
        with self._guarded():
            return max(self._raw.executemany(sql, rows).rowcount, 0)

    def execute_all(self, steps: Sequence[Step]) -> list[Row]:
        assert self._lost or self._raw.in_transaction, "execute_all outside a transaction"
        found: list[Row] = []
        for sql, rows in steps:
            if sql.startswith("SELECT"):
                found += [row for params in rows for row in self.execute(sql, params).rows]
            else:
                self.execute_many(sql, rows)
        return found

    def begin(self) -> None:
        assert self._lost or not self._raw.in_transaction, "begin inside a transaction"
        with self._guarded():
            self._raw.execute("BEGIN IMMEDIATE")

    def snapshot(self) -> None:
        assert self._lost or not self._raw.in_transaction, "snapshot inside a transaction"
        with self._guarded():
            self._raw.execute("BEGIN")
            # The first read fixes the state that the transaction sees.
            self._raw.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()

    def commit(self) -> None:
        assert self._lost or self._raw.in_transaction, "commit without a transaction"
        lost_before = self._lost
        try:
            with self._guarded():
                self._raw.execute("COMMIT")
        except (StorageReadOnly, TransactionAborted):
            raise
        except StorageError as error:
            if lost_before:
                raise
            self.close()
            raise OutcomeUnknown(f"{self._location}: COMMIT failed: {error}") from error

    def rollback(self) -> None:
        with self._inside:
            if not self._lost and self._raw.in_transaction:
                try:
                    self._raw.execute("ROLLBACK")
                except sqlite3.Error:
                    self.close()

    def close(self) -> None:
        """Close the connection. If another thread is inside a call of it, wait for its end."""
        with self._inside:
            self._lost = True
            with contextlib.suppress(sqlite3.Error):
                self._raw.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Translate errors of SQLite in the ``with`` block into those that ``base.py`` lists.

        Rolls back or closes the connection, as ``base.py`` says for the error.
        """
        try:
            with self._inside, _in_our_words(self._location):
                yield
        except TransactionAborted:
            self.rollback()
            raise
        except StorageUnavailable as error:
            if not isinstance(error, StorageReadOnly):
                self.close()
            raise


def _check_plain(params: Iterable[Any]) -> None:
    # SQLite would silently store a numpy integer as the eight bytes of its buffer.
    assert all(type(p) in _PLAIN for p in params), "parameters must be plain Python values"


@contextlib.contextmanager
def _in_our_words(location: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(error, location) from error


def _translated(error: sqlite3.Error, location: str) -> StorageError:
    text = f"{location}: {error}"
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Errors of the sqlite3 module itself have no code. If the error is that the connection is
        # closed, the connection counts as lost.
        closed = isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error)
        return StorageUnavailable(text) if closed else StorageError(text)
    if code in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE):
        return DuplicateKey(text)
    kind = _BY_PRIMARY_CODE.get(code & 0xFF, StorageError)
    return kind(text)


_BY_PRIMARY_CODE: Final[dict[int, type[StorageError]]] = {
    sqlite3.SQLITE_READONLY: StorageReadOnly,
    sqlite3.SQLITE_BUSY: TransactionAborted,
    sqlite3.SQLITE_LOCKED: TransactionAborted,
    sqlite3.SQLITE_FULL: StorageUnavailable,
    sqlite3.SQLITE_IOERR: StorageUnavailable,
    sqlite3.SQLITE_CANTOPEN: StorageUnavailable,
    sqlite3.SQLITE_NOMEM: StorageUnavailable,
}
