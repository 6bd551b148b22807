"""Database connections that many threads use in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from escapement.storage.engine.base import Connection, Engine

T = TypeVar("T")


class ConnectionPool:
    """Connections that are opened when all others are in use, and kept.

    So there are never more than calls at the same time, and the threads that make them bound the
    pool. The brokers of all bundles of a process share one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._idle: list[Connection] = []
        self._closed = False
        self._lock = threading.Lock()  # of the list and the flag

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Provide a connection; blocking. The ``with`` block must end its transactions.

        A connection that the server has closed since its last use is not given out. If the ``with``
        block raises an error, the connection is closed.
        """
        connection = self._pop()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._push(connection)

    def snapshot(self, read: Callable[[Connection], T]) -> T:
        """Return ``read(connection)``, whose reads see one state of the database. Blocking."""
        with self.use() as connection:
            connection.snapshot()
            value = read(connection)
            connection.rollback()
        return value

    def _pop(self) -> Connection:
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if not connection.ended:
                return connection
            connection.close()
        return self.engine.connect()

    def _push(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all connections, those in use after their use."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
