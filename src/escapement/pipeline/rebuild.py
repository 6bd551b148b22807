"""The job `rebuild`: the delayed index again, from the log and the cursors.

For a broker that has lost its disk, or for a new one: what its first start would do message by
message before it serves, done beforehand. The log is read once, what is pending of it is
sorted in memory, and written as segments of the broker's own format while reading goes on.

**One writer.** The job holds the lock of the data directory and the lease of the log, so no
broker writes to either meanwhile: what it read stays true, and the manifest may stand for
everything up to the journal's end. A broker that is alive on this log is not disturbed: the job
is refused. Afterwards the directory's own broker has the lease at once.

**All or nothing.** It is built beside the index, under a name that no broker looks at, and takes
the index's place by one rename when it is complete and on disk. A manifest stands for all
topics, so all are rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Final, Literal, TypeVar

import numpy as np

from escapement.clock import Clock, SystemClock
from escapement.errors import EscapementError, InvalidRequest, NotFound
from escapement.pipeline.claims import TopicClaims, claims_of
from escapement.storage import journal, lease
from escapement.storage.checkpoint import load_state
from escapement.storage.datadir import DataDirectory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.sqlite import FILE_NAME
from escapement.storage.index import Checkpoint, DelayedIndex, IndexLimits
from escapement.storage.index.manifest import Position
from escapement.storage.index.writer import sync_directory
from escapement.storage.journaltail import JournalTail
from escapement.storage.lease import Identity, Lease
from escapement.storage.log import Log
from escapement.storage.logtable import LogRow
from escapement.storage.schema import require

# Log rows read at once: some row groups, each up to 8 MiB.
_STEP_BYTES: Final = 8 << 20
# As long as a broker's; renewed when a third of it has gone.
_LEASE_MS: Final = 10_000
_RENEWAL_MS: Final = _LEASE_MS // 3
# Added to the name of the index's directory while it is built.
_BUILDING: Final = ".rebuilding"
DEFAULT_MEMORY_BYTES: Final = 512 << 20

T = TypeVar("T")


@dataclass(slots=True)
class Progress:
    """How far the job has come."""

    messages: int = 0  # read
    pending: int = 0  # of them written to the index
    read_bytes: int = 0
    log_bytes: int = 0  # in all, as of the last checkpoint


def _untold(progress: Progress) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class RebuildConfig:
    """What the job is to do.

    Args:
      data: the data directory of the broker that is to have the index; made if missing.
      log_url: as `escapement serve --log`; without it, SQLite in ``data``.
      engine: where it is computed.
      memory_bytes: messages in memory; what is sorted as one segment is half of it.
      progress: called some times a second, in the thread that runs the job.
    """

    data: Path
    log_url: str | None = None
    engine: Literal["local", "spark"] = "local"
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    progress: Callable[[Progress], None] = _untold


def run(spark: object | None, config: RebuildConfig) -> Progress:
    """Rebuild the index of ``config.data``; blocking.

    Args:
      spark: as every job takes it; the local engine needs none.

    Raises:
      InvalidRequest: for the Spark engine, which this job does not have.
      DataDirectoryInUse: if a broker runs in the directory.
      LeaseHeld: if another broker is alive on this log.
      NotFound: if there is no log yet.
      LogDamaged, StorageError, StorageUnavailable: and the index is as it was.
    """
    if config.engine != "local":
        raise InvalidRequest(
            "rebuild runs on one machine: it has no Spark engine yet; use the engine local"
        )
    if config.log_url is None and not (config.data / FILE_NAME).exists():
        raise NotFound(f"there is no log at {config.data / FILE_NAME}: say where it is (--log)")
    with DataDirectory.open(config.data) as directory:
        engine = open_engine(config.log_url, config.data)
        try:
            return rebuild(
                engine,
                Identity(directory.identity, "rebuild"),
                directory.index,
                SystemClock(),
                config.memory_bytes,
                config.progress,
            )
        finally:
            engine.close()


def rebuild(
    engine: Engine,
    identity: Identity,
    directory: Path,
    clock: Clock,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Callable[[Progress], None] = _untold,
) -> Progress:
    """Rebuild the index in ``directory`` for the broker ``identity``; blocking. As :func:`run`."""
    building = directory.with_name(directory.name + _BUILDING)
    connection = engine.connect()
    try:
        require(connection)
        with _held(engine, identity, clock) as renew:
            rmtree(building, ignore_errors=True)
            try:
                index = DelayedIndex.open(building, IndexLimits(memory_bytes))
                now_ms = clock.now_ms()
                # One reads ahead, the other writes.
                with ThreadPoolExecutor(2) as pool:
                    done = _Filling(connection, index, pool, now_ms, renew, progress).run()
                renew.at_once()
            except BaseException:
                rmtree(building, ignore_errors=True)
                raise
            _replace(directory, building)
    finally:
        connection.close()
    return done


def _replace(directory: Path, building: Path) -> None:
    """Let what was built be the index. Interrupted, there is none, or the new one."""
    if directory.exists():
        DelayedIndex.discard(directory)
        sync_directory(directory)
        directory.rmdir()
    building.rename(directory)
    sync_directory(directory.parent)


class _Renewal:
    """Keeps the lease while the job runs."""

    def __init__(self, engine: Engine, connection: Connection, held: Lease, clock: Clock) -> None:
        self.held = held
        self._engine = engine
        self._connection = connection
        self._clock = clock

    def __call__(self) -> None:
        """Renew it if it is time to. Raises ``LeaseLost``."""
        left_ms = self.held.deadline_ms - self._clock.lease_ms()
        if left_ms < _LEASE_MS - _RENEWAL_MS:
            self.at_once()

    def at_once(self) -> None:
        """Renew it, which proves that nobody else has written. Raises ``LeaseLost``."""
        self.held = lease.renew(self._engine, self._connection, self.held, self._clock)


@contextmanager
def _held(engine: Engine, identity: Identity, clock: Clock) -> Iterator[_Renewal]:
    """The lease is held in the block; what is known of the owner before goes on to the next."""
    held = lease.acquire(engine, identity, _LEASE_MS, clock)
    # Of its own, because the log is read meanwhile.
    connection = engine.connect()
    try:
        renewal = _Renewal(engine, connection, held, clock)
        try:
            yield renewal
        finally:
            doubtful_until_ms = held.delivered_until_ms(clock.now_ms())
            # What cannot be given up ends by itself.
            with suppress(EscapementError):
                lease.release(
                    engine, connection, held, clean=True, doubtful_until_ms=doubtful_until_ms
                )
    finally:
        connection.close()


class _Filling:
    """Reads the log once; what is pending goes into the index, and from there to disk."""

    def __init__(
        self,
        connection: Connection,
        index: DelayedIndex,
        pool: ThreadPoolExecutor,
        now_ms: int,
        renew: Callable[[], None],
        progress: Callable[[Progress], None],
    ) -> None:
        self._connection = connection
        self._index = index
        self._pool = pool
        self._now_ms = now_ms
        self._renew = renew
        self._tell = progress
        self._log = Log.look(connection)
        self._done = Progress(log_bytes=sum(one.size_bytes for one in self._log.generations))
        self._claims: dict[int, TopicClaims] = {}
        self._log_identity = ""
        self._writing: tuple[Checkpoint, Future[None]] | None = None

    def run(self) -> Progress:
        try:
            return self._run()
        except BaseException:
            if self._writing is not None:
                checkpoint, written = self._writing
                futures.wait([written])
                self._index.abandon(checkpoint)
            raise

    def _run(self) -> Progress:
        state = load_state(self._connection)
        tail = JournalTail(list(journal.read(self._connection, 0)))
        self._log_identity = state.log_identity.hex()
        self._claims = claims_of(state, tail, self._log, self._connection)
        for rows in self._steps():
            for row in rows:
                self._take(row)
                if self._index.needs_checkpoint:
                    self._write({})
            self._renew()
            self._tell(self._done)
        self._write(state.journal_ends)
        self._end_writing()
        return self._done

    def _steps(self) -> Iterator[list[LogRow]]:
        """The log's rows, some at a time; the next are read while these are taken in."""
        steps = self._log.scan(self._connection, _STEP_BYTES)
        ahead = self._pool.submit(next, steps, None)
        while (rows := self._wait(ahead)) is not None:
            ahead = self._pool.submit(next, steps, None)
            yield rows

    def _take(self, row: LogRow) -> None:
        topic_id, base_offset = row.key.topic_id, row.key.base_offset
        due_ms, offsets = row.content.due_ms, row.offsets
        self._done.messages += len(due_ms)
        self._done.read_bytes += row.key.size_bytes
        claims = self._claims.get(topic_id)
        if claims is None:
            return  # the topic was deleted, and its rows are being freed
        at = np.flatnonzero(claims.live(due_ms, offsets, self._now_ms))
        self._done.pending += len(at)
        if len(at) == len(due_ms) and row.content.offsets is None:
            self._index.add(topic_id, base_offset, due_ms, row.content.batch())
        elif len(at):
            batch = row.content.batch().take(at)
            self._index.add_again(topic_id, offsets[at], due_ms[at], batch)

    def _write(self, positions: Mapping[int, Position]) -> None:
        """Have memory written while reading goes on; the segment before is on disk by then."""
        self._end_writing()
        checkpoint = self._index.begin_checkpoint()

        def write() -> None:
            for group in checkpoint.groups():
                checkpoint.write(group, [None] * len(group.parts()))
            checkpoint.finish(self._log_identity, positions)

        self._writing = checkpoint, self._pool.submit(write)

    def _end_writing(self) -> None:
        if self._writing is None:
            return
        checkpoint, written = self._writing
        self._wait(written)
        self._index.install(checkpoint)
        self._writing = None
        while self._index.segment_count > self._index.limits.max_segments:
            # A broker would make its publishers wait until such a number is merged.
            compaction = self._index.begin_compaction(self._index.choose_compaction())
            self._wait(self._pool.submit(compaction.run))
            compaction.finish()
            self._index.install_compaction(compaction)

    def _wait(self, work: Future[T]) -> T:
        while True:
            try:
                return work.result(timeout=_RENEWAL_MS / 1000)
            except TimeoutError:
                if work.done():
                    raise
                self._renew()
