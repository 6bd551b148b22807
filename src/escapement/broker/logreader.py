"""Reads the log for those who want the past: ordered subscriptions and fills.

One database connection, used by one read at a time and made again after it was lost.
"""

from __future__ import annotations

from typing import NamedTuple

import trio

from escapement.message import Int64s, MessageBatch
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.log import Log


class LogPart(NamedTuple):
    """One row of the log: messages ``base_offset ... + len(batch)`` and their times."""

    base_offset: int
    due_ms: Int64s
    batch: MessageBatch
    accepted_at_ms: int

    @property
    def end_offset(self) -> int:
        """The offset after its last message."""
        return self.base_offset + len(self.batch)


class LogReader:
    """See the module's docstring."""

    def __init__(self, engine: Engine, log: Log, run: Run, connection: Connection) -> None:
        self._engine = engine
        self._log = log
        self._run = run
        self._connection: Connection | None = connection
        self._alone = trio.Lock()

    async def read(
        self, topic_id: int, from_offset: int, until_offset: int, max_bytes: int
    ) -> list[LogPart]:
        """The topic's rows that hold ``[from_offset, until_offset)``, the first at least.

        Args:
          until_offset: no more than what is known to be committed.
          max_bytes: how much to read beyond the first row.

        Raises:
          StorageUnavailable: when the database cannot be reached.
          LogDamaged: when a row fails its checksum.
        """
        async with self._alone:
            return await self._run(self._read, topic_id, from_offset, until_offset, max_bytes)

    def _read(
        self, topic_id: int, from_offset: int, until_offset: int, max_bytes: int
    ) -> list[LogPart]:
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            rows = self._log.read(self._connection, topic_id, from_offset, until_offset, max_bytes)
        except BaseException:
            self.close()
            raise
        return [
            LogPart(
                row.key.base_offset,
                row.content.due_ms,
                row.content.batch(),
                row.content.accepted_at_ms,
            )
            for row in rows
        ]

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
