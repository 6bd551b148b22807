"""The job ``rebuild``: rebuilds a broker's delayed index from the log and the cursors.

The *delayed index* has the pending messages on the broker's local disk, sorted by due time. It
consists of *segments*, which are immutable files, and a *manifest*, which names the segments and
the part of the database's journal that they cover. The job is for a broker that has lost its disk,
or for a new broker, which would otherwise build the index message by message before it serves. The
job reads the log once and writes the pending messages as segments. It does so in this process (the
local engine, pipeline/rebuilding/filling.py) or in Spark's tasks (the Spark engine,
pipeline/rebuilding/shuffle.py).

**One writer.** The job holds the lock of the data directory and the *lease*, which is the right to
write to the log. So no broker writes to either meanwhile, the data read stays valid, and the
manifest may cover the journal up to its end. If a broker is alive on this log, the job is refused
and the broker is not disturbed. After the job, a broker in the directory gets the lease at once.

**All or nothing.** The new index is built beside the old one, under a name that brokers ignore.
When it is complete and on disk, one rename replaces the old index. A manifest covers all topics of
a *bundle*, so all topics are rebuilt, one bundle after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from escapement.clock import Clock, SystemClock
from escapement.errors import InvalidRequest, NotFound
from escapement.pipeline.directories.shared_directory import SharedDirectory
from escapement.pipeline.options import LogAddress, Options
from escapement.pipeline.rebuilding.filling import Filling, Progress, all_rows
from escapement.pipeline.rebuilding.held_lease import Renewal, held_lease
from escapement.pipeline.rebuilding.pending_messages import PendingByTopic, pending_messages_of
from escapement.pipeline.rebuilding.shuffle import Counters, Work, Written
from escapement.pipeline.rebuilding.shuffle import fill as fill_by_tasks
from escapement.storage.bundles import bundle_count
from escapement.storage.data_directory import DataDirectory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.sqlite import FILE_NAME
from escapement.storage.index import IndexLimits
from escapement.storage.index.building import Building
from escapement.storage.journal import journal
from escapement.storage.journal.tail import JournalTail
from escapement.storage.lease import Identity
from escapement.storage.log.log import Log
from escapement.storage.schema import require
from escapement.storage.state.state import load_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The size of the rows whose keys are listed between two checks of the lease.
_STEP_BYTES: Final = 64 << 20
DEFAULT_MEMORY_BYTES: Final = 512 << 20


def _nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class RebuildConfig:
    """The configuration of the job ``rebuild``.

    Args:
      data: the data directory of the broker that is to use the index; created if missing.
      log_url: the URL of the log, as for `escapement serve --log`; None for SQLite in ``data``. A
        missing user or password is read from the environment, as for the other jobs.
      engine: ``local`` to compute the index in this process, ``spark`` to do so in Spark's tasks.
        None means ``spark`` if the master of the Spark session is a cluster, else ``local``.
      memory_bytes: the memory for messages until they are written; with Spark, that of each task.
        The local engine fills one half while it writes the other half as a segment.
      progress: called repeatedly with the progress, in the thread that runs the job. With Spark,
        the progress covers finished tasks only.
      password_file: a file with the password, instead of a password in ``log_url``. With Spark, it
        must exist on every machine.
    """

    data: Path
    log_url: str | None = None
    engine: Literal["local", "spark"] | None = None
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    progress: Callable[[Progress], None] = _nothing
    password_file: str | None = None


def run(spark: SparkSession | None, config: RebuildConfig) -> Progress:
    """Rebuild the index in ``config.data``, and return the final progress; blocking.

    Args:
      spark: a Spark session; None for the local engine, which does not need one.

    Raises:
      InvalidRequest: if the configuration is not valid, or the Spark engine cannot be used.
      DataDirectoryInUse: if a broker runs in the directory.
      LeaseHeld: if another broker is alive on this log.
      LeaseLost: if the job could not renew the lease and another broker took it. The old index is
        unchanged.
      NotFound: if the log does not exist.
      LogDamaged, StorageError, StorageUnavailable: if the log cannot be read or the index cannot be
        written. The old index is unchanged.
    """
    _check_there(config)
    data = config.data.absolute()
    fill: Fill | None = None
    if _by_spark(spark, config):
        address = _address(config, data)
        fill = partial(_by_tasks, _session(spark, config), address, config.memory_bytes)
    with DataDirectory.open(data) as directory, closing(_engine(config, data)) as engine:
        identity = Identity(directory.identity, "rebuild", directory.place)
        with closing(engine.connect()) as connection:
            require(connection)
            bundles = range(bundle_count(connection))
        settings = (SystemClock(), config.memory_bytes, config.progress, fill)
        return rebuild_all(engine, identity, directory.index_of, bundles, *settings)


def check_tasks(config: RebuildConfig) -> None:
    """Check a configuration for the Spark engine, as far as possible without a Spark session.

    Raises:
      InvalidRequest: if the address of the log is missing or invalid, or contains a password.
      NotFound: if the log does not exist.
    """
    _check_there(config)
    _address(config, config.data.absolute()).engine().close()


def _check_there(config: RebuildConfig) -> None:
    if config.log_url is None and not (config.data / FILE_NAME).exists():
        raise NotFound(
            f"there is no log at {config.data / FILE_NAME}: give the URL of the log (--log)"
        )


@dataclass(slots=True, eq=False)
class Site:
    """The objects that a function needs to fill the new index of a bundle, under its lease."""

    engine: Engine
    connection: Connection
    bundle_id: int
    log: Log
    now_ms: int
    building: Building  # the new index, under construction
    renewal: Renewal
    done: Progress  # the progress, which the function keeps up to date
    tell: Callable[[Progress], None]  # called with ``done`` to show the progress
    # Determines which messages the index must have.
    pending_by_topic: PendingByTopic = field(default_factory=dict)


# A function that writes the segments of the new index. It returns the paths of the durable files.
Fill = Callable[[Site], list[Path]]


def rebuild(
    engine: Engine,
    identity: Identity,
    directory: Path,
    clock: Clock,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Callable[[Progress], None] = _nothing,
    fill: Fill | None = None,
) -> Progress:
    """Rebuild the index of bundle 0 in ``directory``; see ``rebuild_all``."""
    settings = (clock, memory_bytes, progress, fill)
    return rebuild_all(engine, identity, lambda bundle_id: directory, (0,), *settings)


def rebuild_all(
    engine: Engine,
    identity: Identity,
    index_of: Callable[[int], Path],
    bundles: Iterable[int],
    clock: Clock,
    memory_bytes: int,
    progress: Callable[[Progress], None],
    fill: Fill | None,
) -> Progress:
    """Rebuild the indexes of bundles, holding their leases as ``identity``; blocking.

    Raises the errors of :func:`run`. The indexes that were rebuilt before stay.

    Args:
      index_of: returns the directory of the index of a bundle.
      fill: writes the segments of an index; None to do so in this process.
    """
    with closing(engine.connect()) as connection:
        require(connection)
        with held_lease(engine, identity, clock, bundles) as renewal:
            logs = dict(_logs(connection, renewal.leases))
            ended = Progress(
                log_bytes=sum(one.size_bytes for log in logs.values() for one in log.generations)
            )
            for bundle_id, log in logs.items():
                site = Site(
                    engine,
                    connection,
                    bundle_id,
                    log,
                    clock.now_ms(),
                    Building(index_of(bundle_id)),
                    renewal,
                    Progress(log_bytes=sum(one.size_bytes for one in log.generations)),
                    partial(_tell, progress, ended),
                )
                _rebuild(site, fill or partial(_by_itself, memory_bytes))
                ended = ended.plus(site.done)
    return ended


def _logs(connection: Connection, bundles: Iterable[int]) -> Iterator[tuple[int, Log]]:
    """Yield the log of each bundle that has one."""
    for bundle_id in bundles:
        try:
            yield bundle_id, Log.look(connection, bundle_id)
        except NotFound:
            if not bundle_id:
                raise
            # No broker has started with this bundle, which was added lately.


def _tell(progress: Callable[[Progress], None], ended: Progress, done: Progress) -> None:
    progress(ended.plus(done))


def _rebuild(site: Site, fill: Fill) -> None:
    """Rebuild the index of one bundle."""
    building, connection = site.building, site.connection
    try:
        state = load_state(connection, site.bundle_id)
        tail = JournalTail(list(journal.read(connection, site.bundle_id)))
        site.pending_by_topic = pending_messages_of(state, tail, site.log, connection)
        segments = fill(site)
        building.name(
            state.log_identity.hex(),
            state.journal_ends,
            segments,
            base=state.mark,
            forgotten_until_ms=site.now_ms,
        )
        building.merge(IndexLimits(), site.renewal.during)
        site.renewal.at_once()
    except BaseException:
        building.discard()
        raise
    building.install()


def _by_itself(memory_bytes: int, site: Site) -> list[Path]:
    """Write the segments of the index in this process. Return their paths."""
    renewal = site.renewal
    with (
        closing(all_rows(site.engine, site.log, site.connection, renewal.wait)) as steps,
        Filling(
            site.building, site.pending_by_topic, site.now_ms, memory_bytes, renewal.wait, site.done
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
    """Write the segments of the index in Spark's tasks. Return their paths."""
    keys = []
    for step in site.log.scan_keys(site.connection, _STEP_BYTES):
        keys += step
        site.renewal()
    work = Work(
        address, SharedDirectory.mark_in(site.building.directory), site.now_ms, memory_bytes
    )
    group, counters, done = f"escapement rebuild {work.shared.mark}", Counters.of(spark), site.done

    def tasks() -> list[Written]:
        spark.sparkContext.setJobGroup(group, "escapement rebuild", interruptOnCancel=True)
        return fill_by_tasks(spark, work, site.pending_by_topic, keys, counters)

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
        raise InvalidRequest(
            "the Spark engine needs a Spark session: pass a session, or use the local engine"
        )
    if config.log_url is None and not is_local(spark.sparkContext.master):
        raise InvalidRequest(
            "a log on SQLite cannot be read by a cluster, only on its own machine: use the local"
            " engine"
        )
    return spark


def is_local(master: str) -> bool:
    """Return whether a Spark master such as ``local[4]`` runs all tasks on this machine."""
    return master.split("[")[0] == "local"


def _address(config: RebuildConfig, data: Path) -> LogAddress:
    """Return the address of the log. Raises ``InvalidRequest`` if the URL has a password."""
    options = {"url": config.log_url, "passwordFile": config.password_file}
    if config.log_url is None:
        options["data"] = str(data)
    return LogAddress.of(Options({name: said for name, said in options.items() if said}))


def _engine(config: RebuildConfig, data: Path) -> Engine:
    """Return the database engine for this process. Here the URL may contain the password."""
    url = config.log_url
    if config.password_file is None and url is not None and urlsplit(url).password is not None:
        return open_engine(url, data)
    return _address(config, data).engine()
