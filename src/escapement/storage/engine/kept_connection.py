"""A database connection that is opened at its first use, and replaced when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from escapement.errors import StorageError, StorageUnavailable
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.transaction import transaction


class KeptConnection:
    """One connection to a database, for one thread at a time.

    Args:
      first: an open connection to use; None to open one at the first use.
      opened: called with each connection that is opened, before it is used.
    """

    def __init__(
        self,
        engine: Engine,
        first: Connection | None = None,
        opened: Callable[[Connection], None] | None = None,
    ) -> None:
        self._engine = engine
        self._connection = first
        self._opened = opened

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Provide the connection, opened if it is not open; blocking.

        A connection that the server has closed since the last use, for example in a restart, is
        replaced. If the ``with`` block raises an error, the connection is closed, and the next use
        opens another.
        """
        try:
            if self._connection is not None and self._connection.ended:
                self.close()
            if self._connection is None:
                self._connection = self._engine.connect()
                if self._opened is not None:
                    self._opened(self._connection)
            yield self._connection
        except BaseException:
            self.close()
            raise

    @contextmanager
    def statements(self) -> Iterator[Connection]:
        """Provide the connection for statements that leave nothing behind if one fails; blocking.

        If the database refuses a statement, the connection is kept. After any other error it is
        closed. The ``with`` block must end the transactions that it begins, in any case.
        """
        refusal: StorageError | None = None
        with self.use() as connection:
            try:
                yield connection
            except StorageError as error:
                if isinstance(error, StorageUnavailable):
                    raise
                refusal = error
        if refusal is not None:
            raise refusal

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Provide the connection in a transaction, which is committed at the end; blocking.

        If the database refuses a statement, the transaction is rolled back and the connection is
        kept. After any other error it is closed.
        """
        with self.statements() as connection, transaction(connection):
            yield connection

    def close(self) -> None:
        """Close the connection, if it is open. The next use opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
