"""What a stream gives: where it begins, how far it goes with each batch, and its parts.

A position in a topic is the offset to go on from, and with it what is needed to notice loss: the
topic's id, for a topic of that name may be a new one, and where the log began when the position
was noted. Spark keeps positions in its checkpoint, as JSON.

Runs in the driver, or in a Python process beside it. Nothing is kept open between two calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from escapement.errors import LogForgotten
from escapement.names import TopicName
from escapement.pipeline import selection
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.part import Part, cut
from escapement.pipeline.planning import forgotten, looking
from escapement.pipeline.selection import EARLIEST, LATEST, Places, Selection, Span
from escapement.storage.engine.base import Connection
from escapement.storage.topicstate import TopicState, read_range, read_topic

STREAM_OPTIONS: Final = (
    *ADDRESS_OPTIONS,
    *selection.TOPIC_OPTIONS,
    *selection.SPLIT_OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
)


class Position(NamedTuple):
    """A place in a topic's log; see the module's docstring."""

    topic_id: int
    next_offset: int
    begin_offset: int


Positions = dict[TopicName, Position]


def to_json(positions: Mapping[TopicName, Position]) -> dict[str, Any]:
    """As Spark keeps them."""
    return {
        topic.full: {"id": at.topic_id, "next": at.next_offset, "begin": at.begin_offset}
        for topic, at in positions.items()
    }


def from_json(kept: Mapping[str, Mapping[str, int]]) -> Positions:
    """What ``to_json`` gave."""
    return {
        TopicName.parse(topic): Position(at["id"], at["next"], at["begin"])
        for topic, at in kept.items()
    }


class StreamPlan:
    """What a stream was asked for; checked, and nothing looked at yet."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        """Raises ``InvalidRequest``."""
        options.check(STREAM_OPTIONS)
        self.address = LogAddress.of(options)
        self.topics = selection.topics(options)
        self.most_at_once = options.number("maxOffsetsPerTrigger")
        self._columns = list(columns)
        self._subscription = options.text("subscription")
        self._starts = Places(options, "startingOffsets", LATEST)
        self._starts.check(self.topics)
        self._since = options.text("startingTimestamp") is not None
        self._since_ms = selection.times(options).published.low
        self._min_parts = options.number("minPartitions")
        self._most_records = options.number("maxRecordsPerPartition")
        self._fail_on_loss = options.flag("failOnDataLoss", True)

    def initial(self) -> Positions:
        """Where a new query begins.

        Raises:
          NotFound: if a topic does not exist.
          LogForgotten: if the log begins behind the offset asked for.
        """
        with looking(self.address) as (engine, connection):
            return {
                topic: self._first(topic, read_topic(engine, connection, topic), connection)
                for topic in self.topics
            }

    def latest(self) -> Positions:
        """Where the topics' logs end now. Raises ``NotFound``."""
        with looking(self.address) as (_, connection):
            return {topic: Position(*read_range(connection, topic)) for topic in self.topics}

    def reached(self, start: Positions, end: Positions, most: int | None) -> Positions:
        """How far a batch goes, as :func:`admit` says.

        Raises:
          LogForgotten: if the log ends before ``start``, unless that is wanted: then it goes on
            from that end.
        """
        if any(_is_behind(at, start.get(topic)) for topic, at in end.items()):
            # Only where ``end`` was noted before ``start`` does the log end no sooner than that.
            for topic, now in self.latest().items():
                begun = start.get(topic)
                if begun is None or not _is_behind(now, begun):
                    continue
                if self._fail_on_loss:
                    raise LogForgotten(
                        f"the log of {topic.full} ends at {now.next_offset}, and was read up to"
                        f" {begun.next_offset}: the database was set back; begin with a new"
                        " checkpoint, or set failOnDataLoss to false"
                    )
                start = {**start, topic: now}
        return admit(start, end, most)

    def parts(self, start: Positions, end: Positions) -> list[Part]:
        """The parts of a batch, as the topics stand now.

        Raises:
          LogForgotten: if some of it is in the log no more, unless that is wanted.
        """
        found: list[Part] = []
        with looking(self.address) as (engine, connection):
            for topic, until in end.items():
                since = start.get(topic, until._replace(next_offset=0))
                if since == until:
                    continue
                state = read_topic(engine, connection, topic)
                if self._fail_on_loss:
                    _check(topic, since, until, state)
                if state.record.id != until.topic_id:
                    continue
                if since.topic_id != until.topic_id:
                    since = until._replace(next_offset=0)
                found += cut(
                    topic.full,
                    state,
                    Selection(Span(since.next_offset, until.next_offset)),
                    self._columns,
                    self._subscription,
                    min_parts=self._min_parts,
                    most_records=self._most_records,
                    fail_on_loss=self._fail_on_loss,
                )
        return found

    def _first(self, topic: TopicName, state: TopicState, connection: Connection) -> Position:
        place = self._starts.of(topic)
        if self._since and self._since_ms <= 0:
            place = EARLIEST
        elif self._since:
            at = (connection, state.record.id, self._since_ms, state.end_offset)
            place = state.log.first_accepted(*at)
        if place == EARLIEST:
            earlier = state.moves.between(0, state.begin_offset)
            place = int(earlier[0]) if len(earlier) else state.begin_offset
        elif place == LATEST:
            place = state.end_offset
        elif int(place) < state.begin_offset and self._fail_on_loss:
            raise forgotten(topic, int(place), state.begin_offset)
        return Position(state.record.id, min(int(place), state.end_offset), state.begin_offset)


def _is_behind(at: Position, begun: Position | None) -> bool:
    """Whether it is before the position that was begun at, in the same topic."""
    return (
        begun is not None and begun.topic_id == at.topic_id and begun.next_offset > at.next_offset
    )


def _check(topic: TopicName, since: Position, until: Position, state: TopicState) -> None:
    """Raise ``LogForgotten`` if something of a batch is lost."""
    if not since.topic_id == until.topic_id == state.record.id:
        raise LogForgotten(
            f"{topic.full} was deleted and made anew since it was read last: begin with a new"
            " checkpoint, or set failOnDataLoss to false"
        )
    known = max(since.next_offset, since.begin_offset)
    if known < min(state.begin_offset, until.next_offset):
        raise forgotten(topic, since.next_offset, state.begin_offset)


def admit(start: Positions, latest: Positions, most: int | None) -> Positions:
    """How far a batch goes: ``most`` messages at most, of each topic in proportion.

    Where a topic has nothing new its position stays as it is, whatever the log has forgotten
    meanwhile, so that there is no batch without messages.
    """
    ahead: dict[TopicName, int] = {}
    for topic, end in latest.items():
        begun = start.get(topic)
        same = begun is not None and begun.topic_id == end.topic_id
        ahead[topic] = max(end.next_offset - (begun.next_offset if begun and same else 0), 0)
    total = sum(ahead.values())
    reached: Positions = {}
    left, waiting = most if most is not None else total, total
    for topic, end in latest.items():
        begun = start.get(topic)
        # What is left goes to those that are left, in proportion: rounding loses nothing.
        share = ahead[topic] if left >= waiting else left * ahead[topic] // waiting
        waiting -= ahead[topic]
        left -= share
        if begun is not None and begun.topic_id == end.topic_id:
            reached[topic] = begun
            if share:
                reached[topic] = end._replace(next_offset=begun.next_offset + share)
        else:
            reached[topic] = end._replace(next_offset=share)
    return reached
