"""The local engine of the job ``rebuild``: builds a delayed index from the log on one machine.

The log is read once, in *steps* of some rows, over several connections at a time. Pending messages
are gathered in one of two tables in memory. Another thread sorts a full table and writes it as a
*segment*, a file of the index, while the other table fills. Reading, sorting, gathering and writing
release the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from escapement.message import MessageBatch
from escapement.pipeline.rebuilding.pending_messages import PendingByTopic, pending_of
from escapement.pipeline.source.read_ahead import ReadAhead, Wait
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index.building import Building
from escapement.storage.index.merging.bulk import BulkTable
from escapement.storage.index.segments.writer import whole_segment
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow

# The size of the log rows of a step.
_STEP_BYTES: Final = 2 << 20
# The size of the buffer that receives a step. The database's protocol adds some bytes to each row.
_LANDING_BYTES: Final = _STEP_BYTES + (64 << 10)
# The number of connections that read, and the number of steps that they read ahead.
_READERS: Final = 16
_AHEAD: Final = 18
# The target number of segments if memory would allow fewer and larger ones. More segments reuse the
# memory of the tables more often, which costs less than new memory from the system. They also leave
# less to write after all rows are read. A broker keeps about a dozen segments.
_SHARES: Final = 11
# A table below this size is not written just to reach the target number of segments.
_LEAST_SHARE_BYTES: Final = 32 << 20


@dataclass(slots=True)
class Progress:
    """The progress of the job ``rebuild``."""

    messages: int = 0  # messages read from the log
    pending: int = 0  # pending messages, which were added to the index
    read_bytes: int = 0  # the size of the log rows read
    log_bytes: int = 0  # the size of the whole log, as of the last checkpoint

    def plus(self, part: Progress) -> Progress:
        """Add the progress of another bundle, whose log is in ``log_bytes`` already."""
        return Progress(
            self.messages + part.messages,
            self.pending + part.pending,
            self.read_bytes + part.read_bytes,
            self.log_bytes,
        )


def all_rows(
    engine: Engine, log: Log, connection: Connection, wait: Wait[list[LogRow]] = Future.result
) -> Generator[list[LogRow]]:
    """Yield all rows of the log in steps. The rows of a step are invalid after the next step.

    Args:
      connection: used to list the keys of the rows.
      wait: waits for a step that another thread reads, and returns its rows.
    """
    with ReadAhead(engine, _READERS, _AHEAD, _LANDING_BYTES) as ahead:
        for _, rows in ahead.steps(log, log.scan_keys(connection, _STEP_BYTES), wait):
            yield rows


class Filling:
    """Gathers the pending messages of log rows and writes them as segments; a context manager."""

    def __init__(
        self,
        building: Building,
        pending_by_topic: PendingByTopic,
        now_ms: int,
        memory_bytes: int,
        wait: Wait[None],
        done: Progress,
    ) -> None:
        """Create two empty tables.

        Args:
          building: the index under construction.
          pending_by_topic: the data that determines which messages the index must have.
          memory_bytes: the size of both tables together.
          wait: waits for the work of another thread.
          done: the progress, which this object keeps up to date.
        """
        self.done = done
        self._building = building
        self._pending_by_topic = pending_by_topic
        self._now_ms = now_ms
        self._wait = wait
        self._written_bytes = 0
        self._filling, self._written = BulkTable(memory_bytes // 2), BulkTable(memory_bytes // 2)
        self._pool = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self._segments: list[Path] = []

    def __enter__(self) -> Filling:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, row: LogRow) -> None:
        """Add the pending messages of a log row. Raises ``LogDamaged``, ``StorageError``."""
        self.done.messages += row.key.message_count
        self.done.read_bytes += row.key.size_bytes
        due_ms, offsets, batches = pending_of(row, self._pending_by_topic, self._now_ms)
        self.done.pending += len(due_ms)
        low = 0
        for batch in batches:
            rows = slice(low, low + len(batch))
            if self._is_full(batch):
                self._write()
            self._filling.add(row.key.topic_id, offsets[rows], due_ms[rows], batch)
            low += len(batch)

    def finish(self) -> list[Path]:
        """Write the last messages. Return the paths of all segments, which are durable."""
        self._write()
        self._end_writing()
        return self._segments

    def _is_full(self, batch: MessageBatch) -> bool:
        """Return whether the current table must be written before a batch is added to a table."""
        used_bytes = self._filling.used_bytes
        if used_bytes >= _LEAST_SHARE_BYTES and len(self._segments) < _SHARES:
            # Extrapolate the size of the whole index from the part of the log that was read.
            weight = (self._written_bytes + used_bytes) / self.done.read_bytes
            if used_bytes >= weight * self.done.log_bytes / _SHARES:
                return True
        return not self._filling.has_room(len(batch), batch.size_bytes)

    def _write(self) -> None:
        """Start to write the current table as a segment, and make the other table the current one.

        Waits first until the other table is written.
        """
        self._end_writing()
        if not self._filling.count:
            return
        table = self._filling
        self._written_bytes += table.used_bytes
        self._filling, self._written = self._written, table
        path = self._building.new_segment()
        self._segments.append(path)
        self._writing = self._pool.submit(_write, table, path)

    def _end_writing(self) -> None:
        if self._writing is not None:
            self._wait(self._writing)
            self._writing = None
            self._written.clear()


def _write(table: BulkTable, path: Path) -> None:
    with whole_segment(path) as writer:
        table.write(writer)
