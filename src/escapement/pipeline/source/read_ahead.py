"""Read-ahead of the log's rows, in order, over several connections.

A database reads the pages of a large row one after the other, although disks serve many requests
at once. And a consumer that fetches rows itself cannot compute meanwhile. So the read-ahead has
its own connections. They are opened when first needed, and each is used by one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow, RowKey

T = TypeVar("T")
Wait = Callable[[Future[T]], T]


class ReadAhead:
    """Fetches some steps before they are consumed; a context manager, for one thread."""

    def __init__(
        self, engine: Engine, readers: int, ahead: int, landing_bytes: int | None = None
    ) -> None:
        """
        Args:
          readers: the maximum of connections.
          ahead: the maximum of steps that are being fetched or not consumed yet.
          landing_bytes: the size of a reused buffer that receives a step; None for new memory.
        """
        self._engine = engine
        self._ahead = ahead
        self._landing_bytes = landing_bytes
        self._pool = ThreadPoolExecutor(readers)
        self._connections: list[Connection] = []
        self._idle: list[Connection] = []
        self._landings: list[Landing] = []

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()

    def steps(
        self,
        log: Log,
        keys: Iterator[list[RowKey]],
        wait: Wait[list[LogRow]] = Future.result,
    ) -> Iterator[tuple[list[RowKey], list[LogRow]]]:
        """Yield the keys of each step, and those of its rows that exist.

        With reused buffers, the rows are invalid after the next step.

        Raises:
          LogDamaged, StorageError, StorageUnavailable: if fetching the step raises it.
        """
        begun = deque(self._begin(log, step) for step in islice(keys, self._ahead))
        try:
            while begun:
                step, landing, reading = begun.popleft()
                rows = wait(reading)
                begun.extend(self._begin(log, step) for step in islice(keys, 1))
                yield step, rows
                if landing is not None:
                    landing.clear()
                    self._landings.append(landing)
        finally:
            for *_, reading in begun:
                reading.cancel()

    def _begin(
        self, log: Log, step: list[RowKey]
    ) -> tuple[list[RowKey], Landing | None, Future[list[LogRow]]]:
        landing = None
        if self._landing_bytes is not None:
            landing = self._landings.pop() if self._landings else Landing(self._landing_bytes)
        return step, landing, self._pool.submit(self._read, log, step, landing)

    def _read(self, log: Log, step: list[RowKey], landing: Landing | None) -> list[LogRow]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._engine.connect()
            self._connections.append(connection)
        rows = log.fetch_found(connection, step, landing)
        self._idle.append(connection)
        return rows
