"""A bulk write from its plan to its report: what the driver decides, and what tasks do.

::

    driver  BulkWrite.plan   refuses what cannot work, before anything runs
    tasks   write_part       each attempt at a part stages its rows
    driver  commit | abandon

Of a stream Spark asks the driver for a plan with every batch that it runs, and for another to
commit or abort it. The plan travels to the tasks, so it holds plain values. Exactly once: see
storage/letters/job.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from escapement.durations import DEFAULT_MAX_DELAY_MS
from escapement.errors import DelaysDisabled, EscapementError, InvalidRequest, NotFound
from escapement.names import TopicName
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.shape import NULL_IS_NOW, NULL_IS_REFUSED, Shape
from escapement.pipeline.staging import Stager
from escapement.pipeline.transactions import Transactions
from escapement.storage import catalog
from escapement.storage.engine.base import Connection
from escapement.storage.letters import job
from escapement.storage.letters.job import Attempt, Counted, Job
from escapement.storage.schema import require

if TYPE_CHECKING:
    import pyarrow as pa

    from escapement.pipeline.rows import Rows

# What a user may say of a write.
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
# A stream also says where its checkpoints are, and Spark hands over the name that its query has.
STREAM_OPTIONS: Final = (*WRITE_OPTIONS, "checkpointLocation", "queryName")
# Those of them that no two streams have in common.
_TELLING: Final = ("checkpointLocation", "txnAppId")
# A series and an attempt's name must fit their columns.
_MAX_NAME_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Part:
    """What an attempt at a part has staged; travels to the driver."""

    series: str
    version: int
    counted: Counted
    by_topic: Mapping[str, int]  # messages
    size_bytes: int
    began_s: float  # when it was planned, by the driver's clock


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a write."""

    job: str
    version: int
    repeated: bool  # it had been committed before, and added nothing
    messages: int = 0
    size_bytes: int = 0
    by_topic: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """All of it for people, on a line."""
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
    """The plan of a write."""

    address: LogAddress
    shape: Shape
    topic: str  # for rows that name none; "" if each must
    creates_topics: bool
    series: str  # "": a stream's, which its batches name
    version: int
    run: str  # what the names of its attempts begin with
    report: str | None
    began_s: float  # when it was planned, Unix seconds
    start_ms: int  # delays count from here, by the database's clock
    max_delay_ms: int  # what is wanted later than this from there is refused
    null_times: str  # whether a null time is refused, or means now

    @classmethod
    def plan(
        cls, options: Options, columns: Mapping[str, str], *, of_stream: bool = False
    ) -> BulkWrite:
        """Look at everything that can be known before anything runs.

        Raises:
          InvalidRequest: the options, or the columns, cannot be meant.
          NotFound, DelaysDisabled: the topic that is named does not take these messages.
          StorageError: the log cannot be reached, or not be written.
        """
        options.check(STREAM_OPTIONS if of_stream else WRITE_OPTIONS)
        address = LogAddress.of(options)
        if address.data is not None:
            raise InvalidRequest(
                "writing needs a log on MySQL or MariaDB: SQLite lets one process write"
            )
        series, version = _name(options, of_stream)
        report = options.text("report")
        if report is not None:
            _check_report(Path(report))
        shape = Shape.of(columns)
        topic = options.text("topic")
        if topic is None and "topic" not in shape.places:
            raise InvalidRequest("say where to: with the option topic, or a column of that name")
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
        """The plan, after a look at the database and its clock."""
        transactions = Transactions(self.address.engine())
        try:
            transactions.run(require)
            if self.topic:
                timed = self.shape.has_times
                transactions.run(lambda connection: self.admit(connection, self.topic, timed))
            dialect = transactions.engine.dialect
            now_ms = transactions.run(lambda connection: job.now_ms(dialect, connection))
            return replace(self, start_ms=now_ms)
        finally:
            transactions.close()

    def of_batch(self, series: str, version: int) -> BulkWrite:
        """The plan of a stream's batch, unless the stream was given a name of its own."""
        return replace(self, series=self.series or series, version=version)

    def admit(self, connection: Connection, topic: str, timed: bool) -> str:
        """The full name of a topic that takes these messages.

        Raises:
          NotFound, DelaysDisabled, InvalidRequest: it does not.
        """
        name = TopicName.parse(topic)
        try:
            namespace = catalog.find_namespace(connection, name.in_namespace)
            if timed and not namespace.delays_enabled:
                raise DelaysDisabled(
                    f"delayed messages are disabled in {namespace.tenant}/{namespace.name}; enable"
                    " them with `escapement admin namespaces enable-delayed-message`"
                )
            if not self.creates_topics:
                catalog.find_topic(connection, name)
        except NotFound as error:
            if not self.creates_topics:
                raise NotFound(
                    f"{error}; create it, or set the option createTopics to true, where the broker"
                    " creates topics by itself"
                ) from None
        return name.full

    def enter(self, transactions: Transactions) -> Job:
        """The job of this plan, made if there is none yet."""
        assert self.series, "a stream's plan names no job before its batch does"
        return transactions.run(
            lambda connection: job.enter(transactions.engine, connection, self.series, self.version)
        )


def _run_of(options: Options) -> str:
    """What the names of a stream's attempts begin with: for whoever aborts a batch the same.

    All that he has in common with its tasks is the options. Where these tell it from no other
    stream, as where Spark's configuration says where checkpoints are, nobody has it in common:
    else one that aborts a batch would take what another has staged for its batch of that number.
    """
    if not any(map(options.text, _TELLING)):
        return secrets.token_hex(8)
    given = [(name, options.text(name)) for name in STREAM_OPTIONS]
    return hashlib.sha256(repr(given).encode()).hexdigest()[:16]


def _name(options: Options, of_stream: bool) -> tuple[str, int]:
    """What a job is to be known by: a name that was given, or one of its own."""
    job_id, application = options.text("jobId"), options.text("txnAppId")
    version = options.number("txnVersion", least=0)
    for name in (job_id, application):
        if name is not None and len(name) > _MAX_NAME_CHARS:
            raise InvalidRequest(f"jobId and txnAppId have {_MAX_NAME_CHARS} characters at most")
    if of_stream:
        if job_id is not None or version is not None:
            raise InvalidRequest(
                "a stream's batches have numbers of their own: give txnAppId alone, or nothing"
            )
        return f"txn/{application}" if application else "", 0
    if (application is None) != (version is None):
        raise InvalidRequest("txnAppId and txnVersion go together")
    if application is not None and version is not None:
        if job_id is not None:
            raise InvalidRequest("a job is named by jobId, or by txnAppId and txnVersion: not both")
        return f"txn/{application}", version
    return f"job/{job_id or secrets.token_hex(16)}", 0


def write_part(plan: BulkWrite, part: int, batches: Iterable[pa.RecordBatch]) -> Part:
    """Stage the rows of a part, as one attempt; in a task.

    Raises:
      EscapementError: the attempt failed; what it staged is given up.
    """
    from escapement.pipeline.rows import RowReader

    name = f"{plan.run}-{part}-{secrets.token_hex(8)}"
    transactions = Transactions(plan.address.engine())
    try:
        entered = plan.enter(transactions)
        if entered.committed:
            for _ in batches:  # who hands them over expects that they are taken
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
        )
        try:
            for batch in batches:
                for rows in reader.read(batch):
                    with _named(rows):
                        stager.add(rows.topic, rows.batch, rows.at_ms)
            counted = stager.finish()
        except BaseException:
            stager.close()
            with suppress(EscapementError):
                transactions.run(lambda connection: job.abandon(connection, entered, name))
            raise
        by_topic = {target: tally.messages for target, tally in stager.tallies.items()}
        size_bytes = sum(tally.size_bytes for tally in stager.tallies.values())
        return Part(plan.series, plan.version, counted, by_topic, size_bytes, plan.began_s)
    finally:
        transactions.close()


@contextmanager
def _named(rows: Rows) -> Iterator[None]:
    """Inside it, an error about the topic of these names the first row that has it."""
    try:
        yield
    except (DelaysDisabled, InvalidRequest, NotFound) as error:
        row = rows.first(timed=isinstance(error, DelaysDisabled))
        raise type(error)(f"{row}: {error}") from None


def commit(plan: BulkWrite, parts: Sequence[Part]) -> Report:
    """Make what these have staged visible, as a whole; in the driver.

    Raises:
      StagingLost: something of it was given up meanwhile; nothing was added.
    """
    transactions = Transactions(plan.address.engine())
    try:
        entered = plan.enter(transactions)
        counted = [part.counted for part in parts]
        added = transactions.run(
            lambda connection: job.commit(transactions.engine, connection, entered, counted)
        )
        added = added or transactions.in_doubt
        seconds = time.time() - min([plan.began_s, *(part.began_s for part in parts)])
    finally:
        transactions.close()
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
    """Raise ``InvalidRequest`` if no report can be written there, as it looks now."""
    directory = file.absolute().parent
    if file.is_dir() or not directory.is_dir() or not os.access(directory, os.W_OK):
        raise InvalidRequest(f"the report cannot be written to {file}: no file can be made there")


def _keep(report: Report, file: Path) -> None:
    """Write it; where that fails the job has not failed, and must not seem to have."""
    try:
        file.write_text(json.dumps(asdict(report), indent=1) + "\n", "utf-8")
    except OSError as error:
        print(
            f"escapement: job {report.job} is committed, but its report cannot be written to"
            f" {file}: {error.strerror}",
            file=sys.stderr,
        )


def abandon(plan: BulkWrite, attempts: Iterable[str] = ()) -> None:
    """Give up what these attempts, and all of this plan, have staged; in the driver.

    Best as it goes: whatever cannot be done now the broker's upkeep does.
    """
    transactions = Transactions(plan.address.engine())
    try:
        with suppress(EscapementError):
            entered, dialect = plan.enter(transactions), transactions.engine.dialect

            def give_up(connection: Connection) -> None:
                for run in (plan.run, *attempts):
                    job.give_up(dialect, connection, entered, run)

            transactions.run(give_up)
    finally:
        transactions.close()


def abandon_batch(plan: BulkWrite, version: int, parts: Sequence[Part]) -> None:
    """As ``abandon``, of a stream's batch, whose query's name no task may have come to say.

    Without parts that came to their end the job is found by what attempts of plans with these
    options have staged; where options do not tell, nothing is.
    """
    if parts:
        names = [part.counted.attempt for part in parts]
        abandon(plan.of_batch(parts[0].series, version), names)
        return
    transactions = Transactions(plan.address.engine())
    found: list[str] = []
    try:
        with suppress(EscapementError):
            found = transactions.run(
                lambda connection: job.staged_by(connection, plan.run, version)
            )
    finally:
        transactions.close()
    for series in found:
        abandon(plan.of_batch(series, version))
