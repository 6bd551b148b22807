"""The job ``audit``: checks log, cursors, delayed index and archive against each other.

The *cursor* of a subscription is the set of messages that it has acknowledged. The *delayed index*
has the pending messages on the local disk of a broker. Each contradiction is a *finding*.

- The driver reads the state of each topic and checks its cursors (pipeline/auditing/survey.py).
- Spark's tasks check the log row by row. Each task gets *stretches*, which are ranges of a topic's
  offsets (pipeline/auditing/recount.py).
- If a data directory is given, its indexes must have in each stretch exactly the messages that the
  log and the cursors require (pipeline/auditing/index_count.py). Each *bundle* of topics has an
  index and a survey of its own.
- The files of an archive must have exactly the messages that the database records as archived
  (pipeline/auditing/archive_count.py).

A rescheduled message is *restated*: a later row of the log has it again, with its new due time. A
relocated message is restated with an unchanged due time, so that the log can forget its first row.

A broker may run meanwhile. Its changes do not disturb the audit, which compares everything with the
states read at the start. The audit starts again if the log forgets rows that are still to be
checked, or if a checkpoint replaces the index while the states are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from escapement.errors import IndexDamaged, InvalidRequest, LogDamaged
from escapement.names import TopicName
from escapement.pipeline.auditing.archive_count import FileCount, RecordedArchive, count_files
from escapement.pipeline.auditing.finding import Finding, Kind
from escapement.pipeline.auditing.index_count import IndexCount
from escapement.pipeline.auditing.recount import (
    Recount,
    Stretch,
    recount,
)
from escapement.pipeline.auditing.survey import STRETCH, Survey, TopicCount
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.source.archived_reading import ArchivedPart
from escapement.pipeline.task_groups import group_pieces
from escapement.storage.bundles import bundle_count
from escapement.storage.catalog.catalog import elsewhere, read_named
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.base import Connection
from escapement.storage.state.topic_state import TopicState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The maximum of attempts at an audit. Changes that force a new attempt are rare.
_TRIES: Final = 5

T = TypeVar("T", Stretch, ArchivedPart)
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """The configuration of the job ``audit``.

    Args:
      source: the data source's options for the address of the log.
      topics: names of topics; empty for all topics.
      index: the data directory, on the driver's machine, of a broker whose indexes are audited too.
    """

    source: Mapping[str, str]
    topics: Sequence[str] = ()
    index: str | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit: the counts of each topic, and all findings."""

    topics: list[TopicCount] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def run(spark: SparkSession, config: AuditConfig) -> Audit:
    """Audit the configured topics. Changes neither database nor index nor archive.

    Raises:
      InvalidRequest: if the address of the log is missing, ``index`` has no index, or changes
        disturbed every attempt.
      NotFound: if a topic does not exist.
      StorageUnavailable: if the database cannot be reached.
    """
    options = Options(config.source)
    options.check(ADDRESS_OPTIONS)
    address = LogAddress.of(options)
    for _ in range(_TRIES):
        audit = Audit()
        surveys, archives = _survey(address, config, audit)
        if any(survey.is_unsettled for survey in surveys):
            continue
        stretches = [one for survey in surveys for one in survey.stretches]
        counted = _by_tasks(spark, partial(_recounted, address), stretches)
        if any(one.forgotten for one in counted):
            continue
        files = [part for recorded in archives.values() for part in recorded.parts]
        left = iter(counted)
        for survey in surveys:
            counts, findings = survey.held_against(list(islice(left, len(survey.stretches))))
            audit.topics.extend(counts)
            audit.findings.extend(findings)
            if survey.index is not None:
                for what in dict.fromkeys(survey.index.check()):
                    audit.findings.append(Finding("", what, Kind.INDEX_FILES))
        states = {topic: state for survey in surveys for topic, state in survey.states.items()}
        _compare_archives(states, archives, _by_tasks(spark, _counted_files, files), audit)
        return audit
    raise InvalidRequest(
        f"the audit failed: the log or the index changed during each of {_TRIES} attempts. Audit"
        " fewer topics at once, or run the audit while the broker has less to do"
    )


def _survey(
    address: LogAddress, config: AuditConfig, audit: Audit
) -> tuple[list[Survey], dict[str, RecordedArchive]]:
    """Survey the configured topics and their archives, and add unreadable ones to ``audit``.

    There is a survey for each bundle with topics, in the order of the bundles.

    A topic may be deleted after it was listed. That is an error only for a topic that the
    configuration names.

    Raises:
      NotFound: if a topic that the configuration names does not exist.
    """
    surveys: list[Survey] = []
    archives: dict[str, RecordedArchive] = {}
    with address.connected() as (engine, connection):
        indexes = _indexes(connection, config.index, audit)
        of_bundles = _names(connection, config.topics)
        for bundle_id in sorted(of_bundles.keys() | indexes.keys()):
            names, index = of_bundles.get(bundle_id, []), indexes.get(bundle_id)
            survey = Survey(engine, connection, names, index)
            surveys.append(survey)
            if survey.missing and config.topics:
                raise survey.missing[0]
            for topic, state in survey.states.items():
                try:
                    archives[topic] = RecordedArchive.look(connection, topic, state.record.id)
                except LogDamaged as error:
                    audit.findings.append(Finding(topic, str(error), Kind.ARCHIVE))
    return surveys, archives


def _indexes(connection: Connection, data: str | None, audit: Audit) -> dict[int, IndexCount]:
    """Open the indexes of all bundles in a data directory, and add damaged ones to ``audit``.

    Raises:
      InvalidRequest: if the directory has no index.
    """
    if data is None:
        return {}
    found: dict[int, IndexCount] = {}
    bundles = range(bundle_count(connection))
    there = [one for one in bundles if index_directory(Path(data), one).is_dir()]
    for bundle_id in there or [0]:
        try:
            found[bundle_id] = IndexCount.open(Path(data), bundle_id)
        except IndexDamaged as error:
            audit.findings.append(Finding("", str(error), Kind.INDEX_FILES))
    return found


def _compare_archives(
    states: Mapping[str, TopicState],
    archives: Mapping[str, RecordedArchive],
    files: Sequence[FileCount],
    audit: Audit,
) -> None:
    """Compare the records of each topic's archive with its log and its counted files."""
    counts = {one.topic: one for one in audit.topics}
    of_topic: dict[str, list[FileCount]] = {}
    for one in files:
        of_topic.setdefault(one.topic, []).append(one)
    for topic, recorded in archives.items():
        state, total = states[topic], counts[topic]
        total.archived, total.forgotten = len(recorded.archived), recorded.forgotten(state)
        for what in recorded.held_against(state, of_topic.get(topic, [])):
            audit.findings.append(Finding(topic, what, Kind.ARCHIVE))


def _recounted(address: LogAddress, stretches: Sequence[Stretch]) -> list[Recount]:
    with closing(address.engine()) as engine:
        return [recount(engine, stretch) for stretch in stretches]


def _counted_files(parts: Sequence[ArchivedPart]) -> list[FileCount]:
    return [count_files(part) for part in parts]


def _by_tasks(
    spark: SparkSession, count: Callable[[Sequence[T]], list[C]], pieces: Sequence[T]
) -> list[C]:
    """Run ``count`` on all pieces in Spark's tasks. Return the results in the order of the pieces.

    A task gets one large piece, or several small ones.
    """
    tasks = group_pieces(pieces, lambda one: one.messages, STRETCH)
    if not tasks:
        return []
    return list(spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(count).collect())


def _names(connection: Connection, wanted: Sequence[str]) -> dict[int, list[TopicName]]:
    """Return the names of the ``wanted`` topics, each once, or of all topics if it is empty.

    They are grouped by bundle. One that does not exist is in the group of bundle 0.
    """
    found: dict[int, list[TopicName]] = {}
    if wanted:
        for name in dict.fromkeys(map(TopicName.parse, wanted)):
            (there,) = elsewhere(connection, [name], 0).values() or (0,)
            found.setdefault(there, []).append(name)
    else:
        for name, record in read_named(connection):
            found.setdefault(record.bundle_id, []).append(name)
    return found
