"""What storage asks of a database: a few blocking calls, the same for every engine.

An *engine* knows how to reach one database; a *connection* is used by one thread at
a time and runs one transaction at a time. SQL is written once, with ``?`` for
parameters, in what MySQL 8, MariaDB 10.6+ and SQLite share; the few words in which
they differ stand in :class:`Dialect`. Double quotes quote names, a backslash is a
backslash, ``||`` joins strings, sums of integers are integers. Both engines pass one
contract suite, ``tests/integration/test_engine_contract.py``.

Where they differ and a caller must know it: MySQL ends the open transaction at every
CREATE, ALTER or DROP, so these stand outside of transactions; and a REPLACE that
replaced counts as two rows there.

Errors leave an engine in our words only:

- ``StorageUnavailable``  the connection is gone (or cannot be made) and the open
  transaction with it; nothing of it was committed. The connection is of no more use.
- ``OutcomeUnknown``      the connection was lost while ``commit`` waited for its reply.
- ``StorageReadOnly``     the server takes no writes now; nothing of the transaction was
  or will be committed; the connection stays usable after ``rollback``.
- ``TransactionAborted``  deadlock or lock timeout: the transaction was rolled back and
  may be tried again at once.
- ``DuplicateKey``        a row with this key exists; the transaction is still open.
- ``StorageError``        anything else.

A full disk is ``StorageUnavailable``: somebody will make room. What only our own
mistake explains (an array for a parameter, ``begin`` twice) is an ``AssertionError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from escapement.errors import StorageError
from escapement.storage.engine.landing import Landing

Row = tuple[Any, ...]
# Plain Python values only, never numpy's: None, int (signed, 64 bit), float, str, and
# bytes, bytearray or memoryview. Columns come back as the same, byte strings as bytes.
Params = Sequence[Any]


class TransactionAborted(StorageError):
    """Is raised when the database gave up a transaction that may be tried again."""

    code = "transaction_aborted"
    retryable = True


class DuplicateKey(StorageError):
    """Is raised when an INSERT meets a row with the same key."""

    code = "duplicate_key"


class Step(NamedTuple):
    """A statement, to be run once with each of these parameters."""

    sql: str
    rows: Sequence[Params]


class Result(NamedTuple):
    """What one statement gave: rows of a SELECT, rows touched, the id generated.

    An UPDATE touches the rows it found, changed or not.
    """

    rows: list[Row]
    affected: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words in which the databases differ, for use inside SQL text."""

    id_column: str  # "id <type> PRIMARY KEY, counted up by the database, never reused"
    # Each lock stands directly behind its SELECT and brings its own space.
    share_lock: str  # appended to a SELECT that locks its rows against change
    update_lock: str  # appended to a SELECT that locks its rows for this transaction
    blob: str  # type of a large byte string
    name: str  # type of a name of up to 255 characters, compared byte for byte
    table_end: str  # after the closing parenthesis of CREATE TABLE
    now_ms: str  # an expression: the database's own clock in integer milliseconds
    insert_ignore: str  # "INSERT" that leaves an existing row as it is, and counts 0


class Connection(Protocol):
    """One connection; blocking; for one thread at a time."""

    @property
    def id(self) -> int:
        """The server's id of this connection (what KILL takes); 0 where there is none."""
        ...

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        """Run one statement, inside the open transaction or by itself.

        Args:
          into: long byte strings may come back as views of it, good until it is cleared.
        """
        ...

    def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run an INSERT, UPDATE, REPLACE or DELETE for each row; returns rows touched.

        Only inside a transaction, in the order of ``rows``. After an error nobody knows
        which of the rows were done: roll back. Rows of an INSERT that ends with its
        ``VALUES (?, ...)`` are the fastest.
        """
        ...

    def execute_all(self, steps: Sequence[Step]) -> list[Row]:
        """Run these in their order, none waiting for the reply to the one before.

        Only inside a transaction. After an error nobody knows which of them were done, those
        behind the failing one among them: roll back.

        Returns:
          The rows that SELECTs among them gave, which must be few and small.
        """
        ...

    def begin(self) -> None:
        """Open a transaction that means to write."""
        ...

    def snapshot(self) -> None:
        """Open a transaction that only reads, all of it one state of the database.

        ``rollback`` ends it. A MySQL table that it has read cannot be altered or dropped
        meanwhile, so it is for what is read quickly.
        """
        ...

    def commit(self) -> None:
        """Make the transaction durable, or raise ``OutcomeUnknown``."""
        ...

    def rollback(self) -> None:
        """Give the transaction up; never raises. Without one open, nothing happens."""
        ...

    def close(self) -> None:
        """Give up transaction and connection; never raises."""
        ...


class Engine(Protocol):
    """One database, as its connections see it; safe to use from any thread."""

    @property
    def kind(self) -> str:
        """ "mysql" or "sqlite"."""
        ...

    @property
    def location(self) -> str:
        """Where it is, fit for a log line: never with a password."""
        ...

    @property
    def dialect(self) -> Dialect: ...

    @property
    def max_lanes(self) -> int:
        """How many transactions may usefully run side by side."""
        ...

    def connect(self) -> Connection:
        """A new connection, ready for use; creates the database where it is missing.

        A server's only if the engine was made to.
        """
        ...

    def check_fitness(self) -> None:
        """Raise ``UnfitDatabase`` (saying what and why) if it cannot keep our promises.

        A table or default that is not InnoDB, a read-only server, a packet limit below
        what we send, a version too old.
        """
        ...

    def kill(self, connection_ids: Sequence[int]) -> None:
        """End connections of an earlier owner to this database; gone ids are no error."""
        ...

    def close(self) -> None:
        """Give up what the engine itself holds; connections are closed by their users."""
        ...
