"""The interface of a database engine: a few blocking calls, the same for every database.

An *engine* reaches one database. A *connection* is used by one thread at a time and runs
one transaction at a time. SQL is written once, with ``?`` for parameters, in the common
subset of MySQL 8, MariaDB 10.6+ and SQLite. :class:`Dialect` has the few words in which
they differ. Double quotes quote names, a backslash is a backslash, ``||`` joins strings,
sums of integers are integers. Both engines pass one contract suite,
``tests/integration/storage/test_engine_contract.py``.

Two differences matter to callers. MySQL commits the open transaction at every CREATE, ALTER
or DROP, so run these outside of transactions. And a REPLACE that replaces a row counts as
two rows there.

An engine raises only these errors:

- ``StorageUnavailable``  the connection is lost (or cannot be made) and the open transaction
  with it. Nothing of it was committed. The connection cannot be used again.
- ``OutcomeUnknown``      the connection was lost while ``commit`` waited for its reply.
- ``StorageReadOnly``     the server accepts no writes now. Nothing of the transaction was
  or will be committed. The connection stays usable after ``rollback``.
- ``TransactionAborted``  deadlock or lock timeout. The transaction was rolled back and may
  be retried at once.
- ``DuplicateKey``        a row with this key exists. The transaction is still open.
- ``StorageError``        any other error.

A full disk is ``StorageUnavailable``, because an operator can free space. Programming
mistakes (an array for a parameter, ``begin`` twice) are an ``AssertionError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from escapement.errors import StorageError
from escapement.storage.engine.result_buffer import Landing

Row = tuple[Any, ...]
# Plain Python values only, never numpy scalars: None, int (signed, 64 bit), float, str, and
# bytes, bytearray or memoryview. Columns return the same types, byte strings as bytes.
Params = Sequence[Any]


class TransactionAborted(StorageError):
    """Raised when the database rolled back a transaction that may be retried."""

    code = "transaction_aborted"
    retryable = True


class DuplicateKey(StorageError):
    """Raised when an INSERT meets a row with the same key."""

    code = "duplicate_key"


class Step(NamedTuple):
    """A statement to run once with each of these parameters."""

    sql: str
    rows: Sequence[Params]


class Result(NamedTuple):
    """The result of a statement: rows of a SELECT, rows affected, the generated id.

    ``affected`` of an UPDATE counts the rows it matched, changed or not.
    """

    rows: list[Row]
    affected: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words in which the databases differ, to be used inside SQL text."""

    id_column: str  # column definition: "id <type> PRIMARY KEY, ascending, never reused"
    # Each lock follows its SELECT directly, and begins with a space.
    share_lock: str  # appended to a SELECT that locks its rows against change
    update_lock: str  # appended to a SELECT that locks its rows for this transaction
    blob: str  # type of a large byte string
    name: str  # type of a name of up to 255 characters, compared byte for byte
    table_end: str  # after the closing parenthesis of CREATE TABLE
    now_ms: str  # expression for the database's clock in integer milliseconds
    insert_ignore: str  # "INSERT" that keeps an existing row unchanged, and counts 0


class Connection(Protocol):
    """A blocking connection, used by one thread at a time."""

    @property
    def id(self) -> int:
        """The server's id of this connection, for KILL; 0 if the engine has no such ids."""
        ...

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        """Run one statement, inside the open transaction or by itself.

        Args:
          into: memory for long byte strings. They may be returned as views of it, which
            clearing it invalidates.
        """
        ...

    def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run an INSERT, UPDATE, REPLACE or DELETE for each row; return the rows affected.

        Runs only inside a transaction, in the order of ``rows``. After an error it is unknown
        which rows were done: roll back. An INSERT that ends with its ``VALUES (?, ...)`` is
        the fastest.
        """
        ...

    def execute_all(self, steps: Sequence[Step]) -> list[Row]:
        """Run these in their order, without waiting for a reply before the next one.

        Runs only inside a transaction. After an error it is unknown which of them were done,
        even of those after the failed one: roll back.

        Returns:
          The rows of all SELECTs, which must be few and small.
        """
        ...

    def begin(self) -> None:
        """Open a transaction that writes."""
        ...

    def snapshot(self) -> None:
        """Open a transaction that only reads, and sees one state of the database.

        ``rollback`` ends it. Until then, a MySQL table that it has read cannot be altered or
        dropped, so use it for quick reads only.
        """
        ...

    def commit(self) -> None:
        """Make the transaction durable, or raise ``OutcomeUnknown``."""
        ...

    def rollback(self) -> None:
        """Roll back the open transaction, if any. Never raises."""
        ...

    def close(self) -> None:
        """Close the connection and roll back its transaction. Never raises."""
        ...


class Engine(Protocol):
    """One database. Safe to use from any thread."""

    @property
    def kind(self) -> str:
        """ "mysql" or "sqlite"."""
        ...

    @property
    def location(self) -> str:
        """Address for log lines, never with a password."""
        ...

    @property
    def dialect(self) -> Dialect: ...

    @property
    def max_lanes(self) -> int:
        """Number of transactions that may usefully run concurrently."""
        ...

    def connect(self) -> Connection:
        """Open a connection. Creates a database that is missing.

        On a server it does so only if the engine was created with that option.
        """
        ...

    def check_fitness(self) -> None:
        """Raise ``UnfitDatabase``, with the reason, if the database cannot keep our promises.

        Reasons are a table or default engine that is not InnoDB, a read-only server, a packet
        limit below the size of our statements, or a version that is too old.
        """
        ...

    def kill(self, connection_ids: Sequence[int]) -> None:
        """Close connections of an earlier owner to this database. Ignores unknown ids."""
        ...

    def close(self) -> None:
        """Release the engine's own resources. Users close their connections themselves."""
        ...
