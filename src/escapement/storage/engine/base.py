"""The interface of a database engine: a few blocking calls, the same for every database.

An *engine* gives access to one database. A *connection* is used by one thread at a time and runs
one transaction at a time. SQL is written once, with ``?`` for parameters, in the common subset of
MySQL 8, MariaDB 10.6+ and SQLite. :class:`Dialect` has the few words in which they differ. On each
of them, double quotes quote names, a backslash has no special meaning in a string, ``||`` joins
strings, and sums of integers are integers. Both engines pass one contract suite,
``tests/integration/storage/test_engine_contract.py``.

Two differences matter to callers. MySQL commits the open transaction at every CREATE, ALTER or
DROP, so run these outside of transactions. And a REPLACE that replaces a row counts as two affected
rows on MySQL.

An engine raises only these errors:

- ``StorageUnavailable``  the connection is lost or cannot be opened. The open transaction was not
  committed. The connection cannot be used again.
- ``OutcomeUnknown``      the connection was lost while ``commit`` waited for its reply, so the
  transaction may be committed or not.
- ``StorageReadOnly``     the server accepts no writes at the moment. The transaction was not
  committed. The connection can be used again after ``rollback``.
- ``TransactionAborted``  a deadlock or a lock timeout. The transaction was rolled back and may be
  retried at once.
- ``DuplicateKey``        a row with this key exists. The transaction is still open.
- ``StorageError``        any other error.

A full disk is ``StorageUnavailable``, because an operator can free space. Programming mistakes (an
array for a parameter, ``begin`` twice) are an ``AssertionError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from escapement.errors import StorageError, StorageUnavailable
from escapement.storage.engine.result_buffer import Landing

Row = tuple[Any, ...]
# Parameters are plain Python values, never numpy scalars: None, int (signed, 64 bit), float, str,
# and bytes, bytearray or memoryview. Rows of a SELECT have the same types, with bytes for all byte
# strings.
Params = Sequence[Any]


class NoConnectionLeft(StorageUnavailable):
    """Raised when the server runs, but refuses a connection because there are too many."""


class TransactionAborted(StorageError):
    """Raised when the database rolled back a transaction (deadlock, lock timeout). Retry it."""

    code = "transaction_aborted"
    retryable = True


class DuplicateKey(StorageError):
    """Raised when a row to insert has the same key as an existing row."""

    code = "duplicate_key"


class Step(NamedTuple):
    """A statement, and rows of parameters: the statement is to run once with each row."""

    sql: str
    rows: Sequence[Params]


class Result(NamedTuple):
    """The result of a statement."""

    rows: list[Row]  # the rows of a SELECT
    affected: int  # the number of rows written; for an UPDATE, the rows it matched
    last_id: int  # the id that an INSERT generated


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL fragments that differ between the databases, to be inserted into SQL text."""

    # The definition of the primary key "id", whose generated values ascend and are never reused.
    id_column: str
    # The two locks are appended to a SELECT without a space, because they begin with one.
    share_lock: str  # locks the selected rows against changes by others
    update_lock: str  # locks the selected rows for this transaction alone
    blob: str  # the type of a large byte string
    name: str  # the type of a name of up to 255 characters, compared byte for byte
    inner_index: bool  # whether CREATE TABLE may define an index of values that are not unique
    table_end: str  # what follows the closing parenthesis of CREATE TABLE
    now_ms: str  # an expression for the time of the database's clock in integer milliseconds
    insert_ignore: str  # an INSERT that leaves an existing row unchanged, and then affects 0 rows
    # A statement that ends the limit of ``Engine.limited`` for a connection; "" if there is none.
    may_be_silent: str


class Connection(Protocol):
    """A connection to a database, for one thread at a time. All methods block."""

    @property
    def id(self) -> int:
        """The server's id of this connection, for KILL; 0 if the engine has no such ids."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the connection is closed on our side or by the server.

        Ask only outside a transaction. Does not wait for the server.
        """
        ...

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        """Run one statement: in the open transaction, or as a transaction of its own.

        Args:
          into: memory for long byte strings of the result, which may be returned as views of it.
            Clearing it makes the views invalid.
        """
        ...

    def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run an INSERT, UPDATE, REPLACE or DELETE once with each row of parameters, in order.

        Call this only inside a transaction. After an error it is unknown for which rows the
        statement ran, so roll back. An INSERT that ends with ``VALUES (?, ...)`` is the fastest.

        Returns:
          The number of rows affected in the database.
        """
        ...

    def execute_all(self, steps: Sequence[Step]) -> list[Row]:
        """Run statements in order. Send each without waiting for the reply to the one before.

        Call this only inside a transaction. After an error it is unknown which statements ran,
        also among those after the failed one, so roll back.

        Returns:
          The rows of all SELECTs, which must be few and small.
        """
        ...

    def begin(self) -> None:
        """Open a transaction that may write."""
        ...

    def snapshot(self) -> None:
        """Open a transaction that only reads: all reads see one state of the database.

        ``rollback`` ends it. Until then, on MySQL, a table that it has read cannot be altered or
        dropped, so use it for quick reads only.
        """
        ...

    def commit(self) -> None:
        """Commit the transaction durably.

        Raises ``OutcomeUnknown`` if the connection is lost before the database has replied.
        """
        ...

    def rollback(self) -> None:
        """Roll back the open transaction, if any. Never raises."""
        ...

    def close(self) -> None:
        """Close the connection, and roll back its open transaction, if any. Never raises."""
        ...


class Engine(Protocol):
    """One database and the way to reach it. It may be used from any thread."""

    @property
    def kind(self) -> str:
        """The kind of database: "mysql" (also for MariaDB) or "sqlite"."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether brokers in several processes can use the database at the same time."""
        ...

    @property
    def location(self) -> str:
        """The address or path of the database for log lines, without the password."""
        ...

    @property
    def dialect(self) -> Dialect: ...

    @property
    def lock_wait_s(self) -> int:
        """How long a statement waits for a lock before it raises ``TransactionAborted``."""
        ...

    @property
    def max_lanes(self) -> int:
        """How many write transactions (of *lanes*) may usefully run at the same time."""
        ...

    def connect(self) -> Connection:
        """Open a connection, and create the database if it does not exist.

        A missing database on a MySQL server is created only if the engine was created with
        ``creates``.
        """
        ...

    def limited(self, silence_s: float) -> Engine:
        """Return the same database, whose server closes connections that are silent for long.

        A server keeps the locks of a transaction while it waits for the next statement. A process
        that was stopped, or whose machine is lost, would keep them for hours.

        Args:
          silence_s: how long the server waits for the next statement of a connection that has begun
            a transaction which may write, rounded up to seconds. Then it closes the connection, and
            rolls back the transaction.
        """
        ...

    def check_fitness(self) -> None:
        """Check that the database can be used, and keeps committed messages durably.

        Raises:
          UnfitDatabase: with the reason if it does not. Reasons are a version that is too old, a
            table or a default engine other than InnoDB, a packet limit below the size of our
            statements, or a SQLite file that cannot be written.
          StorageReadOnly: if a server accepts no writes at the moment.
        """
        ...

    def kill(self, connection_ids: Sequence[int]) -> None:
        """Close connections that an earlier broker left open to this database.

        Args:
          connection_ids: their ``Connection.id``. Ids that do not exist are ignored.
        """
        ...

    def close(self) -> None:
        """Release the engine's own resources. Users close their connections themselves."""
        ...
