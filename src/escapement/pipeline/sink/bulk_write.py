"""A bulk write: the rows of a DataFrame, or of a stream's batch, become messages all at once.

::

    driver  BulkWrite.plan   checks options, columns and log before any task runs
    tasks   write_part       each attempt at a part stages its rows
    driver  commit | abandon

In the database, a bulk write is a *job* with a *series* and a *version* (storage/inbox/job.py).
Spark divides the rows into *parts*, and may make several *attempts* at a part. An attempt *stages*
messages: it stores them in the inbox, where no reader sees them. The commit names one attempt for
each part and makes its messages visible. If this version or a later one of the series is committed
already, nothing is added. So repeating a job does no harm.

For a stream, each batch is a job. Spark asks the driver for one plan to run the batch, and for
another plan to commit or abort it. The plan is sent to the tasks, so it has plain values only.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from escapement.durations import DEFAULT_MAX_DELAY_MS
from escapement.errors import (
    DelaysDisabled,
    DelayTooLong,
    DelayTooShort,
    EscapementError,
    InvalidRequest,
    NotFound,
)
from escapement.names import TopicName
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.sink.shape import NULL_IS_NOW, NULL_IS_REFUSED, Shape
from escapement.pipeline.sink.staging import Admitted, Stager
from escapement.pipeline.sink.transactions import Transactions
from escapement.storage.catalog import catalog
from escapement.storage.catalog.delay_policy import DelayPolicy
from escapement.storage.catalog.policy import TopicPolicy
from escapement.storage.engine.base import Connection
from escapement.storage.inbox import job
from escapement.storage.inbox.job import Attempt, Counted, Job
from escapement.storage.schema import require

if TYPE_CHECKING:
    import pyarrow as pa

    from escapement.pipeline.sink.rows import Rows

# The options of a batch write.
WRITE_OPTIONS: Final = (
    *ADDRESS_OPTIONS,
    "topic",
    "createTopics",
    "maxDelay",
    "nullTimes",
    "jobId",
    "txnAppId",
    "txnVersion",
    "report",
)
# The options of a stream. Spark adds its own options, the checkpoint location and the query's name.
STREAM_OPTIONS: Final = (*WRITE_OPTIONS, "checkpointLocation", "queryName")
# Options whose values differ between any two streams.
_TELLING: Final = ("checkpointLocation", "txnAppId")
# The maximum length of the options that name the series, which must fit its database column.
_MAX_NAME_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Part:
    """The result of an attempt at a part, which the task sends to the driver."""

    series: str
    version: int
    counted: Counted
    by_topic: Mapping[str, int]  # the number of messages for each topic
    size_bytes: int
    began_s: float  # when the write was planned, by the driver's clock, in Unix seconds


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a committed write."""

    job: str  # the series of the job
    version: int
    repeated: bool  # whether an earlier run committed the job, so that this one added nothing
    messages: int = 0
    size_bytes: int = 0
    by_topic: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """The report as one line for people."""
        name = f"job {self.job}, version {self.version}"
        if self.repeated:
            return f"{name}: committed before; nothing was added"
        rate = self.messages / self.seconds if self.seconds else 0.0
        topics = f"{len(self.by_topic):,} topic{'s' * (len(self.by_topic) != 1)}"
        return (
            f"{name}: {self.messages:,} messages ({self.size_bytes:,} bytes) for"
            f" {topics} committed in {self.seconds:.1f} s, {rate:,.0f} a second"
        )


@dataclass(frozen=True, slots=True)
class BulkWrite:
    """The plan of a bulk write."""

    address: LogAddress
    shape: Shape
    topic: str  # the topic of rows without one; "" if each row must have one
    creates_topics: bool  # whether messages may go to topics that do not exist yet
    series: str  # "" in a stream's plan until ``of_batch`` sets it
    version: int
    run: str  # the prefix of the names of all attempts of this plan
    report: str | None  # the path of the file for the report
    began_s: float  # when the write was planned, in Unix seconds
    start_ms: int  # the time from which delays count, by the database's clock
    max_delay_ms: int  # the longest accepted time from ``start_ms`` to a due time
    null_times: str  # whether a null time is refused, or means now

    @classmethod
    def plan(
        cls, options: Options, columns: Iterable[tuple[str, str]], *, of_stream: bool = False
    ) -> BulkWrite:
        """Plan a write, after all checks that are possible before tasks run.

        Raises:
          InvalidRequest: if an option or a column is invalid.
          NotFound, DelaysDisabled: if the topic in the options does not take these messages.
          StorageError: if the log cannot be reached or written.
        """
        options.check(STREAM_OPTIONS if of_stream else WRITE_OPTIONS)
        address = LogAddress.of(options)
        if address.data is not None:
            raise InvalidRequest(
                "writing needs a log on MySQL or MariaDB: SQLite allows only one writing process."
                " Give the option url instead of data"
            )
        series, version = _name(options, of_stream)
        report = options.text("report")
        if report is not None:
            _check_report(Path(report))
        shape = Shape.of(columns)
        topic = options.text("topic")
        if topic is None and "topic" not in shape.positions:
            raise InvalidRequest("the topic is missing: give the option topic, or a column topic")
        plan = cls(
            address,
            shape,
            "" if topic is None else TopicName.parse(topic).full,
            options.flag("createTopics", False),
            series,
            version,
            _run_of(options) if of_stream else secrets.token_hex(8),
            report,
            time.time(),
            0,
            options.duration("maxDelay", DEFAULT_MAX_DELAY_MS),
            options.choice("nullTimes", (NULL_IS_REFUSED, NULL_IS_NOW)),
        )
        return plan._checked()

    def _checked(self) -> BulkWrite:
        """Check the plan against the database, and return it with the database's time."""
        with closing(Transactions(self.address.engine())) as transactions:
            transactions.run(require)
            if self.topic:
                timed = self.shape.when is not None
                transactions.run(lambda connection: self.admit(connection, self.topic, timed))
            dialect = transactions.engine.dialect
            now_ms = transactions.run(lambda connection: job.now_ms(dialect, connection))
            return replace(self, start_ms=now_ms)

    def of_batch(self, series: str, version: int) -> BulkWrite:
        """Return the plan of one batch of a stream.

        Args:
          series: the series of the job, unless the option txnAppId gives one.
          version: the number of the batch.
        """
        return replace(self, series=self.series or series, version=version)

    def admit(self, connection: Connection, topic: str, timed: bool) -> Admitted:
        """Check that a topic takes messages of this write, and return it.

        Args:
          timed: whether some of the messages have due times or delays.

        Raises:
          NotFound: if the topic or its namespace does not exist, and ``creates_topics`` is false.
          DelaysDisabled: if the messages have times and the namespace has delays disabled.
          InvalidRequest: if the name is not valid.
        """
        name = TopicName.parse(topic)
        try:
            namespace = catalog.find_namespace(connection, name.in_namespace)
            if timed and not namespace.delays_enabled:
                raise DelaysDisabled(
                    f"delayed messages are disabled in {namespace.tenant}/{namespace.name}; enable"
                    " them with `escapement admin namespaces enable-delayed-message`"
                )
            own = TopicPolicy()
            try:
                own = catalog.find_topic(connection, name).policy
            except NotFound:
                if not self.creates_topics:
                    raise
            delays = DelayPolicy.of(name, own, namespace)
            return Admitted(name.full, delays and delays.within(self.max_delay_ms))
        except NotFound as error:
            if not self.creates_topics:
                raise NotFound(
                    f"{error}. Create it, or set the option createTopics to true if the broker"
                    " creates topics automatically"
                ) from None
        return Admitted(name.full, None)

    def enter(self, transactions: Transactions) -> Job:
        """Return the job of this plan from the database. Create the job if it does not exist."""
        assert self.series, "a stream's plan has no job before its batch is set"
        return transactions.run(
            lambda connection: job.enter(transactions.engine, connection, self.series, self.version)
        )


def _run_of(options: Options) -> str:
    """Return the prefix of the names of a stream's attempts.

    The plan that aborts a batch should have the same prefix as the plan of its tasks. The two plans
    have only the options in common, so the prefix is a hash of these. Options may be the same for
    two streams, for example if Spark's configuration has the checkpoint location. Then the prefix
    is random. Otherwise, aborting a batch would abandon the messages that another stream has staged
    for its batch of the same number.
    """
    if not any(map(options.text, _TELLING)):
        return secrets.token_hex(8)
    given = [(name, options.text(name)) for name in STREAM_OPTIONS]
    return hashlib.sha256(repr(given).encode()).hexdigest()[:16]


def _name(options: Options, of_stream: bool) -> tuple[str, int]:
    """Return the series and version of the job, as the options give them or as new names."""
    job_id, application = options.text("jobId"), options.text("txnAppId")
    version = options.number("txnVersion", least=0)
    for name in (job_id, application):
        if name is not None and len(name) > _MAX_NAME_CHARS:
            raise InvalidRequest(
                f"jobId and txnAppId may have at most {_MAX_NAME_CHARS} characters"
            )
    if of_stream:
        if job_id is not None or version is not None:
            raise InvalidRequest(
                "Spark numbers the batches of a stream: give only txnAppId, or no name at all, but"
                " neither jobId nor txnVersion"
            )
        return f"txn/{application}" if application else "", 0
    if (application is None) != (version is None):
        raise InvalidRequest("the options txnAppId and txnVersion must be given together")
    if application is not None and version is not None:
        if job_id is not None:
            raise InvalidRequest("give jobId, or txnAppId and txnVersion, but not both")
        return f"txn/{application}", version
    return f"job/{job_id or secrets.token_hex(16)}", 0


def write_part(plan: BulkWrite, part: int, batches: Iterable[pa.RecordBatch]) -> Part:
    """Stage the rows of a part as one attempt; runs in a task.

    Stages nothing if the job is committed already.

    Raises:
      EscapementError: if the attempt failed. Its staged messages are abandoned.
    """
    from escapement.pipeline.sink.rows import RowReader

    name = f"{plan.run}-{part}-{secrets.token_hex(8)}"
    with closing(Transactions(plan.address.engine())) as transactions:
        entered = plan.enter(transactions)
        if entered.committed:
            for _ in batches:  # Spark expects that its batches are consumed
                pass
            return Part(plan.series, plan.version, Counted(part, name, 0), {}, 0, plan.began_s)
        reader = RowReader(
            plan.shape, plan.topic, plan.start_ms, plan.max_delay_ms, plan.null_times, part
        )
        stager = Stager(
            transactions,
            Attempt(entered.id, part, name),
            lambda topic, timed: transactions.run(
                lambda connection: plan.admit(connection, topic, timed)
            ),
            plan.start_ms,
        )
        try:
            for batch in batches:
                for rows in reader.read(batch):
                    with _named(rows):
                        stager.add(rows.topic, rows.batch, rows.at_ms, rows.name)
            counted = stager.finish()
        except BaseException:
            stager.close()
            with suppress(EscapementError):
                transactions.run(lambda connection: job.abandon(connection, entered, name))
            raise
        by_topic = {target: tally.messages for target, tally in stager.tallies.items()}
        size_bytes = sum(tally.size_bytes for tally in stager.tallies.values())
        return Part(plan.series, plan.version, counted, by_topic, size_bytes, plan.began_s)


@contextmanager
def _named(rows: Rows) -> Iterator[None]:
    """Name the first affected row in an error about the topic of these rows."""
    try:
        yield
    except (DelayTooLong, DelayTooShort):
        raise  # the error names a row already
    except (DelaysDisabled, InvalidRequest, NotFound) as error:
        row = rows.first(timed=isinstance(error, DelaysDisabled))
        raise type(error)(f"{row}: {error}") from None


def commit(plan: BulkWrite, parts: Sequence[Part]) -> Report:
    """Make all staged messages of these parts visible at once; runs in the driver.

    Also writes the report to a file, if the plan names one.

    Raises:
      StagingLost: if some staged messages were abandoned meanwhile. Nothing was added.
    """
    with closing(Transactions(plan.address.engine())) as transactions:
        entered = plan.enter(transactions)
        counted = [part.counted for part in parts]
        added = transactions.run(
            lambda connection: job.commit(transactions.engine, connection, entered, counted)
        )
        added = added or transactions.in_doubt
        seconds = time.time() - min([plan.began_s, *(part.began_s for part in parts)])
    report = Report(plan.series, plan.version, True)
    if added:
        by_topic: dict[str, int] = {}
        for part in parts:
            for topic, messages in part.by_topic.items():
                by_topic[topic] = by_topic.get(topic, 0) + messages
        report = Report(
            plan.series,
            plan.version,
            False,
            sum(part.counted.messages for part in parts),
            sum(part.size_bytes for part in parts),
            by_topic,
            round(seconds, 3),
        )
    if plan.report is not None:
        _keep(report, Path(plan.report))
    return report


def _check_report(file: Path) -> None:
    """Raise ``InvalidRequest`` if a report can probably not be written to ``file``."""
    directory = file.absolute().parent
    if file.is_dir() or not directory.is_dir() or not os.access(directory, os.W_OK):
        raise InvalidRequest(
            f"the report cannot be written to {file}: give a file in a writable directory"
        )


def _keep(report: Report, file: Path) -> None:
    """Write the report to a file. Print an error instead of raising it.

    The job is committed by then. An exception would make it look failed, and it would be run again.
    """
    try:
        file.write_text(json.dumps(asdict(report), indent=1) + "\n", "utf-8")
    except OSError as error:
        print(
            f"escapement: job {report.job} is committed, but its report cannot be written to"
            f" {file}: {error.strerror}",
            file=sys.stderr,
        )


def abandon(plan: BulkWrite, attempts: Iterable[str] = ()) -> None:
    """Abandon the messages that some attempts have staged for the plan's job; runs in the driver.

    Ignores errors, because the broker abandons the rest later.

    Args:
      attempts: the names of attempts to abandon besides those of the plan itself.
    """
    with closing(Transactions(plan.address.engine())) as transactions, suppress(EscapementError):
        entered, dialect = plan.enter(transactions), transactions.engine.dialect

        def give_up(connection: Connection) -> None:
            for run in (plan.run, *attempts):
                job.give_up(dialect, connection, entered, run)

        transactions.run(give_up)


def abandon_batch(plan: BulkWrite, version: int, parts: Sequence[Part]) -> None:
    """Abandon the messages that tasks have staged for one batch of a stream; runs in the driver.

    The series of the job may contain the id of the query, which only tasks know. So the finished
    parts give the series. If no part has finished, the database is searched for jobs for which
    attempts with this plan's prefix have staged messages. If the prefix is random, none is found.

    Args:
      version: the number of the batch.
    """
    if parts:
        names = [part.counted.attempt for part in parts]
        abandon(plan.of_batch(parts[0].series, version), names)
        return
    found: list[str] = []
    with closing(Transactions(plan.address.engine())) as transactions, suppress(EscapementError):
        found = transactions.run(lambda connection: job.staged_by(connection, plan.run, version))
    for series in found:
        abandon(plan.of_batch(series, version))
