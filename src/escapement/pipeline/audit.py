"""The job ``audit``: counts log, cursors, index and archive again; says what does not add up.

For each topic one state is read (storage/topicstate.py); its cursors are checked in the driver,
its log in stretches by tasks, row by row (pipeline/recount.py). Where an index is given, each
stretch of it must have the very messages that the log says it needs (pipeline/indexcount.py).
Files of an archive must have what the database says (pipeline/archivecount.py).

A broker may run. What it does meanwhile does not count: all is held against the states. Where
the log has forgotten something under the audit, or a checkpoint has replaced the index while
the states were read, all is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from escapement.errors import IndexDamaged, InvalidRequest, LogDamaged, NotFound
from escapement.names import TopicName
from escapement.pipeline.archivecount import ArchiveClaim, FileCount, count_files
from escapement.pipeline.archived import ArchivedPart
from escapement.pipeline.indexcount import IndexCount
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.part import Moved, stated_again
from escapement.pipeline.planning import looking
from escapement.pipeline.recount import Digest, Needs, Recount, Stretch, first_generation, recount
from escapement.pipeline.selection import END, Span
from escapement.pipeline.shares import shares
from escapement.pipeline.standing import Standing
from escapement.storage.catalog import read_named
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index.keys import Keys
from escapement.storage.offsets import OffsetSet
from escapement.storage.topicstate import TopicState, read_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a task counts: some seconds of work.
_STRETCH: Final = 1_000_000
_TOPICS_AT_ONCE: Final = 100
# Changes under an audit are rare; who meets one each time has another trouble.
_TRIES: Final = 5
_BUNDLE: Final = 0


T = TypeVar("T")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """What to audit.

    Args:
      source: options that say where the log is, as of the data source.
      topics: their names; none: all there are.
      index: the data directory of the broker whose index is to be audited too, on the
        driver's machine.
    """

    source: Mapping[str, str]
    topics: Sequence[str] = ()
    index: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What does not add up; ``topic`` is empty where it is no topic's."""

    topic: str
    what: str


@dataclass(slots=True)
class TopicCount:
    """What was counted of a topic."""

    topic: str
    rows: int = 0  # but for those that state messages again
    messages: int = 0  # in the log, also those that it has only because they were stated again
    pending: int = 0  # that the index must have by now
    indexed: int | None = None  # of these it has; None if none was looked at
    archived: int = 0
    forgotten: int = 0  # neither in the log nor archived


@dataclass(frozen=True, slots=True)
class Audit:
    """What was counted, by topic, and what does not add up: nothing, if all is well."""

    topics: list[TopicCount] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def run(spark: SparkSession, config: AuditConfig) -> Audit:
    """Count everything again; changes nothing.

    Raises:
      InvalidRequest: if it is not said where the log is, or there is no index where it should be.
      NotFound: if there is no such topic.
      StorageUnavailable: when the database cannot be reached.
    """
    options = Options(config.source)
    options.check(ADDRESS_OPTIONS)
    address = LogAddress.of(options)
    for _ in range(_TRIES):
        survey = _Survey(address, config)
        if survey.unsettled:
            continue
        counted = _recounted(spark, address, survey.stretches)
        if not any(one.forgotten for one in counted):
            return survey.held_against(counted, _counted_files(spark, survey.files))
    raise InvalidRequest(
        f"the log or the index changed under the audit, {_TRIES} times: audit fewer topics at"
        " once, or while the broker has less to do"
    )


def _recounted(
    spark: SparkSession, address: LogAddress, stretches: Sequence[Stretch]
) -> list[Recount]:
    """By tasks, of which each gets some stretches, or a large one."""

    def count(some: Sequence[Stretch]) -> list[Recount]:
        engine = address.engine()
        try:
            return [recount(engine, stretch) for stretch in some]
        finally:
            engine.close()

    return _by_tasks(spark, count, shares(stretches, lambda one: one.messages, _STRETCH))


def _counted_files(spark: SparkSession, parts: Sequence[ArchivedPart]) -> list[FileCount]:
    """By tasks, of which each gets some parts, or a large one."""

    def count(some: Sequence[ArchivedPart]) -> list[FileCount]:
        return [count_files(part) for part in some]

    return _by_tasks(spark, count, shares(parts, lambda one: one.messages, _STRETCH))


def _by_tasks(
    spark: SparkSession, count: Callable[[Sequence[T]], list[C]], tasks: Sequence[Sequence[T]]
) -> list[C]:
    """What was counted of each piece, in their order."""
    if not tasks:
        return []
    return list(spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(count).collect())


class _Survey:
    """The states of the topics, and the index that was there while they were read."""

    def __init__(self, address: LogAddress, config: AuditConfig) -> None:
        self._audit = Audit()
        self._states: dict[str, TopicState] = {}  # by the topic's full name
        self._index: IndexCount | None = None
        self._stale = False  # a broker would throw the index away
        self._archives: dict[str, ArchiveClaim] = {}
        self.stretches: list[Stretch] = []
        with looking(address) as (engine, connection):
            try:
                self._index = None if config.index is None else IndexCount.open(Path(config.index))
            except IndexDamaged as error:
                self._note("", str(error))
            names = _names(connection, config.topics)
            for name, state in zip(names, _states(engine, connection, names), strict=True):
                # Of all there were, one may have been deleted meanwhile.
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
            claim = ArchiveClaim.look(connection, topic, state.record.id)
        except LogDamaged as error:
            self._note(topic, str(error))
        else:
            self._archives[topic] = claim

    def _unindexed(self, connection: Connection) -> dict[int, tuple[list[Span], list[int]]]:
        """What the index does not have yet: by topic id, offsets, and keys of restatements."""
        found: dict[int, tuple[list[Span], list[int]]] = {}
        if self._index is None:
            return found
        try:
            rows = self._index.unindexed(connection, _BUNDLE)
        except LogDamaged:
            if self._index.unchanged():
                raise
            return found  # a checkpoint has trimmed the journal: the new index is to be asked
        self._stale = rows is None
        if rows is None:
            self._note("", "the index is not one of this log as it is: the next start rebuilds it")
        for key in rows or ():
            spans, bases = found.setdefault(key.topic_id, ([], []))
            if key.base_offset < 0:
                bases.append(key.base_offset)
            else:
                spans.append(Span(key.base_offset, key.base_offset + key.message_count))
        return found

    @property
    def files(self) -> list[ArchivedPart]:
        """Those of all archives."""
        return [part for claim in self._archives.values() for part in claim.parts]

    def held_against(self, counted: Sequence[Recount], files: Sequence[FileCount]) -> Audit:
        """What was counted, beside the states, the index and the archives."""
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
        for topic, claim in self._archives.items():
            state, total = self._states[topic], counts[topic]
            total.archived, total.forgotten = len(claim.archived), claim.forgotten(state)
            for what in claim.held_against(state, of_topic.get(topic, [])):
                self._note(topic, what)
        if self._index is not None:
            for what in self._index.check():
                self._note("", what)
        keys: dict[str, Keys | None] = {}  # of one topic at a time
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
        """The index's keys of the topic that count, in the order of offsets."""
        assert self._index is not None
        try:
            due_ms, offsets = self._index.keys(stretch.topic_id)
        except IndexDamaged:
            return None  # which is said already
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
            has_not = "other messages, or other times"
            if has.count != found.needed.count:
                has_not = f"{has.count:,} pending messages, the log {found.needed.count:,}"
            span = stretch.offsets
            self._note(
                stretch.topic, f"of offsets {span.low} to {span.high - 1} the index has {has_not}"
            )

    def _cursors(self, topic: str, state: TopicState) -> None:
        """What lies behind the end of the log nobody can have acknowledged, moved or tried."""
        end = state.end_offset
        for what, offsets in (
            ("cancelled", state.cancelled),
            *((f"acknowledged by {one.record.name}", one.acked) for one in state.subscriptions),
        ):
            behind = len(offsets) - offsets.count_below(end)
            if behind:
                self._note(topic, f"{behind:,} offsets are {what} that the log never had")
        for one in state.subscriptions:
            behind = len(one.tried) - int(one.tried.searchsorted(end))
            if behind:
                self._note(topic, f"{behind:,} were tried by {one.record.name}, never in the log")
        behind = len(state.moves.between(end, END))
        if behind:
            self._note(topic, f"{behind:,} offsets were moved that the log never had")

    def _lost(self, topic: str, state: TopicState) -> None:
        """What lies before the log's beginning must be done, or be stated again.

        Of shared subscriptions. What the log had forgotten when one began is not known; it is
        none of what came since.
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
                    f"{len(lost):,} messages, the first at offset {lost[0]}, are in the log no"
                    f" more, and {record.name} has not acknowledged them",
                )

    def _note(self, topic: str, what: str) -> None:
        finding = Finding(topic, what)
        if finding not in self._audit.findings:
            self._audit.findings.append(finding)


def _names(connection: Connection, wanted: Sequence[str]) -> list[TopicName]:
    """The topics named, or all there are."""
    if wanted:
        return list(dict.fromkeys(map(TopicName.parse, wanted)))
    return [name for name, _ in read_named(connection, _BUNDLE)]


def _states(
    engine: Engine, connection: Connection, names: Sequence[TopicName]
) -> Iterator[TopicState | NotFound | LogDamaged]:
    """Many at a time; where one cannot be read, it and those beside it by themselves."""
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
    """The stretches of a topic, the first from 0 on.

    Args:
      spans: the index does not have these offsets yet.
      bases: nor what rows with these keys say.
    """
    unindexed = OffsetSet()
    for span in spans:
        unindexed.add_range(span.low, span.high)
    moved = state.moves.between(0, state.end_offset)
    unindexed.add(moved[np.isin(state.moves.bases(moved), bases)])
    # Before its beginning the log has little: that goes to the first stretch.
    bounds = [0, *range(state.begin_offset + _STRETCH, state.end_offset, _STRETCH)]
    found = []
    for low, high in zip(bounds, [*bounds[1:], state.end_offset], strict=True):
        if low == high:
            continue
        offsets = state.moves.between(low, high)
        due_ms = state.moves.current(offsets, np.zeros(len(offsets), np.int64))
        needs = Needs(Standing.of(state, None, low, high), unindexed.part(low, high))
        found.append(
            Stretch(
                topic,
                state.record.id,
                Span(low, high),
                state.begin_offset,
                first_generation(state.log),
                Moved(offsets.copy(), due_ms, state.moves.bases(offsets)),
                needs,
            )
        )
    return found
