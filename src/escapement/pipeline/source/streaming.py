"""The plan of a streaming read: its start, the end of each batch, and the parts of a batch.

A position in a topic has the next offset to read. To detect data loss, it also has the topic's id,
because the topic may be deleted and created again, and the beginning of the log at the time of
the position. Spark stores positions in its checkpoint, as JSON.

Runs in the driver, or in a Python process beside it. No connection stays open between two calls.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from escapement.errors import EscapementError, LogForgotten, NotFound
from escapement.names import TopicName
from escapement.pipeline import selection
from escapement.pipeline.options import ADDRESS_OPTIONS, Options
from escapement.pipeline.selection import EARLIEST, LATEST, Places, Selection, Span
from escapement.pipeline.source.part import Part, stated_again
from escapement.pipeline.source.planning import ReadPlan
from escapement.storage.engine.base import Connection
from escapement.storage.log.log import Log
from escapement.storage.log.published import Published
from escapement.storage.state.topic_state import TopicState, read_range, read_topics

STREAM_OPTIONS: Final = (
    *ADDRESS_OPTIONS,
    *selection.TOPIC_OPTIONS,
    *selection.SPLIT_OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
)


class Position(NamedTuple):
    """A place in a topic's log, with the data to detect loss."""

    topic_id: int
    next_offset: int
    begin_offset: int


Positions = dict[TopicName, Position]


def to_json(positions: Mapping[TopicName, Position]) -> dict[str, Any]:
    """Return positions as Spark stores them."""
    return {
        topic.full: {"id": at.topic_id, "next": at.next_offset, "begin": at.begin_offset}
        for topic, at in positions.items()
    }


def from_json(kept: Mapping[str, Mapping[str, int]]) -> Positions:
    """Return the positions that ``to_json`` encoded."""
    return {
        TopicName.parse(topic): Position(at["id"], at["next"], at["begin"])
        for topic, at in kept.items()
    }


class StreamPlan(ReadPlan):
    """A streaming read with checked options. Methods read the database."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        """Raises ``InvalidRequest``."""
        super().__init__(options, STREAM_OPTIONS, columns)
        self.most_at_once = options.number("maxOffsetsPerTrigger")
        self._starts = Places(options, "startingOffsets", LATEST)
        self._starts.check(self.topics)
        self._since = options.text("startingTimestamp") is not None
        self._since_ms = selection.times(options).published.low
        self._told: set[str] = set()  # losses that were printed

    def initial(self) -> Positions:
        """Return the start of a new query.

        Raises:
          NotFound: if a topic does not exist.
          LogForgotten: if the log has forgotten the requested offset, unless ``failOnDataLoss``
            is false.
        """
        found: Positions = {}
        with self.address.connected() as (engine, connection):
            for topic, state in self._states(engine, connection):
                found[topic] = self._first(topic, state, connection)
        return found

    def latest(self) -> Positions:
        """Return the current ends of the logs of existing topics.

        Raises:
          NotFound: if a topic does not exist, unless ``failOnDataLoss`` is false.
        """
        found: Positions = {}
        with self.address.connected() as (_, connection):
            for topic in self.topics:
                try:
                    found[topic] = Position(*read_range(connection, topic))
                except NotFound as error:
                    self._lost(f"{error}, or was deleted", NotFound)
        return found

    def reached(self, start: Positions, end: Positions, most: int | None) -> Positions:
        """Return the end of a batch, by the rules of :func:`admit`.

        Raises:
          LogForgotten: if the log ends before ``start``, unless ``failOnDataLoss`` is false. Then
            the stream continues from the end of the log.
        """
        if any(_is_behind(at, start.get(topic)) for topic, at in end.items()):
            # ``end`` may only be older than ``start``, so look at the current end of the log.
            for topic, now in self.latest().items():
                begun = start.get(topic)
                if begun is None or not _is_behind(now, begun):
                    continue
                self._lost(
                    f"the log of {topic.full} ends at {now.next_offset}, but was read up to"
                    f" {begun.next_offset}: the database was restored from an older state"
                )
                start = {**start, topic: now}
        # A deleted topic keeps its position. If it is created again, the new topic has another id.
        gone = {topic: start[topic] for topic in self.topics if topic in start.keys() - end.keys()}
        return admit(start, {**end, **gone}, most)

    def tasks(self, start: Positions, end: Positions) -> list[tuple[Part, ...]]:
        """Return the parts of a batch that each task reads. Raises the errors of :meth:`parts`."""
        return self._tasks(self.parts(start, end))

    def parts(self, start: Positions, end: Positions) -> list[Part]:
        """Return the parts of a batch by the current state of the topics.

        Raises:
          LogForgotten: if the log has forgotten messages of the batch, unless ``failOnDataLoss``
            is false.
          NotFound: if a topic of the batch was deleted, unless ``failOnDataLoss`` is false.
        """
        with self.address.connected() as (engine, connection):
            begun = {
                topic: start.get(topic, at._replace(next_offset=0)) for topic, at in end.items()
            }
            topics = [topic for topic, until in end.items() if begun[topic] != until]
            wanteds: list[tuple[TopicState, Selection]] = []
            states = read_topics(engine, connection, topics)
            for topic, state in zip(topics, states, strict=True):
                since, until = begun[topic], end[topic]
                if isinstance(state, NotFound):
                    self._lost(f"{state}, or was deleted", NotFound)
                    continue
                self._check(topic, since, until, state)
                if state.record.id != until.topic_id:
                    continue
                if since.topic_id != until.topic_id:
                    since = until._replace(next_offset=0)
                wanteds.append((state, Selection(Span(since.next_offset, until.next_offset))))
        return self._cut(wanteds)

    def _first(self, topic: TopicName, state: TopicState, connection: Connection) -> Position:
        place = self._starts.of(topic)
        if self._since and self._since_ms <= 0:
            place = EARLIEST
        elif self._since:
            place = Log.reading(
                connection, lambda log: _published_since(state, log, connection, self._since_ms)
            )
        if place == EARLIEST:
            earlier = stated_again(state, 0, state.begin_offset)
            place = int(earlier[0]) if len(earlier) else state.begin_offset
        elif place == LATEST:
            place = state.end_offset
        elif not self._since and int(place) < state.begin_offset:
            self._lost(
                f"the log of {topic.full} begins at {state.begin_offset}, not at {place}: it has"
                " forgotten finished messages before that, and a stream does not read archives."
                " Start at earliest, and read archived messages once as a batch"
            )
        return Position(state.record.id, min(int(place), state.end_offset), state.begin_offset)

    def _check(self, topic: TopicName, since: Position, until: Position, state: TopicState) -> None:
        """Check a batch for lost messages. Raises ``LogForgotten``."""
        if not since.topic_id == until.topic_id == state.record.id:
            self._lost(f"topic {topic.full} was deleted and created again since the last read")
            return
        known = max(since.next_offset, since.begin_offset)
        if known < min(state.begin_offset, until.next_offset):
            self._lost(
                f"the log of {topic.full} begins at {state.begin_offset}, not at"
                f" {since.next_offset}, up to which it was read: it has forgotten the finished"
                " messages between. If they are archived, read them once as a batch"
                " (startingOffsets, endingOffsets). For slow queries, set a longer retention of"
                " the namespace"
            )

    def _lost(self, what: str, kind: type[EscapementError] = LogForgotten) -> None:
        """Raise an error about a loss, or print it once if ``failOnDataLoss`` is false."""
        if self._fail_on_loss:
            raise kind(f"{what}. To continue despite the loss, set failOnDataLoss to false")
        if what not in self._told:
            self._told.add(what)
            print(f"escapement: {what}. The query continues despite the loss", file=sys.stderr)


def _published_since(state: TopicState, log: Log, connection: Connection, since_ms: int) -> int:
    """Return the first offset published at ``since_ms`` or later; a binary search.

    If the wall clock was set back, the result has the limits of ``Log.first_accepted``.
    """
    at = (connection, state.record.id)
    first = log.first_accepted(*at, since_ms, state.end_offset)
    if first > state.begin_offset:
        return first
    # All rows in the log match. Earlier messages that only restating rows have may match, too.
    earlier = stated_again(state, 0, state.begin_offset)
    low, high = 0, len(earlier)
    while low < high:
        middle = (low + high) // 2
        one = earlier[middle : middle + 1]
        rows, _ = log.restatements(*at, state.moves.bases(one).tolist(), 0)
        found = [Published.of(row).of_these(one).published_ms for row in rows]
        if found and found[0][0] < since_ms:
            low = middle + 1
        else:
            high = middle
    return int(earlier[low]) if low < len(earlier) else first


def _is_behind(at: Position, begun: Position | None) -> bool:
    """Return whether ``at`` is before ``begun`` in the same topic."""
    return (
        begun is not None and begun.topic_id == at.topic_id and begun.next_offset > at.next_offset
    )


def admit(start: Positions, latest: Positions, most: int | None) -> Positions:
    """Return the end of a batch with at most ``most`` messages, distributed by :func:`_shared`.

    The position of a topic without new messages does not change, even if the log has forgotten
    messages meanwhile. Otherwise there would be batches without messages.
    """
    ahead: dict[TopicName, int] = {}
    for topic, end in latest.items():
        begun = start.get(topic)
        same = begun is not None and begun.topic_id == end.topic_id
        ahead[topic] = max(end.next_offset - (begun.next_offset if begun and same else 0), 0)
    shares = _shared(ahead, sum(ahead.values()) if most is None else most)
    reached: Positions = {}
    for topic, end in latest.items():
        begun = start.get(topic)
        if begun is not None and begun.topic_id == end.topic_id:
            reached[topic] = begun
            if shares[topic]:
                reached[topic] = end._replace(next_offset=begun.next_offset + shares[topic])
        else:
            reached[topic] = end._replace(next_offset=shares[topic])
    return reached


def _shared(ahead: Mapping[TopicName, int], most: int) -> dict[TopicName, int]:
    """Distribute ``most`` messages over topics, in proportion to their unread messages.

    Each topic with unread messages gets at least one while there are enough. So a topic with few
    messages is read before the backlog of the others is.
    """
    shares: dict[TopicName, int] = {}
    left, waiting = most, sum(ahead.values())
    # The smallest topics come first. The remainder is divided among the other topics, so that no
    # message is lost by rounding.
    for topic, new in sorted(ahead.items(), key=lambda one: one[1]):
        shares[topic] = new if left >= waiting else min(new, left, max(left * new // waiting, 1))
        waiting -= new
        left -= shares[topic]
    return shares
