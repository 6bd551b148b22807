"""What a stream gives: where it begins, how far it goes with each batch, and its parts.

A position in a topic is the offset to go on from, and with it what is needed to notice loss: the
topic's id, for a topic of that name may be a new one, and where the log began when the position
was noted. Spark keeps positions in its checkpoint, as JSON.

Runs in the driver, or in a Python process beside it. Nothing is kept open between two calls.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from escapement.errors import EscapementError, LogForgotten, NotFound
from escapement.names import TopicName
from escapement.pipeline import selection
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.part import Part, cut, parts_of_each, stated_again
from escapement.pipeline.planning import looking, tasks_of
from escapement.pipeline.selection import EARLIEST, LATEST, Places, Selection, Span
from escapement.storage.engine.base import Connection
from escapement.storage.log.log import Log
from escapement.storage.log.published import Published
from escapement.storage.topicstate import TopicState, read_range, read_topics

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
        self._told: set[str] = set()  # which losses it has warned of

    def initial(self) -> Positions:
        """Where a new query begins.

        Raises:
          NotFound: if a topic does not exist.
          LogForgotten: if the log begins behind the offset asked for.
        """
        found: Positions = {}
        with looking(self.address) as (engine, connection):
            states = read_topics(engine, connection, self.topics)
            for topic, state in zip(self.topics, states, strict=True):
                if isinstance(state, NotFound):
                    raise state
                found[topic] = self._first(topic, state, connection)
        return found

    def latest(self) -> Positions:
        """Where the topics' logs end now, of those that there are.

        Raises:
          NotFound: if one does not exist, unless it is wanted to go on without it.
        """
        found: Positions = {}
        with looking(self.address) as (_, connection):
            for topic in self.topics:
                try:
                    found[topic] = Position(*read_range(connection, topic))
                except NotFound as error:
                    self._lost(f"{error}, or no longer", NotFound)
        return found

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
                self._lost(
                    f"the log of {topic.full} ends at {now.next_offset}, and was read up to"
                    f" {begun.next_offset}: the database was set back"
                )
                start = {**start, topic: now}
        # What was deleted stays where it is: should it be made anew, that has another id.
        gone = {topic: start[topic] for topic in self.topics if topic in start.keys() - end.keys()}
        return admit(start, {**end, **gone}, most)

    def tasks(self, start: Positions, end: Positions) -> list[tuple[Part, ...]]:
        """The parts of a batch that each task reads; raises as :meth:`parts`."""
        return tasks_of(self.parts(start, end), self._min_parts, self._most_records)

    def parts(self, start: Positions, end: Positions) -> list[Part]:
        """The parts of a batch, as the topics stand now.

        Raises:
          LogForgotten: if some of it is in the log no more, unless that is wanted.
          NotFound: if a topic of it is not there any more, unless that is wanted.
        """
        with looking(self.address) as (engine, connection):
            begun = {
                topic: start.get(topic, at._replace(next_offset=0)) for topic, at in end.items()
            }
            topics = [topic for topic, until in end.items() if begun[topic] != until]
            wanteds: list[tuple[TopicState, Selection]] = []
            states = read_topics(engine, connection, topics)
            for topic, state in zip(topics, states, strict=True):
                since, until = begun[topic], end[topic]
                if isinstance(state, NotFound):
                    self._lost(f"{state}, or no longer", NotFound)
                    continue
                self._check(topic, since, until, state)
                if state.record.id != until.topic_id:
                    continue
                if since.topic_id != until.topic_id:
                    since = until._replace(next_offset=0)
                wanteds.append((state, Selection(Span(since.next_offset, until.next_offset))))
        least = parts_of_each(wanteds, self._min_parts)
        return [
            part
            for (state, wanted), count in zip(wanteds, least, strict=True)
            for part in cut(
                state.name,
                state,
                wanted,
                self._columns,
                self._subscription,
                least_parts=count,
                most_records=self._most_records,
                fail_on_loss=self._fail_on_loss,
            )
        ]

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
                f"the log of {topic.full} begins at {state.begin_offset}, not at {place}: what lay"
                " before was done and is forgotten; a stream reads no archives: begin at earliest,"
                " and read what is archived once as a batch"
            )
        return Position(state.record.id, min(int(place), state.end_offset), state.begin_offset)

    def _check(self, topic: TopicName, since: Position, until: Position, state: TopicState) -> None:
        """Whether something of a batch is lost. Raises ``LogForgotten``."""
        if not since.topic_id == until.topic_id == state.record.id:
            self._lost(f"{topic.full} was deleted and made anew since it was read last")
            return
        known = max(since.next_offset, since.begin_offset)
        if known < min(state.begin_offset, until.next_offset):
            self._lost(
                f"the log of {topic.full} begins at {state.begin_offset}, not at"
                f" {since.next_offset}, up to where it was read: what lies between was done and is"
                " forgotten; if it is archived, read it once as a batch (startingOffsets,"
                " endingOffsets); a longer retention of the namespace keeps it for slow queries"
            )

    def _lost(self, what: str, kind: type[EscapementError] = LogForgotten) -> None:
        """Raise it; or say it once, where the query is to go on all the same."""
        if self._fail_on_loss:
            raise kind(f"{what}. To go on without it, set failOnDataLoss to false")
        if what not in self._told:
            self._told.add(what)
            print(f"escapement: {what}; going on without it", file=sys.stderr)


def _published_since(state: TopicState, log: Log, connection: Connection, since_ms: int) -> int:
    """The first message published then or later; halving as ``Log.first_accepted`` does."""
    at = (connection, state.record.id)
    first = log.first_accepted(*at, since_ms, state.end_offset)
    if first > state.begin_offset:
        return first
    # All rows that there are: so there may be more among those that later rows state again.
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
    """Whether it is before the position that was begun at, in the same topic."""
    return (
        begun is not None and begun.topic_id == at.topic_id and begun.next_offset > at.next_offset
    )


def admit(start: Positions, latest: Positions, most: int | None) -> Positions:
    """How far a batch goes: ``most`` messages at most, shared out as :func:`_shared` says.

    Where a topic has nothing new its position stays as it is, whatever the log has forgotten
    meanwhile, so that there is no batch without messages.
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
    """Of each topic in proportion to what is ahead, and one at least while there are enough.

    So a topic with little does not wait until others have been read up.
    """
    shares: dict[TopicName, int] = {}
    left, waiting = most, sum(ahead.values())
    # What is left goes to those that are left, the smallest first: rounding loses nothing.
    for topic, new in sorted(ahead.items(), key=lambda one: one[1]):
        shares[topic] = new if left >= waiting else min(new, left, max(left * new // waiting, 1))
        waiting -= new
        left -= shares[topic]
    return shares
