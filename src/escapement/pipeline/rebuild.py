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

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from escapement.clock import Clock, SystemClock
from escapement.errors import EscapementError, InvalidRequest, NotFound
from escapement.pipeline.claims import claims_of
from escapement.pipeline.filling import Filling, Progress, ReadAhead
from escapement.storage import journal, lease
from escapement.storage.checkpoint import load_state
from escapement.storage.datadir import DataDirectory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.sqlite import FILE_NAME
from escapement.storage.index import IndexLimits
from escapement.storage.index.building import Building
from escapement.storage.journaltail import JournalTail
from escapement.storage.lease import Identity, Lease
from escapement.storage.log import Log
from escapement.storage.schema import require

# As long as a broker's; renewed when a third of it has gone.
_LEASE_MS: Final = 10_000
_RENEWAL_MS: Final = _LEASE_MS // 3
DEFAULT_MEMORY_BYTES: Final = 512 << 20

T = TypeVar("T")


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
    connection = engine.connect()
    try:
        require(connection)
        with _held(engine, identity, clock) as renew:
            building = Building(directory)
            try:
                state = load_state(connection)
                tail = JournalTail(list(journal.read(connection, 0)))
                log = Log.look(connection)
                claims = claims_of(state, tail, log, connection)
                with (
                    ReadAhead(engine, log) as ahead,
                    Filling(building, claims, clock.now_ms(), memory_bytes, renew.wait) as filling,
                ):
                    done = filling.done
                    done.log_bytes = sum(one.size_bytes for one in log.generations)
                    for rows in ahead.steps(connection, renew.wait):
                        for row in rows:
                            filling.take(row)
                        renew()
                        progress(done)
                    segments = filling.finish()
                building.name(
                    state.log_identity.hex(), state.journal_ends, segments, base=state.mark
                )
                building.merge(IndexLimits(), renew.during)
                renew.at_once()
            except BaseException:
                building.discard()
                raise
            building.take_place()
    finally:
        connection.close()
    return done


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

    def wait(self, work: Future[T]) -> T:
        """Renew it until that is done. Raises ``LeaseLost``, and whatever the work raised."""
        while True:
            try:
                return work.result(timeout=_RENEWAL_MS / 1000)
            except TimeoutError:
                if work.done():
                    raise
                self()

    def during(self, work: Callable[[], T]) -> T:
        """Renew it while that is done in a thread of its own."""
        with ThreadPoolExecutor(1) as pool:
            return self.wait(pool.submit(work))


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
