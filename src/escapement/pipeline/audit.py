"""The job ``audit``: checks log, cursors, delayed index and archive against each other.

The *cursor* of a subscription is the set of messages that it has acknowledged. The *delayed index*
has the pending messages on the local disk of a broker. Each contradiction is a *finding*.

- The driver reads the state of each topic (storage/state/topic_state.py) and checks its cursors.
- Spark's tasks check the log row by row. Each task gets *stretches*, which are ranges of a topic's
  offsets (pipeline/auditing/recount.py).
- If an index is given, it must have in each stretch exactly the messages that the log and the
  cursors require (pipeline/auditing/index_count.py).
- The files of an archive must have exactly the messages that the database records as archived
  (pipeline/auditing/archive_count.py).

A rescheduled message is *restated*: a later row of the log has it again, with its new due time. A
relocated message is restated with an unchanged due time, so that the log can forget its first row.

A broker may run meanwhile. Its changes do not disturb the audit, which compares everything with the
states read at the start. The audit starts again if the log forgets rows that are still to be
checked, or if a checkpoint replaces the index while the states are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from escapement.errors import IndexDamaged, InvalidRequest, LogDamaged, NotFound
from escapement.names import TopicName
from escapement.pipeline.auditing.archive_count import FileCount, RecordedArchive, count_files
from escapement.pipeline.auditing.index_count import IndexCount
from escapement.pipeline.auditing.recount import (
    Digest,
    Needs,
    Recount,
    Stretch,
    first_generation,
    recount,
)
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.selection import END, Span
from escapement.pipeline.source.archived_reading import ArchivedPart
from escapement.pipeline.source.message_status import MessageStatuses
from escapement.pipeline.source.part import Moved, stated_again
from escapement.pipeline.task_groups import group_pieces
from escapement.storage.catalog.catalog import read_named
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index.keys import Keys
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.topic_state import TopicState, read_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The maximum of messages in a stretch, or in several small ones together: some seconds of work for
# a task.
_STRETCH: Final = 1_000_000
_TOPICS_AT_ONCE: Final = 100
# The maximum of attempts at an audit. Changes that force a new attempt are rare.
_TRIES: Final = 5
# The database divides topics into bundles, each with one owner. So far, all topics are in bundle 0.
_BUNDLE: Final = 0


T = TypeVar("T", Stretch, ArchivedPart)
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """The configuration of the job ``audit``.

    Args:
      source: the data source's options for the address of the log.
      topics: names of topics; empty for all topics.
      index: the data directory, on the driver's machine, of a broker whose index is audited too.
    """

    source: Mapping[str, str]
    topics: Sequence[str] = ()
    index: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction that the audit found. ``topic`` is "" if it concerns no single topic."""

    topic: str
    what: str


@dataclass(slots=True)
class TopicCount:
    """The counts of one topic."""

    topic: str
    rows: int = 0  # rows of the log, without those that restate messages
    messages: int = 0  # in the log, including messages that only a restating row has
    pending: int = 0  # messages that an index must have
    indexed: int | None = None  # pending messages that the index has; None without an index
    archived: int = 0  # archived messages
    forgotten: int = 0  # messages that are neither in the log nor archived


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
        survey = _Survey(address, config)
        if survey.unsettled:
            continue
        counted = _by_tasks(spark, partial(_recounted, address), survey.stretches)
        if not any(one.forgotten for one in counted):
            return survey.held_against(counted, _by_tasks(spark, _counted_files, survey.files))
    raise InvalidRequest(
        f"the audit failed: the log or the index changed during each of {_TRIES} attempts. Audit"
        " fewer topics at once, or run the audit while the broker has less to do"
    )


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
    tasks = group_pieces(pieces, lambda one: one.messages, _STRETCH)
    if not tasks:
        return []
    return list(spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(count).collect())


class _Survey:
    """The topics' states and the index, as they are at the start of an attempt at the audit."""

    def __init__(self, address: LogAddress, config: AuditConfig) -> None:
        self._audit = Audit()
        self._states: dict[str, TopicState] = {}  # by the topic's full name
        self._index: IndexCount | None = None
        self._stale = False  # whether a broker would discard the index
        self._archives: dict[str, RecordedArchive] = {}
        self.stretches: list[Stretch] = []
        with address.connected() as (engine, connection):
            try:
                self._index = None if config.index is None else IndexCount.open(Path(config.index))
            except IndexDamaged as error:
                self._note("", str(error))
            names = _names(connection, config.topics)
            for name, state in zip(names, _states(engine, connection, names), strict=True):
                # A topic may be deleted after it was listed. That is an error only for a topic that
                # the configuration names.
                if isinstance(state, NotFound) and config.topics:
                    raise state
                if isinstance(state, TopicState):
                    self._states[name.full] = state
                    self._look_at_archive(connection, name.full, state)
                elif isinstance(state, LogDamaged):
                    self._note(name.full, str(state))
            bases = self._unindexed(connection)
        self.unsettled = self._index is not None and not self._index.unchanged()
        for topic, state in self._states.items():
            self.stretches += _cut(topic, state, *bases.get(state.record.id, ([], [])))

    def _look_at_archive(self, connection: Connection, topic: str, state: TopicState) -> None:
        try:
            recorded = RecordedArchive.look(connection, topic, state.record.id)
        except LogDamaged as error:
            self._note(topic, str(error))
        else:
            self._archives[topic] = recorded

    def _unindexed(self, connection: Connection) -> dict[int, tuple[list[Span], list[int]]]:
        """Return the log rows that the index does not have yet, by topic id.

        For each topic there is a list with the offset ranges of rows that first state messages, and
        a list with the keys of rows that restate messages.
        """
        found: dict[int, tuple[list[Span], list[int]]] = {}
        if self._index is None:
            return found
        try:
            rows = self._index.unindexed(connection, _BUNDLE)
        except LogDamaged:
            if self._index.unchanged():
                raise
            return found  # a checkpoint has deleted journal entries, so the audit starts again
        self._stale = rows is None
        if rows is None:
            self._note(
                "", "the index does not fit the log: the broker rebuilds it at its next start"
            )
        for key in rows or ():
            spans, bases = found.setdefault(key.topic_id, ([], []))
            if key.base_offset < 0:
                bases.append(key.base_offset)
            else:
                spans.append(Span(key.base_offset, key.base_offset + key.message_count))
        return found

    @property
    def files(self) -> list[ArchivedPart]:
        """The archive files of all topics, in parts for Spark's tasks."""
        return [part for recorded in self._archives.values() for part in recorded.parts]

    def held_against(self, counted: Sequence[Recount], files: Sequence[FileCount]) -> Audit:
        """Compare the results of the tasks with the states, the index and the archive records.

        Args:
          counted: a result for each of ``stretches``.
          files: a result for each of ``files``.
        """
        compared = self._index is not None and not self._stale
        for topic, state in self._states.items():
            self._cursors(topic, state)
            self._lost(topic, state)
        counts = {
            topic: TopicCount(topic, messages=len(stated_again(state, 0, state.begin_offset)))
            for topic, state in self._states.items()
        }
        of_topic: dict[str, list[FileCount]] = {}
        for one in files:
            of_topic.setdefault(one.topic, []).append(one)
        for topic, recorded in self._archives.items():
            state, total = self._states[topic], counts[topic]
            total.archived, total.forgotten = len(recorded.archived), recorded.forgotten(state)
            for what in recorded.held_against(state, of_topic.get(topic, [])):
                self._note(topic, what)
        if self._index is not None:
            for what in self._index.check():
                self._note("", what)
        keys: dict[str, Keys | None] = {}  # the index's keys, of one topic at a time to save memory
        for stretch, found in zip(self.stretches, counted, strict=True):
            total = counts[stretch.topic]
            total.rows += found.rows
            total.messages += found.messages
            total.pending += found.needed.count
            for what in found.findings:
                self._note(stretch.topic, what)
            if compared:
                if stretch.topic not in keys:
                    keys = {stretch.topic: self._keys(stretch)}
                self._indexed(stretch, found, keys[stretch.topic], total)
        self._audit.topics.extend(counts.values())
        return self._audit

    def _keys(self, stretch: Stretch) -> Keys | None:
        """Return the index's keys of a stretch's topic, in arrival order, without stale keys.

        A key is a due time and an offset. It is stale if the message has another due time now.
        Returns None if the index is damaged, which ``IndexCount.check`` reports.
        """
        assert self._index is not None
        try:
            due_ms, offsets = self._index.keys(stretch.topic_id)
        except IndexDamaged:
            return None
        stale = self._states[stretch.topic].moves.stale(due_ms, offsets)
        if stale is not None:
            due_ms, offsets = due_ms[~stale], offsets[~stale]
        order = np.argsort(offsets, kind="stable")
        return due_ms[order], offsets[order]

    def _indexed(
        self, stretch: Stretch, found: Recount, keys: Keys | None, total: TopicCount
    ) -> None:
        if keys is None:
            return
        low, high = keys[1].searchsorted([stretch.offsets.low, stretch.offsets.high]).tolist()
        due_ms, offsets = keys[0][low:high], keys[1][low:high]
        needed = stretch.needs.of(due_ms, offsets)
        has = Digest()
        has.add(due_ms[needed], offsets[needed])
        total.indexed = (total.indexed or 0) + has.count
        if has != found.needed:
            has_not = "other pending messages or due times than the log"
            if has.count != found.needed.count:
                has_not = f"{has.count:,} pending messages, the log {found.needed.count:,}"
            span = stretch.offsets
            self._note(
                stretch.topic, f"in offsets {span.low} to {span.high - 1}, the index has {has_not}"
            )

    def _cursors(self, topic: str, state: TopicState) -> None:
        """Report offsets beyond the log's end that are acknowledged, cancelled, moved or tried."""
        end = state.end_offset
        for what, offsets in (
            ("cancelled", state.cancelled),
            *((f"acknowledged by {one.record.name}", one.acked) for one in state.subscriptions),
        ):
            behind = len(offsets) - offsets.count_below(end)
            if behind:
                self._note(topic, f"{behind:,} offsets beyond the end of the log are {what}")
        for one in state.subscriptions:
            behind = len(one.tried) - int(one.tried.searchsorted(end))
            if behind:
                self._note(
                    topic,
                    f"{behind:,} offsets beyond the end of the log have attempts by"
                    f" {one.record.name}",
                )
        behind = len(state.moves.between(end, END))
        if behind:
            self._note(topic, f"{behind:,} offsets beyond the end of the log are rescheduled")

    def _lost(self, topic: str, state: TopicState) -> None:
        """Report messages that the log forgot before a shared subscription acknowledged them.

        Every message from before the log's beginning must be acknowledged, cancelled or restated.
        Messages from before the subscription's start are not checked, nor are those in the range of
        the log that it must read again for messages that were due before it was created.
        """
        for one in state.subscriptions:
            record = one.record
            since = max(record.start_offset, record.fill_until)
            if record.kind != "shared" or since >= state.begin_offset:
                continue
            lost = one.acked.missing(since, state.begin_offset)
            lost = lost[~state.cancelled.contains(lost) & ~state.moves.contains(lost)]
            if len(lost):
                self._note(
                    topic,
                    f"{len(lost):,} messages, the first at offset {lost[0]}, are no longer in the"
                    f" log, but subscription {record.name} has not acknowledged them",
                )

    def _note(self, topic: str, what: str) -> None:
        finding = Finding(topic, what)
        if finding not in self._audit.findings:
            self._audit.findings.append(finding)


def _names(connection: Connection, wanted: Sequence[str]) -> list[TopicName]:
    """Return the names of the ``wanted`` topics, each once, or of all topics if it is empty."""
    if wanted:
        return list(dict.fromkeys(map(TopicName.parse, wanted)))
    return [name for name, _ in read_named(connection, _BUNDLE)]


def _states(
    engine: Engine, connection: Connection, names: Sequence[TopicName]
) -> Iterator[TopicState | NotFound | LogDamaged]:
    """Yield the state of each topic in order, or the error that reading the state raises.

    Topics are read in groups. If a state in a group is damaged, they are read one by one.
    """
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        some = names[first : first + _TOPICS_AT_ONCE]
        try:
            yield from list(read_topics(engine, connection, some))
        except LogDamaged:
            for name in some:
                try:
                    yield from read_topics(engine, connection, [name])
                except LogDamaged as error:
                    yield error


def _cut(
    topic: str, state: TopicState, spans: Sequence[Span], bases: Sequence[int]
) -> list[Stretch]:
    """Cut all offsets of a topic into stretches. The first one starts at offset 0.

    Args:
      spans: the offset ranges of log rows that the index does not have yet.
      bases: the keys of restating rows that the index does not have yet.
    """
    unindexed = OffsetSet()
    for span in spans:
        unindexed.add_range(span.low, span.high)
    moved = state.moves.between(0, state.end_offset)
    unindexed.add(moved[np.isin(state.moves.bases(moved), bases)])
    # Few messages from before the log's beginning are still in the log, in restating rows. All of
    # them go to the first stretch.
    bounds = [0, *range(state.begin_offset + _STRETCH, state.end_offset, _STRETCH)]
    found = []
    for low, high in zip(bounds, [*bounds[1:], state.end_offset], strict=True):
        if low == high:
            continue
        needs = Needs(MessageStatuses.of(state, None, low, high), unindexed.part(low, high))
        found.append(
            Stretch(
                topic,
                state.record.id,
                Span(low, high),
                state.begin_offset,
                first_generation(state.log),
                Moved.of(state, state.moves.between(low, high)),
                needs,
            )
        )
    return found
