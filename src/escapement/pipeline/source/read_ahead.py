"""Read-ahead of the log's rows, in order, over several connections.

A database reads the pages of a large row one after the other, although disks serve many requests at
once. And code that fetches rows itself cannot compute meanwhile. So the read-ahead fetches rows in
its own threads, over its own connections. A *step* is a list of rows that are fetched together.
Connections are opened when first needed, and each is used by one thread at a time.

Only jobs use it. The broker reads ahead from the index, in the order of delivery
(broker/delivery/stager.py), and from the inbox, behind the commits of earlier steps
(broker/inbox/inbox_relay.py).
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
# A function that waits for a future and returns its result.
Wait = Callable[[Future[T]], T]


class ReadAhead:
    """Fetches the rows of some steps ahead of their use; a context manager, for one thread."""

    def __init__(
        self, engine: Engine, readers: int, ahead: int, landing_bytes: int | None = None
    ) -> None:
        """Prepare the threads. They connect when they fetch the first rows.

        Args:
          readers: the maximum number of connections.
          ahead: the maximum number of steps that are being fetched, or wait until they are used.
          landing_bytes: the size of the buffers that receive a step each and are reused; None to
            receive each step in new memory.
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
        """Yield for each step its keys, and those of its rows that exist.

        With reused buffers, the rows become invalid when the next step is requested.

        Args:
          keys: the keys of the rows of each step.
          wait: waits for a step that another thread fetches, and returns its rows.

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
