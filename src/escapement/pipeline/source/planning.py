"""The plan of a batch read: from the user's options to parts, and to the parts of each task.

A *part* is a range of a topic's offsets (part.py), or some files of an archive
(archived_reading.py). A plan runs in the driver, or in a Python process beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from escapement.errors import LogForgotten, NotFound
from escapement.names import TopicName
from escapement.pipeline import selection
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.selection import EARLIEST, LATEST, Bounds, Selection, Span
from escapement.pipeline.source.archived_reading import ArchivedPart, archived_parts
from escapement.pipeline.source.message_status import MessageStatuses
from escapement.pipeline.source.part import (
    FEWEST_RECORDS,
    MOST_RECORDS,
    STATUS_COLUMNS,
    Part,
    cut,
    parts_of_each,
    stated_again,
)
from escapement.pipeline.task_groups import group_pieces
from escapement.storage import archive_record
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.topic_state import TopicState, read_topics

BATCH_OPTIONS: Final = (
    *ADDRESS_OPTIONS,
    *selection.TOPIC_OPTIONS,
    *selection.TIME_OPTIONS,
    *selection.SPLIT_OPTIONS,
    "startingOffsets",
    "endingOffsets",
    "archived",
)


P = TypeVar("P", Part, Part | ArchivedPart)


class ReadPlan:
    """The base of batch and streaming plans: common options, and division into parts and tasks."""

    def __init__(self, options: Options, known: Iterable[str], columns: Sequence[str]) -> None:
        """Raises ``InvalidRequest`` if an option is not among ``known``, or not valid."""
        options.check(known)
        self.address = LogAddress.of(options)
        self.topics = selection.topics(options)
        self._columns = list(columns)
        self._subscription = options.text("subscription")
        self._min_parts = options.number("minPartitions")
        self._most_records = options.number("maxRecordsPerPartition")
        self._fail_on_loss = options.flag("failOnDataLoss", True)

    def _states(
        self, engine: Engine, connection: Connection
    ) -> Iterator[tuple[TopicName, TopicState]]:
        """Yield each topic to read and its state. Raises ``NotFound`` if a topic does not exist."""
        states = read_topics(engine, connection, self.topics)
        for topic, state in zip(self.topics, states, strict=True):
            if isinstance(state, NotFound):
                raise state
            yield topic, state

    def _cut(
        self, wanteds: Sequence[tuple[TopicState, Selection]], *, with_archives: bool = False
    ) -> list[Part]:
        """Return the parts of the selected messages of each topic.

        Raises:
          NotFound: if a topic does not have the subscription in the options.
        """
        least = parts_of_each(wanteds, self._min_parts)
        return [
            part
            for (state, wanted), count in zip(wanteds, least, strict=True)
            for part in cut(
                state,
                wanted,
                self._columns,
                self._subscription,
                least_parts=count,
                most_records=self._most_records,
                fail_on_loss=self._fail_on_loss,
                with_archives=with_archives,
            )
        ]

    def _tasks(self, parts: Sequence[P]) -> list[tuple[P, ...]]:
        """Return the parts that each task reads.

        A task reads several small parts, unless that would make fewer tasks than ``minPartitions``.
        """
        most = min(self._most_records or MOST_RECORDS, FEWEST_RECORDS)
        together = group_pieces(parts, lambda part: part.messages, most)
        return together if len(together) >= (self._min_parts or 0) else [(part,) for part in parts]


class BatchPlan(ReadPlan):
    """A batch read with checked options. The database is read only when parts are requested."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        """Raises ``InvalidRequest`` if an option is unknown or not valid."""
        super().__init__(options, BATCH_OPTIONS, columns)
        self.selection = selection.times(options)
        self._starts = Bounds(options, "startingOffsets", EARLIEST, empty=LATEST)
        self._ends = Bounds(options, "endingOffsets", LATEST, empty=EARLIEST)
        for bounds in (self._starts, self._ends):
            bounds.check(self.topics)
        self._archived = options.flag("archived", True)

    def tasks(self) -> list[tuple[Part | ArchivedPart, ...]]:
        """Return the parts that each task reads. Raises the errors of :meth:`parts`."""
        return self._tasks(self.parts())

    def parts(self) -> list[Part | ArchivedPart]:
        """Read the current state of the topics, and return the parts that cover the batch.

        Raises:
          NotFound: if a topic or the subscription does not exist.
          LogForgotten: if requested offsets are neither in the log nor archived, unless
            ``failOnDataLoss`` is false.
          StorageUnavailable: if the database cannot be reached.
        """
        found: list[Part | ArchivedPart] = []
        with self.address.connected() as (engine, connection):
            wanteds: list[tuple[TopicState, Selection]] = []
            for topic, state in self._states(engine, connection):
                offsets = self._offsets(connection, topic, state)
                wanteds.append((state, replace(self.selection, offsets=offsets)))
            if self._archived:
                for state, wanted in wanteds:
                    found += self._of_archive(connection, state, wanted)
        return found + self._cut(wanteds, with_archives=self._archived)

    def _of_archive(
        self, connection: Connection, state: TopicState, wanted: Selection
    ) -> list[ArchivedPart]:
        """Return the parts for messages that an archive has and the log has forgotten."""
        earlier = replace(wanted, offsets=wanted.offsets & Span(0, state.begin_offset))
        span, seen = earlier.offsets, None
        if span.low >= span.high:
            return []
        if self._subscription is not None and not STATUS_COLUMNS.isdisjoint(self._columns):
            seen = MessageStatuses.of(
                state, self._subscription, span.low, span.high, forgotten=True
            )
        live = stated_again(state, span.low, span.high)
        return archived_parts(connection, state.name, state.record.id, earlier, live, seen)

    def _offsets(self, connection: Connection, topic: TopicName, state: TopicState) -> Span:
        start, end = self._starts.of(topic), self._ends.of(topic)
        if isinstance(start, int) and self._fail_on_loss and start < state.begin_offset:
            until = end if isinstance(end, int) else state.begin_offset
            self._check_there(connection, topic, state, Span(start, until))
        low = _offset(start, state.end_offset)
        return Span(low, _offset(end, state.end_offset)) & self.selection.offsets

    def _check_there(
        self, connection: Connection, topic: TopicName, state: TopicState, span: Span
    ) -> None:
        """Raise ``LogForgotten`` if an offset in the span is neither in the log nor archived."""
        span &= Span(0, state.begin_offset)
        archived = OffsetSet()
        if self._archived:
            archived = archive_record.archived(connection, state.record.id, span.low, span.high)
        there = stated_again(state, span.low, span.high)
        for offsets in archive_record.lacking(archived, span.low, span.high):
            if not np.isin(offsets, there, assume_unique=True).all():
                raise LogForgotten(
                    f"the log of {topic.full} begins at {state.begin_offset}, not at {span.low}: it"
                    " has forgotten finished messages before that. Start at earliest, or set"
                    " failOnDataLoss to false"
                )


def _offset(bound: int | str, end_offset: int) -> int:
    if isinstance(bound, int):
        return bound
    return 0 if bound == EARLIEST else end_offset
