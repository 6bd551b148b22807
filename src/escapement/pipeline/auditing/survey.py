"""The survey of an audit: the states of some topics and the index, read at one time.

A survey cuts the topics' logs into *stretches*, which are recounted one by one, in any process
(pipeline/auditing/recount.py). Then it compares the results with the states and with the index, and
returns the contradictions as *findings*.

A broker may run meanwhile. Its changes do not disturb the survey, which compares everything with
the states read at the start. The caller surveys again if ``is_unsettled``, because a checkpoint
has replaced the index while the states were read, or if a stretch was ``forgotten``.

This module does not use Spark. `escapement check` uses it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from escapement.errors import IndexDamaged, LogDamaged, NotFound
from escapement.names import TopicName
from escapement.pipeline.auditing.finding import Finding, Kind
from escapement.pipeline.auditing.index_count import IndexCount
from escapement.pipeline.auditing.recount import Digest, Needs, Recount, Stretch, first_generation
from escapement.pipeline.selection import END, Span
from escapement.pipeline.source.message_status import MessageStatuses
from escapement.pipeline.source.part import Moved, stated_again
from escapement.storage.catalog.catalog import find_topic
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index.keys import Keys
from escapement.storage.log.log import Log
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.topic_state import TopicState, read_topics

# The maximum of messages in a stretch: some seconds of work for a task.
STRETCH: Final = 1_000_000
# The stretches whose keys are read from the index at once. They need at most some 500 MB.
_STRETCHES_AT_ONCE: Final = 8
_TOPICS_AT_ONCE: Final = 100


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


class Survey:
    """The states of topics and the index, as they are at the start of an audit.

    Attributes:
      index: the index of the bundle to which the topics belong; None for none.
      states: by the full names of the topics. Topics that were deleted meanwhile are left out.
      ends: for each topic whose log has rows beyond its end in the catalog, the end of its log, by
        the id of the topic. The states have this end too.
      missing: an error for each topic that does not exist.
      stretches: the logs of these topics in pieces, topic after topic.
      is_unsettled: whether the index has changed meanwhile, so that the survey is invalid.
      is_stale: whether a broker would discard the index, because it does not fit the log.
    """

    def __init__(
        self,
        engine: Engine,
        connection: Connection,
        names: Sequence[TopicName],
        index: IndexCount | None,
    ) -> None:
        self.index = index
        self._findings: list[Finding] = []
        self.states: dict[str, TopicState] = {}
        self.missing: list[NotFound] = []
        self.is_stale = False
        self.ends: dict[int, int] = {}
        ends = _ends(connection, names)  # read before the states, which may have later messages
        for name, state in zip(names, _states(engine, connection, names), strict=True):
            if isinstance(state, NotFound):
                self.missing.append(state)
            elif isinstance(state, LogDamaged):
                self._note(name.full, str(state), Kind.STATE)
            else:
                self.states[name.full] = state
                self._end(state, ends.get(state.record.id, 0))
        bases = self._unindexed(connection)
        self.is_unsettled = index is not None and not index.unchanged()
        self.stretches: list[Stretch] = []
        until_ms = 0 if index is None else index.forgotten_until_ms
        for topic, state in self.states.items():
            self.stretches += _cut(topic, state, *bases.get(state.record.id, ([], [])), until_ms)

    def _end(self, state: TopicState, end: int) -> None:
        """Report a log with rows beyond the end that the catalog and the journal name."""
        if end > state.end_offset:
            text = (
                f"the log has messages up to offset {end - 1}, but the catalog says that the next"
                f" message gets offset {state.end_offset}"
            )
            self._note(state.name, text, Kind.TOPIC_END)
            self.ends[state.record.id] = state.end_offset = end

    def _unindexed(self, connection: Connection) -> dict[int, tuple[list[Span], list[int]]]:
        """Return the log rows that the index does not have yet, by topic id.

        For each topic there is a list with the offset ranges of rows that first state messages, and
        a list with the keys of rows that restate messages.
        """
        found: dict[int, tuple[list[Span], list[int]]] = {}
        if self.index is None:
            return found
        try:
            rows = self.index.unindexed(connection)
        except LogDamaged:
            if self.index.unchanged():
                raise
            return found  # a checkpoint has deleted journal entries, so the audit starts again
        self.is_stale = rows is None
        if rows is None:
            self._note(
                "",
                "the index does not fit the log: the broker rebuilds it at its next start",
                Kind.STALE_INDEX,
            )
        for key in rows or ():
            spans, bases = found.setdefault(key.topic_id, ([], []))
            if key.base_offset < 0:
                bases.append(key.base_offset)
            else:
                spans.append(Span(key.base_offset, key.base_offset + key.message_count))
        return found

    def held_against(self, counted: Sequence[Recount]) -> tuple[list[TopicCount], list[Finding]]:
        """Compare the recounts with the states and with the index.

        Args:
          counted: a result for each of ``stretches``.

        Returns:
          The counts of each topic, and all findings.
        """
        for topic, state in self.states.items():
            self._cursors(topic, state)
            self._lost(topic, state)
        counts = {
            topic: TopicCount(topic, messages=len(stated_again(state, 0, state.begin_offset)))
            for topic, state in self.states.items()
        }
        for stretch, found in zip(self.stretches, counted, strict=True):
            total = counts[stretch.topic]
            total.rows += found.rows
            total.messages += found.messages
            total.pending += found.needed.count
            for kind, what in found.findings:
                self._note(stretch.topic, what, kind)
        if self.index is not None and not self.is_stale:
            pairs = zip(self.stretches, counted, strict=True)
            for topic, of_topic in groupby(pairs, lambda pair: pair[0].topic):
                self._compare(self.index, list(of_topic), counts[topic])
        return list(counts.values()), self._findings

    def _compare(
        self, index: IndexCount, counted: Sequence[tuple[Stretch, Recount]], total: TopicCount
    ) -> None:
        """Compare the stretches of one topic with the index."""
        state = self.states[total.topic]
        behind = index.end_offset(state.record.id) - state.end_offset
        if behind > 0:
            self._note(
                total.topic,
                f"the index has messages up to {behind:,} offsets beyond the end of the log",
                Kind.INDEX,
            )
        for first in range(0, len(counted), _STRETCHES_AT_ONCE):
            some = counted[first : first + _STRETCHES_AT_ONCE]
            span = Span(some[0][0].offsets.low, some[-1][0].offsets.high)
            try:
                keys = self._keys(index, state, span)
            except IndexDamaged:
                return  # ``IndexCount.check`` reports it
            for stretch, found in some:
                self._indexed(stretch, found, keys, total)

    def _keys(self, index: IndexCount, state: TopicState, span: Span) -> Keys:
        """Return the index's keys of a topic, in arrival order, without stale keys.

        A key is a due time and an offset. It is stale if the message has another due time now.
        """
        due_ms, offsets = index.keys(state.record.id, span)
        stale = state.moves.stale(due_ms, offsets)
        if stale is not None:
            due_ms, offsets = due_ms[~stale], offsets[~stale]
        order = np.argsort(offsets, kind="stable")
        return due_ms[order], offsets[order]

    def _indexed(self, stretch: Stretch, found: Recount, keys: Keys, total: TopicCount) -> None:
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
                stretch.topic,
                f"in offsets {span.low} to {span.high - 1}, the index has {has_not}",
                Kind.INDEX,
            )

    def _cursors(self, topic: str, state: TopicState) -> None:
        """Report offsets beyond the log's end, and attempts at messages that the log lacks."""
        end = state.end_offset
        for what, offsets in (
            ("cancelled", state.cancelled),
            *((f"acknowledged by {one.record.name}", one.acked) for one in state.subscriptions),
            *((f"expired in {one.record.name}", one.lapsed) for one in state.subscriptions),
        ):
            behind = len(offsets) - offsets.count_below(end)
            if behind:
                text = f"{behind:,} offsets beyond the end of the log are {what}"
                self._note(topic, text, Kind.CURSORS)
        for one in state.subscriptions:
            behind = len(one.tried) - int(one.tried.searchsorted(end))
            if behind:
                text = (
                    f"{behind:,} offsets beyond the end of the log have attempts by"
                    f" {one.record.name}"
                )
                self._note(topic, text, Kind.RETRIES)
            gone = one.tried[one.tried < state.begin_offset]
            gone = gone[~state.moves.contains(gone) & ~state.cancelled.contains(gone)]
            if len(gone):
                text = (
                    f"{len(gone):,} messages, the first at offset {gone[0]}, have attempts by"
                    f" {one.record.name}, and are no longer in the log"
                )
                self._note(topic, text, Kind.RETRIES)
        behind = len(state.moves.between(end, END))
        if behind:
            text = f"{behind:,} offsets beyond the end of the log are rescheduled"
            self._note(topic, text, Kind.RESCHEDULED)

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
                    Kind.LOG_ORDER,
                )

    def _note(self, topic: str, what: str, kind: Kind) -> None:
        finding = Finding(topic, what, kind)
        if finding not in self._findings:
            self._findings.append(finding)


def _ends(connection: Connection, names: Sequence[TopicName]) -> dict[int, int]:
    """Return where the log of each topic ends, by its rows and by the id of the topic."""
    ids = []
    for name in names:
        with suppress(NotFound):
            ids.append(find_topic(connection, name).id)

    def look(log: Log) -> dict[int, int]:
        return {id: log.end_offset(connection, id) for id in ids}

    return Log.reading(connection, look) if ids else {}


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
    topic: str,
    state: TopicState,
    spans: Sequence[Span],
    bases: Sequence[int],
    forgotten_until_ms: int,
) -> list[Stretch]:
    """Cut all offsets of a topic into stretches. The first one starts at offset 0.

    Args:
      spans: the offset ranges of log rows that the index does not have yet.
      bases: the keys of restating rows that the index does not have yet.
      forgotten_until_ms: the time up to which the index may lack finished messages.
    """
    unindexed = OffsetSet()
    for span in spans:
        unindexed.add_range(span.low, span.high)
    moved = state.moves.between(0, state.end_offset)
    unindexed.add(moved[np.isin(state.moves.bases(moved), bases)])
    # Few messages from before the log's beginning are still in the log, in restating rows. All of
    # them go to the first stretch.
    bounds = [0, *range(state.begin_offset + STRETCH, state.end_offset, STRETCH)]
    found = []
    for low, high in zip(bounds, [*bounds[1:], state.end_offset], strict=True):
        if low == high:
            continue
        needs = Needs(
            MessageStatuses.of(state, None, low, high),
            unindexed.part(low, high),
            forgotten_until_ms,
        )
        found.append(
            Stretch(
                topic,
                state.record.id,
                state.record.bundle_id,
                Span(low, high),
                state.begin_offset,
                first_generation(state.log),
                Moved.of(state, state.moves.between(low, high)),
                needs,
            )
        )
    return found
