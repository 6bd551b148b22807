"""The job ``archive``: writes old, finished messages to Parquet, on any file system of Spark's.

A message is finished when no subscription will receive it any more. One execution of the job is a
*run*. A run archives its topics in *steps*: a step covers several small topics, or some millions of
messages of a large one. Each step has three stages:

1. The driver divides the messages of the step into *parts* (pipeline/source/part.py). Spark's tasks
   read the parts from the log and encode them as files (pipeline/archiving/archive_file.py), in a
   private directory of the step. Meanwhile the tasks compute a *digest* of the messages
   (pipeline/archiving/digest.py).
2. The files are read back. The number and the digest of their messages must equal those of the
   messages read from the log, and no message may occur twice.
3. The files are moved to their final paths in the archive. The database then *records* for each
   topic that these offsets are archived (pipeline/archiving/archive_folder.py).

Files without a record are not part of the archive, and the next run deletes them. A repeated run
archives the offsets that no record names. Spark may run a task twice, but commits its output once.
If Spark fails to do so, the second stage detects it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from escapement.errors import EscapementError, InvalidRequest, NotFound, StorageError
from escapement.names import NamespaceName, TopicName
from escapement.pipeline.archive_manifest import Manifest
from escapement.pipeline.archiving.archive_file import FoundFile, directory_of
from escapement.pipeline.archiving.archive_folder import ArchiveFolder, Ready
from escapement.pipeline.archiving.digest import Digest
from escapement.pipeline.archiving.plan import accepted_before, unarchived
from escapement.pipeline.archiving.spark_directory import root_directory
from escapement.pipeline.archiving.tasks import Made, make
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.source.part import Part
from escapement.pipeline.task_groups import group_pieces
from escapement.storage import archive_record, removal
from escapement.storage.catalog.catalog import (
    find_namespace,
    find_topic,
    read_namespaces,
    read_topics,
)
from escapement.storage.data_table import MOVES
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.inbox.job import now_ms
from escapement.storage.offsets import OffsetSet
from escapement.storage.schema import require
from escapement.storage.state import topic_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The maximum of messages, and of topics, in a step. A run that is killed loses the work of one step
# at most, and the job reports its progress after each step.
_MESSAGES_AT_ONCE: Final = 10_000_000
_TOPICS_AT_ONCE: Final = 500
_SUFFIX: Final = ".zstd.parquet"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run after a step."""

    topics: int  # finished topics
    of_topics: int  # all topics of the run
    messages: int  # archived messages
    size_bytes: int  # the size of the files with these messages


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """The configuration of the job ``archive``.

    Args:
      source: the data source's options for the address of the log.
      output: the root directory of the archive, on any file system that Spark writes to.
      topics: names of topics; empty for all topics of the namespaces whose policy has ``archive``.
      older_than_ms: the minimum time since the publication of a message; None for the retention of
        the message's namespace.
      show: called with the progress after each step.
    """

    source: Mapping[str, str]
    output: str
    topics: Sequence[str] = ()
    older_than_ms: int | None = None
    show: Callable[[Progress], None] | None = None


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """The messages of one topic that one step has archived."""

    topic: str
    messages: int
    size_bytes: int  # the size of the files with these messages
    files: int
    first_offset: int
    last_offset: int
    manifest: str  # the URI of the manifest that lists the files


@dataclass(slots=True)
class Archived:
    """The result of a run. ``topics`` has an entry for each topic of each step."""

    topics: list[ArchivedTopic] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """The number of archived messages of all topics."""
        return sum(one.messages for one in self.topics)

    @property
    def size_bytes(self) -> int:
        """The size of all files that the run wrote, in bytes."""
        return sum(one.size_bytes for one in self.topics)


class _Task(NamedTuple):
    """A topic that may have messages to archive."""

    name: TopicName
    id: int
    before_ms: int  # only messages published before this time are archived
    # The most messages to archive. It does not count rescheduled and relocated messages whose first
    # row the log has forgotten.
    most: int
    since: int = 0  # the offset at which the topic's next step begins


def run(spark: SparkSession, config: ArchiveConfig) -> Archived:
    """Archive finished messages that are old enough.

    The job may be interrupted at any time, and repeated.

    Raises:
      InvalidRequest: if an option is not valid, Spark cannot write to ``output``, the namespace of
        a named topic has no ``archive`` in its policy, or no namespace at all has it.
      NotFound: if a topic does not exist.
      Conflict: if another run is active on this log.
      StorageError: if the files do not contain exactly the messages read from the log. The step is
        not recorded then.
      StorageUnavailable: if the database cannot be reached.
      PySparkException: if Spark fails.
    """
    options = Options(config.source)
    options.check(ADDRESS_OPTIONS)
    root = root_directory(spark, config.output)
    address = LogAddress.of(options)
    with address.connected() as (engine, connection):
        require(connection)
        with archive_record.alone(engine, connection):
            done = Archived()
            folder = ArchiveFolder(root, engine, connection)
            folder.clear()
            run = _Run(spark, config, folder, address, engine, connection)
            tasks = run.tasks()
            behind = 0
            for some in group_pieces(
                tasks, lambda task: task.most, _MESSAGES_AT_ONCE, _TOPICS_AT_ONCE
            ):
                left: Sequence[_Task] = some
                while left:
                    step, left = run.archive(left)
                    done.topics += step
                    if config.show is not None:
                        topics = behind + len(some) - len(left)
                        sums = done.messages, done.size_bytes
                        config.show(Progress(topics, len(tasks), *sums))
                behind += len(some)
            return done


class _Run:
    """One run of the job. The caller holds the lock that keeps other runs off the log."""

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        folder: ArchiveFolder,
        address: LogAddress,
        engine: Engine,
        connection: Connection,
    ) -> None:
        self._spark = spark
        self._config = config
        self._folder = folder
        self._address = address
        self._engine = engine
        self._connection = connection
        self._now_ms = now_ms(engine.dialect, connection)
        at = datetime.fromtimestamp(self._now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        self._name = f"{at}-{secrets.token_hex(4)}"
        self._steps = 0

    # -- planning ------------------------------------------------------------------

    def tasks(self) -> list[_Task]:
        """Return the topics of this run that may have messages to archive."""
        found = []
        for name, retention_ms in self._topics():
            older_ms = self._config.older_than_ms
            before_ms = self._now_ms - (retention_ms if older_ms is None else older_ms)
            try:
                topic_id, end, begin = topic_state.read_range(self._connection, name)
            except NotFound:
                if self._config.topics:
                    raise
                continue  # the topic was deleted after it was listed
            end = accepted_before(self._connection, topic_id, before_ms, end)
            archived = archive_record.archived(self._connection, topic_id, begin, max(begin, end))
            most = max(end - begin, 0) - archived.count_below(end) + archived.count_below(begin)
            if most > 0 or MOVES.rows_of(self._connection, topic_id):
                found.append(_Task(name, topic_id, before_ms, most))
        return found

    def _topics(self) -> list[tuple[TopicName, int]]:
        """Return the topics of this run, each with the retention of its namespace in milliseconds.

        These are the configured topics, or all topics of the namespaces whose policy has
        ``archive``, except namespaces that are being deleted.
        """
        if self._config.topics:
            found = []
            for name in dict.fromkeys(map(TopicName.parse, self._config.topics)):
                find_topic(self._connection, name)
                within = NamespaceName(name.tenant, name.namespace)
                policy = find_namespace(self._connection, within).policy
                if not policy.archive:
                    raise InvalidRequest(
                        f"topic {name.full} cannot be archived: the policy of its namespace does"
                        " not keep messages until they are archived. First run"
                        f" escapement admin namespaces update {within.full} --archive yes"
                    )
                found.append((name, policy.retention_ms))
            return found
        deleting = set(removal.marked(self._connection, "namespace"))
        spaces = {
            one.id: one
            for one in read_namespaces(self._connection)
            if one.policy.archive and one.id not in deleting
        }
        if not spaces:
            raise InvalidRequest(
                "no namespace is to be archived. For each namespace to archive, run escapement"
                " admin namespaces update TENANT/NAMESPACE --archive yes"
            )
        return [
            (TopicName(space.tenant, space.name, one.name), space.policy.retention_ms)
            for one in read_topics(self._connection, None)
            if (space := spaces.get(one.namespace_id)) is not None
        ]

    # -- the work ----------------------------------------------------------------------

    def archive(self, tasks: Sequence[_Task]) -> tuple[list[ArchivedTopic], list[_Task]]:
        """Archive one step of these topics.

        Returns:
          The archived messages of each topic, and the topics that need another step.
        """
        self._steps += 1
        run = f"{self._name}-{self._steps}"
        directory = self._folder.begin(run)
        done = []
        try:
            parts, left = self._parts(tasks)
            made = make(self._spark, self._address, parts, directory) if parts else None
            if made is not None and made.read.messages:
                ready = self._verified(tasks, run, directory, made)
                self._folder.put(run, ready)
                done = [self._archived_topic(one) for one in ready if self._folder.record(one)]
        except BaseException:
            with suppress(EscapementError):
                self._folder.clear()
            raise
        self._folder.clear()
        return done, left

    def _parts(self, tasks: Sequence[_Task]) -> tuple[list[Part], list[_Task]]:
        """Return the parts that this step reads, and the topics that need another step."""
        parts, left = [], []
        names = [task.name for task in tasks]
        states = topic_state.read_topics(self._engine, self._connection, names)
        for task, state in zip(tasks, states, strict=True):
            if isinstance(state, NotFound):
                continue  # the topic was deleted after it was listed
            found = unarchived(self._connection, state, task.before_ms, task.since)
            messages = np.cumsum([part.first_stated for part in found])
            count = max(int(messages.searchsorted(_MESSAGES_AT_ONCE, "right")), 1)
            parts += found[:count]
            left += [task._replace(since=part.offsets.low) for part in found[count : count + 1]]
        return parts, left

    def _verified(
        self, tasks: Sequence[_Task], run: str, directory: str, made: Made
    ) -> list[Ready]:
        """Verify the files that the tasks wrote, and return them grouped by topic.

        Raises:
          StorageError: if the files do not contain exactly the messages read from the log.
        """
        read, files = made
        written = sum((file.digest for file in files.values()), Digest())
        if written != read:
            raise StorageError(
                f"the files in {directory} do not contain the messages read from the log:"
                f" {written.messages:,} messages of {read.messages:,}, content {written.content}"
                f" instead of {read.content}. Nothing of this step is archived. Run the job again"
            )
        by_topic: dict[str, dict[str, FoundFile]] = {}
        for name, file in sorted(files.items()):
            by_topic.setdefault(file.topic, {})[name] = file
        return [
            self._ready(task, run, by_topic[task.name.full])
            for task in tasks
            if task.name.full in by_topic
        ]

    def _ready(self, task: _Task, run: str, files: Mapping[str, FoundFile]) -> Ready:
        whole = OffsetSet()
        described = {}
        for name, file in files.items():
            path = f"{directory_of(task.name, file.day)}/{name.partition('.')[0]}{_SUFFIX}"
            described[name] = replace(file.described, path=path)
            if whole.union_update(file.offsets) != file.digest.messages:
                raise StorageError(
                    f"a message of topic {task.name.full} was written twice. Nothing of this step"
                    " is archived. Run the job again"
                )
        manifest = Manifest(
            task.name.full,
            task.id,
            self._folder.log,
            run,
            self._folder.root,
            self._now_ms,
            tuple(described.values()),
        )
        return Ready(manifest, whole, tuple(described))

    def _archived_topic(self, one: Ready) -> ArchivedTopic:
        """Return the report on one topic's archived messages."""
        manifest = one.manifest
        return ArchivedTopic(
            manifest.topic,
            manifest.messages,
            manifest.size_bytes,
            len(manifest.files),
            manifest.first_offset,
            manifest.last_offset,
            f"{self._folder.root}/{one.manifest_path}",
        )
