"""Database connections that many threads use in turn."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from escapement.storage.engine.base import Connection, Engine

T = TypeVar("T")

# How long a connection stays open without being used, at most. The end of another use closes it.
KEPT_S: Final = 60.0


class ConnectionPool:
    """Connections that are opened when all others are in use, and kept while they are needed.

    So there are never more than calls at the same time, and the threads that make them bound the
    pool. The brokers of all bundles of a process share one.

    Args:
      kept_s: how long a connection stays open without being used.
      clock_s: returns a monotonic time in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        kept_s: float = KEPT_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self._kept_s = kept_s
        self._clock_s = clock_s
        # Each with the end of its last use. The last one is used first, so the first is idle
        # longest.
        self._idle: deque[tuple[Connection, float]] = deque()
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
                connection, _ = self._idle.pop()
            if not connection.ended:
                return connection
            connection.close()
        return self.engine.connect()

    def _push(self, connection: Connection) -> None:
        now_s = self._clock_s()
        with self._lock:
            self._idle.append((connection, now_s))
            dropped = self._take_unused(math.inf if self._closed else now_s - self._kept_s)
        for one in dropped:
            one.close()

    def _take_unused(self, since_s: float) -> list[Connection]:
        """Take the connections out of the pool that have not been used since this time."""
        taken: list[Connection] = []
        while self._idle and self._idle[0][1] <= since_s:
            taken.append(self._idle.popleft()[0])
        return taken

    def close(self) -> None:
        """Close all connections, those in use after their use."""
        with self._lock:
            self._closed = True
            dropped = self._take_unused(math.inf)
        for one in dropped:
            one.close()
