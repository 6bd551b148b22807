"""A connection that is made when it is first needed, and replaced after an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from escapement.storage.engine.base import Connection, Engine


class KeptConnection:
    """One connection to a database, for one thread at a time.

    Args:
      first: a connection that is already open; None to make one when it is needed.
    """

    def __init__(self, engine: Engine, first: Connection | None = None) -> None:
        self._engine = engine
        self._connection = first

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Provide the connection. Close it if the block raises any error. Blocking."""
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            yield self._connection
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. The next use makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
