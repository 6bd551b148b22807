"""The plan of a streaming read: its start, the end of each batch, and the parts of a batch.

A position in a topic has the next offset to read. It also has two values to detect data loss. One
is the topic's id, because the topic may be deleted and created again. The other is the beginning of
the topic's log when the position was made. Spark stores positions in its checkpoint, as JSON.

A plan runs in the driver, or in a Python process beside it. No connection stays open between two
calls.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from escapement.errors import EscapementError, LogForgotten, NotFound
from escapement.names import TopicName
from escapement.pipeline import selection
from escapement.pipeline.options import ADDRESS_OPTIONS, Options
from escapement.pipeline.selection import EARLIEST, LATEST, Bounds, Selection, Span
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
    """A position in a topic's log, with the values to detect data loss."""

    topic_id: int
    next_offset: int  # the next offset to read
    begin_offset: int  # the beginning of the log when the position was made


Positions = dict[TopicName, Position]


def to_json(positions: Mapping[TopicName, Position]) -> dict[str, Any]:
    """Return positions in the form in which Spark stores them in a checkpoint."""
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
        """Raises ``InvalidRequest`` if an option is unknown or not valid."""
        super().__init__(options, STREAM_OPTIONS, columns)
        self.most_at_once = options.number("maxOffsetsPerTrigger")
        self._starts = Bounds(options, "startingOffsets", LATEST)
        self._starts.check(self.topics)
        self._since = options.text("startingTimestamp") is not None
        self._since_ms = selection.times(options).published.low
        self._told: set[str] = set()  # texts about data loss that were printed

    def initial(self) -> Positions:
        """Return the positions at which a new query starts.

        Raises:
          NotFound: if a topic does not exist.
          LogForgotten: if the log has forgotten the requested offset, unless ``failOnDataLoss`` is
            false.
        """
        found: Positions = {}
        with self.address.connected() as (engine, connection):
            for topic, state in self._states(engine, connection):
                found[topic] = self._first(topic, state, connection)
        return found

    def latest(self) -> Positions:
        """Return the current end of the log of each existing topic.

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
        """Return the positions at which a batch ends, by the rules of :func:`admit`.

        Args:
          start: the positions at which the batch starts.
          end: the ends of the logs.
          most: the maximum of messages in the batch; None for no limit.

        Raises:
          LogForgotten: if the log ends before ``start``, unless ``failOnDataLoss`` is false. Then
            the stream continues from the end of the log.
        """
        if any(_is_behind(at, start.get(topic)) for topic, at in end.items()):
            # An end before the start is not always a loss: ``end`` may have been read before
            # ``start``. So compare with the current ends of the logs.
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
        """Return for each task the parts of the batch that it reads.

        Raises the errors of :meth:`parts`.
        """
        return self._tasks(self.parts(start, end))

    def parts(self, start: Positions, end: Positions) -> list[Part]:
        """Read the current state of the topics, and return the parts that cover a batch.

        Raises:
          LogForgotten: if the log has forgotten messages of the batch, unless ``failOnDataLoss`` is
            false.
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
        start = self._starts.of(topic)
        if self._since and self._since_ms <= 0:
            start = EARLIEST
        elif self._since:
            start = Log.reading(
                connection,
                lambda log: _published_since(state, log, connection, self._since_ms),
                state.record.bundle_id,
            )
        if start == EARLIEST:
            earlier = stated_again(state, 0, state.begin_offset)
            start = int(earlier[0]) if len(earlier) else state.begin_offset
        elif start == LATEST:
            start = state.end_offset
        elif not self._since and int(start) < state.begin_offset:
            self._lost(
                f"the log of {topic.full} begins at {state.begin_offset}, not at {start}: it has"
                " forgotten finished messages before that, and a stream does not read archives."
                " Start at earliest, and read archived messages once as a batch"
            )
        return Position(state.record.id, min(int(start), state.end_offset), state.begin_offset)

    def _check(self, topic: TopicName, since: Position, until: Position, state: TopicState) -> None:
        """Check whether messages of a batch are lost, and raise or print that.

        Raises:
          LogForgotten: if messages are lost, unless ``failOnDataLoss`` is false.
        """
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
        """Raise an error about lost data, or print it once if ``failOnDataLoss`` is false."""
        if self._fail_on_loss:
            raise kind(f"{what}. To continue despite the loss, set failOnDataLoss to false")
        if what not in self._told:
            self._told.add(what)
            print(f"escapement: {what}. The query continues despite the loss", file=sys.stderr)


def _published_since(state: TopicState, log: Log, connection: Connection, since_ms: int) -> int:
    """Return the first offset published at ``since_ms`` or later; a binary search.

    If the broker's clock was set back meanwhile, the result may be later than the first.
    """
    at = (connection, state.record.id)
    first = log.first_accepted(*at, since_ms, state.end_offset)
    if first > state.begin_offset:
        return first
    # All messages from the log's beginning on match. Earlier messages, which only restating rows
    # have, may match too.
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
    """Return whether the position ``at`` is before ``begun`` in the same topic."""
    return (
        begun is not None and begun.topic_id == at.topic_id and begun.next_offset > at.next_offset
    )


def admit(start: Positions, latest: Positions, most: int | None) -> Positions:
    """Return the positions at which a batch of at most ``most`` messages ends.

    :func:`_shared` distributes the messages over the topics. The position of a topic without new
    messages does not change, even if the beginning of its log has. Otherwise there would be batches
    without messages.

    Args:
      start: the positions at which the batch starts.
      latest: the ends of the logs.
      most: the maximum of messages; None for no limit.
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

    If ``most`` allows, each topic with unread messages gets at least one. So a topic with few
    messages does not wait until the backlogs of other topics are read.
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
