"""The size of the log tables, for the figures of a broker: read when asked, once a minute at most.

A server may take long to answer, and figures are also asked during an outage. So a task reads the
size, and a request waits for it for a moment only.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

from escapement.clock import Clock
from escapement.errors import EscapementError
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Engine
from escapement.storage.log.log_size import LogSize, read_log_size

# How long a reading counts.
_GOOD_FOR_MS: Final = 60_000
# How long a request waits for a reading.
_WAIT_S: Final = 0.5


class LogSizeWatch:
    """The task that reads the size of the log tables.

    Attributes:
      last: the last reading; None before the first one, and without one.
    """

    def __init__(self, engine: Engine, clock: Clock, run: Run) -> None:
        self.last: LogSize | None = None
        self._engine = engine
        self._clock = clock
        self._run = run
        self._due_ms = clock.lease_ms()  # when the last reading is too old
        self._wanted = trio.Event()
        self._read = trio.Event()

    async def freshen(self) -> None:
        """Have the size read if ``last`` is a minute old. Return after a moment in any case."""
        if self._clock.lease_ms() < self._due_ms:
            return
        if not self._wanted.is_set():
            self._read = trio.Event()
            self._wanted.set()
        with trio.move_on_after(_WAIT_S):
            await self._read.wait()

    async def run(self) -> None:
        """Read the size whenever it is wanted, until cancelled. If that fails, ``last`` stands."""
        while True:
            await self._wanted.wait()
            with suppress(EscapementError):
                self.last = await self._run(read_log_size, self._engine)
            self._due_ms = self._clock.lease_ms() + _GOOD_FOR_MS
            self._wanted = trio.Event()
            self._read.set()
