"""The job `rebuild`: the delayed index again, from the log and the cursors.

For a broker that has lost its disk, or for a new one: what its first start would do message by
message before it serves, done beforehand. The log is read once, and what is pending of it written
as segments of the broker's own format: by this process (pipeline/filling.py), or by the tasks of
Spark (pipeline/shuffle.py).

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
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from urllib.parse import urlsplit

from escapement.clock import Clock, SystemClock
from escapement.errors import EscapementError, InvalidRequest, NotFound
from escapement.pipeline.claims import TopicClaims, claims_of
from escapement.pipeline.filling import Filling, Progress, all_rows
from escapement.pipeline.options import LogAddress, Options
from escapement.pipeline.shown import Shown
from escapement.pipeline.shuffle import Counters, Work, Written
from escapement.pipeline.shuffle import fill as fill_by_tasks
from escapement.storage import lease
from escapement.storage.datadir import DataDirectory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.sqlite import FILE_NAME
from escapement.storage.index import IndexLimits
from escapement.storage.index.building import Building
from escapement.storage.journal import journal
from escapement.storage.journal.journaltail import JournalTail
from escapement.storage.lease import Identity, Lease
from escapement.storage.log.log import Log
from escapement.storage.schema import require
from escapement.storage.state import load_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As long as a broker's; renewed when a third of it has gone.
_LEASE_MS: Final = 10_000
_RENEWAL_MS: Final = _LEASE_MS // 3
# Between two looks at the lease, and at how far others have come.
_LOOK_S: Final = 0.5
# Rows whose keys are listed between two looks at the lease, together.
_STEP_BYTES: Final = 64 << 20
DEFAULT_MEMORY_BYTES: Final = 512 << 20

T = TypeVar("T")


def _untold(progress: Progress) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class RebuildConfig:
    """What the job is to do.

    Args:
      data: the data directory of the broker that is to have the index; made if missing.
      log_url: as `escapement serve --log`; without it, SQLite in ``data``. A password, or user,
        that it lacks is looked for in the environment, as by the other jobs.
      engine: where it is computed; None: here, unless the session's master is a cluster.
      memory_bytes: messages in memory; what is sorted as one segment is half of it. With Spark,
        of each task.
      progress: called some times a second, in the thread that runs the job. With Spark what it
        says is that of tasks which have ended.
      password_file: a file that has the password, instead of one in ``log_url``; with Spark on
        every machine.
    """

    data: Path
    log_url: str | None = None
    engine: Literal["local", "spark"] | None = None
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    progress: Callable[[Progress], None] = _untold
    password_file: str | None = None


def run(spark: SparkSession | None, config: RebuildConfig) -> Progress:
    """Rebuild the index of ``config.data``; blocking.

    Args:
      spark: the local engine needs none.

    Raises:
      InvalidRequest: for the Spark engine, if it cannot be used.
      DataDirectoryInUse: if a broker runs in the directory.
      LeaseHeld: if another broker is alive on this log.
      NotFound: if there is no log yet.
      LogDamaged, StorageError, StorageUnavailable: and the index is as it was.
    """
    _check_there(config)
    data = config.data.absolute()
    fill: Fill | None = None
    if _by_spark(spark, config):
        address = _address(config, data)
        fill = partial(_by_tasks, _session(spark, config), address, config.memory_bytes)
    with DataDirectory.open(data) as directory:
        engine = _engine(config, data)
        try:
            return rebuild(
                engine,
                Identity(directory.identity, "rebuild"),
                directory.index,
                SystemClock(),
                config.memory_bytes,
                config.progress,
                fill,
            )
        finally:
            engine.close()


def check_tasks(config: RebuildConfig) -> None:
    """Say what ``run`` would of a config for tasks, as far as that needs no session.

    Raises:
      InvalidRequest: tasks cannot be told where the log is.
      NotFound: if there is no log yet.
    """
    _check_there(config)
    _address(config, config.data.absolute()).engine().close()


def _check_there(config: RebuildConfig) -> None:
    if config.log_url is None and not (config.data / FILE_NAME).exists():
        raise NotFound(f"there is no log at {config.data / FILE_NAME}: say where it is (--log)")


@dataclass(slots=True, eq=False)
class Site:
    """What a job that has the lease works with."""

    engine: Engine
    connection: Connection
    log: Log
    claims: dict[int, TopicClaims]
    now_ms: int
    building: Building
    renewal: _Renewal
    done: Progress
    tell: Callable[[Progress], None]


Fill = Callable[[Site], list[Path]]  # the segments, on disk


def rebuild(
    engine: Engine,
    identity: Identity,
    directory: Path,
    clock: Clock,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Callable[[Progress], None] = _untold,
    fill: Fill | None = None,
) -> Progress:
    """Rebuild the index in ``directory`` for the broker ``identity``; blocking. As :func:`run`.

    Args:
      fill: how it is filled; None: here.
    """
    connection = engine.connect()
    try:
        require(connection)
        with _held(engine, identity, clock) as renewal:
            building = Building(directory)
            try:
                state = load_state(connection)
                tail = JournalTail(list(journal.read(connection, 0)))
                log = Log.look(connection)
                done = Progress(log_bytes=sum(one.size_bytes for one in log.generations))
                claims = claims_of(state, tail, log, connection)
                site = Site(
                    engine,
                    connection,
                    log,
                    claims,
                    clock.now_ms(),
                    building,
                    renewal,
                    done,
                    progress,
                )
                segments = (fill or partial(_by_itself, memory_bytes))(site)
                building.name(
                    state.log_identity.hex(), state.journal_ends, segments, base=state.mark
                )
                building.merge(IndexLimits(), renewal.during)
                renewal.at_once()
            except BaseException:
                building.discard()
                raise
            building.take_place()
    finally:
        connection.close()
    return done


def _by_itself(memory_bytes: int, site: Site) -> list[Path]:
    """Fill it in this process."""
    renewal = site.renewal
    with (
        closing(all_rows(site.engine, site.log, site.connection, renewal.wait)) as steps,
        Filling(
            site.building, site.claims, site.now_ms, memory_bytes, renewal.wait, site.done
        ) as filling,
    ):
        for rows in steps:
            for row in rows:
                filling.take(row)
            renewal()
            site.tell(site.done)
        return filling.finish()


def _by_tasks(
    spark: SparkSession, address: LogAddress, memory_bytes: int, site: Site
) -> list[Path]:
    """Have Spark's tasks fill it."""
    keys = []
    for step in site.log.scan_keys(site.connection, _STEP_BYTES):
        keys += step
        site.renewal()
    work = Work(address, Shown.mark_in(site.building.directory), site.now_ms, memory_bytes)
    group, counters, done = f"escapement rebuild {work.shown.mark}", Counters.of(spark), site.done

    def tasks() -> list[Written]:
        spark.sparkContext.setJobGroup(group, "escapement rebuild", interruptOnCancel=True)
        return fill_by_tasks(spark, work, site.claims, keys, counters)

    def tell() -> None:
        done.messages, done.read_bytes = counters.messages.value, counters.read_bytes.value
        done.pending = counters.written.value
        site.tell(done)

    written = site.renewal.during(
        tasks, lambda: spark.sparkContext.cancelJobGroup(group), meanwhile=tell
    )
    tell()
    done.messages = sum(key.message_count for key in keys)
    done.read_bytes = sum(key.size_bytes for key in keys)
    done.pending = sum(one.rows for one in written)
    return [site.building.directory / one.name for one in written]


def _by_spark(spark: SparkSession | None, config: RebuildConfig) -> bool:
    if config.engine is None:
        return spark is not None and not is_local(spark.sparkContext.master)
    return config.engine == "spark"


def _session(spark: SparkSession | None, config: RebuildConfig) -> SparkSession:
    if spark is None:
        raise InvalidRequest("the Spark engine needs a session of Spark: none was given")
    if config.log_url is None and not is_local(spark.sparkContext.master):
        raise InvalidRequest("a log on SQLite is read on its machine: use the local engine")
    return spark


def is_local(master: str) -> bool:
    """Whether this master of Spark is on one machine."""
    return master.split("[")[0] == "local"


def _address(config: RebuildConfig, data: Path) -> LogAddress:
    """Where tasks find the log. Raises ``InvalidRequest``."""
    options = {"url": config.log_url, "passwordFile": config.password_file}
    if config.log_url is None:
        options["data"] = str(data)
    return LogAddress.of(Options({name: said for name, said in options.items() if said}))


def _engine(config: RebuildConfig, data: Path) -> Engine:
    """The engine of this process, which unlike tasks may be told the password in the URL."""
    url = config.log_url
    if config.password_file is None and url is not None and urlsplit(url).password is not None:
        return open_engine(url, data)
    return _address(config, data).engine()


def _nothing() -> None:
    """There is nothing to be done."""


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

    def wait(self, work: Future[T], meanwhile: Callable[[], object] = _nothing) -> T:
        """Renew it until that is done. Raises ``LeaseLost``, and whatever the work raised."""
        while True:
            try:
                return work.result(timeout=_LOOK_S)
            except TimeoutError:
                if work.done():
                    raise
                self()
                meanwhile()

    def during(
        self,
        work: Callable[[], T],
        cancel: Callable[[], object] = _nothing,
        meanwhile: Callable[[], object] = _nothing,
    ) -> T:
        """Renew it while that is done in a thread of its own, which ``cancel`` ends early.

        Args:
          meanwhile: called some times a second, in this thread.
        """
        with ThreadPoolExecutor(1) as pool:
            try:
                return self.wait(pool.submit(work), meanwhile)
            except BaseException:
                cancel()
                raise


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
