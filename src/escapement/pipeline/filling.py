"""An index filled from the log on one machine: read by several, sorted and written by one.

The log is read once, over some connections at a time. What is pending is gathered in memory; a
full table is sorted and written as a segment while the other one fills, and brought to disk while
the next is written. What takes time, reading, sorting, gathering and writing, does so without the
interpreter lock.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from escapement.message import MessageBatch
from escapement.pipeline.claims import TopicClaims
from escapement.pipeline.readahead import ReadAhead, Wait
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index.building import Building
from escapement.storage.index.bulk import BulkTable
from escapement.storage.index.writer import SegmentWriter, writing
from escapement.storage.log.log import Log
from escapement.storage.log.logtable import LogRow

# Log rows read at once: one or some row groups, each up to 8 MiB.
_STEP_BYTES: Final = 2 << 20
# Where they are received: with room for what the protocol adds to each.
_LANDING_BYTES: Final = _STEP_BYTES + (64 << 10)
# Connections that read, and steps that are read ahead of who takes them.
_READERS: Final = 16
_AHEAD: Final = 18
# So many segments are aimed at, where memory would allow fewer: memory that is used again costs
# less than new, and less is left to write when all is read. The broker keeps to a dozen.
_SHARES: Final = 11
# Smaller ones are not worth a segment.
_LEAST_SHARE_BYTES: Final = 32 << 20


@dataclass(slots=True)
class Progress:
    """How far the job has come."""

    messages: int = 0  # read
    pending: int = 0  # of them written to the index
    read_bytes: int = 0
    log_bytes: int = 0  # in all, as of the last checkpoint


def all_rows(
    engine: Engine, log: Log, connection: Connection, wait: Wait[list[LogRow]] = Future.result
) -> Generator[list[LogRow]]:
    """Every row of the log, some at a time, of no more use when the next are asked for.

    Args:
      connection: is asked which there are.
      wait: how to wait for what others read.
    """
    with ReadAhead(engine, _READERS, _AHEAD, _LANDING_BYTES) as ahead:
        for _, rows in ahead.steps(log, log.scan_keys(connection, _STEP_BYTES), wait):
            yield rows


class Filling:
    """Gathers what is pending and has it written; a context manager."""

    def __init__(
        self,
        building: Building,
        claims: Mapping[int, TopicClaims],
        now_ms: int,
        memory_bytes: int,
        wait: Wait[None],
        done: Progress,
    ) -> None:
        """``wait``: how to wait for what others do; ``done`` is kept up to date."""
        self.done = done
        self._building = building
        self._claims = claims
        self._now_ms = now_ms
        self._wait = wait
        self._written_bytes = 0
        self._filling, self._written = BulkTable(memory_bytes // 2), BulkTable(memory_bytes // 2)
        # One sorts and writes, one waits for the disk.
        self._pool = ThreadPoolExecutor(2)
        self._writing: Future[None] | None = None
        self._syncing: list[Future[None]] = []
        self._writers: list[SegmentWriter] = []

    def __enter__(self) -> Filling:
        return self

    def __exit__(self, failure: object, *exc_info: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if failure is not None:
            for writer in self._writers:
                writer.discard()

    def take(self, row: LogRow) -> None:
        """Take in what of a row is pending. Raises ``LogDamaged``, ``StorageError``."""
        topic_id = row.key.topic_id
        due_ms, offsets = row.content.due_ms, row.offsets
        self.done.messages += len(due_ms)
        self.done.read_bytes += row.key.size_bytes
        claims = self._claims.get(topic_id)
        if claims is None:
            return  # the topic was deleted, and its rows are being freed
        live = claims.live(due_ms, offsets, self._now_ms)
        batches = row.content.batches()
        if not live.all():
            at = np.flatnonzero(live)
            batches = [MessageBatch.concat(batches).take(at)]
            due_ms, offsets = due_ms[at], offsets[at]
        self.done.pending += len(due_ms)
        low = 0
        for batch in batches:
            rows = slice(low, low + len(batch))
            if self._is_full(batch):
                self._write()
            self._filling.add(topic_id, offsets[rows], due_ms[rows], batch)
            low += len(batch)

    def finish(self) -> list[Path]:
        """The segments, on disk."""
        self._write()
        self._end_writing()
        for synced in self._syncing:
            self._wait(synced)
        return [writer.path for writer in self._writers]

    def _is_full(self, batch: MessageBatch) -> bool:
        """Whether the table is to be written before it takes this."""
        used_bytes = self._filling.used_bytes
        if used_bytes >= _LEAST_SHARE_BYTES and len(self._writers) < _SHARES:
            # What all of the log will come to, if it goes on as it began.
            weight = (self._written_bytes + used_bytes) / self.done.read_bytes
            if used_bytes >= weight * self.done.log_bytes / _SHARES:
                return True
        return not self._filling.has_room(len(batch), batch.size_bytes)

    def _write(self) -> None:
        """Have what is gathered written; what was gathered before is written by then."""
        self._end_writing()
        if not self._filling.count:
            return
        table = self._filling
        self._written_bytes += table.used_bytes
        self._filling, self._written = self._written, table
        writer = self._building.new_segment()
        self._writers.append(writer)
        self._writing = self._pool.submit(_write, table, writer)
        self._syncing.append(self._pool.submit(_sync, self._writing, writer))

    def _end_writing(self) -> None:
        if self._writing is not None:
            self._wait(self._writing)
            self._writing = None
            self._written.clear()


def _write(table: BulkTable, writer: SegmentWriter) -> None:
    with writing(writer.path):
        table.write(writer)
        writer.finish()


def _sync(written: Future[None], writer: SegmentWriter) -> None:
    written.result()
    with writing(writer.path):
        writer.sync()
