"""A part: a range of a topic's offsets that a task reads, with the state that the task needs.

The driver cuts all parts of a topic out of one state and sends them to the tasks. So all tasks of a
query read the topic as of the same moment, even if a broker changes it meanwhile.

A row of the log *first states* the messages of one commit. A later row *restates* messages that
were rescheduled. It also restates messages that were relocated, so that the log can forget their
first row. The *beginning* of the log is the first offset that the log still has in the row that
first stated it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from escapement.message import Int64s
from escapement.pipeline.selection import Selection, Span
from escapement.pipeline.source.message_status import MessageStatuses
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.topic_state import TopicState

# Default bounds of the number of messages in a part: at most some hundred megabytes of small
# messages, and enough messages to be worth the start of a task.
MOST_RECORDS: Final = 1_000_000
FEWEST_RECORDS: Final = 50_000
# By default, a topic has at most this many parts, unless ``MOST_RECORDS`` requires more.
_PARTS: Final = 8
# Columns that need the state of subscriptions.
STATUS_COLUMNS: Final = frozenset({"state", "attempt"})


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Messages that were rescheduled or relocated, as columns of equal length."""

    offsets: Int64s  # ascending
    due_ms: Int64s  # the current due times
    bases: Int64s  # the key of the row that restated each message last

    @classmethod
    def of(cls, state: TopicState, offsets: Int64s) -> Moved:
        """Return the messages at ``offsets``, all of which were rescheduled or relocated."""
        due_ms = state.moves.current(offsets, np.zeros(len(offsets), np.int64))
        return cls(offsets.copy(), due_ms, state.moves.bases(offsets))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A range of a topic's offsets, with the state of its messages when the query was planned."""

    topic: str
    topic_id: int
    bundle_id: int  # the bundle of the topic, whose generations of the log have the messages
    offsets: Span
    selection: Selection  # the task leaves out messages that are not in this selection
    begin_offset: int  # the beginning of the log; earlier messages are only in restating rows
    moved: Moved  # the messages of the range that were rescheduled or relocated
    statuses: MessageStatuses | None  # None if no column needs states or attempts
    fail_on_loss: bool  # whether it is an error if the log forgets messages of the part meanwhile
    with_archives: bool = False  # whether messages forgotten meanwhile are read from the archive
    # For the archive job: if given, only finished messages that are not in this set are read.
    archived: OffsetSet | None = None

    @property
    def first_stated(self) -> int:
        """The number of the part's messages in rows that first state them."""
        return max(self.offsets.high - max(self.offsets.low, self.begin_offset), 0)

    @property
    def messages(self) -> int:
        """An upper bound of the number of messages that the part yields."""
        return self.first_stated + len(self.moved.offsets)


def parts_of_each(
    states: Sequence[tuple[TopicState, Selection]], together: int | None
) -> list[int | None]:
    """Return the least number of parts for each topic, in proportion to its selected messages.

    Args:
      together: the least number of parts of all topics together. If it is None, the result has None
        for each topic.
    """
    if together is None:
        return [None] * len(states)
    counts = [_stated_first(*one) for one in states]
    return [max(-(-together * count // sum(counts)), 1) if count else 1 for count in counts]


def _stated_first(state: TopicState, selection: Selection) -> int:
    """Return the number of selected messages that the log has in rows that first state them."""
    wanted = selection.offsets & Span(state.begin_offset, state.end_offset)
    return max(wanted.high - wanted.low, 0)


def cut(
    state: TopicState,
    selection: Selection,
    columns: Sequence[str],
    subscription: str | None,
    *,
    least_parts: int | None,
    most_records: int | None,
    fail_on_loss: bool,
    with_archives: bool = False,
) -> list[Part]:
    """Return the parts of the selected messages of one topic, in arrival order.

    Args:
      columns: the names of the columns to read.
      subscription: the subscription whose states and attempts are read; None for the topic's.
      least_parts: the least number of parts, if there are that many messages; None to derive the
        number of parts from the number of messages.
      most_records: the maximum of messages in a part; None for ``MOST_RECORDS``.
      fail_on_loss: as in :class:`Part`.
      with_archives: as in :class:`Part`.

    Raises:
      NotFound: if the subscription does not exist.
    """
    if subscription is not None:
        state.subscription(subscription)
    wanted = selection.offsets & Span(0, state.end_offset)
    earlier = stated_again(state, wanted.low, min(wanted.high, state.begin_offset))
    # Few messages from before the log's beginning are still in the log, in restating rows. All of
    # them go to the first part.
    start = min(max(wanted.low, state.begin_offset), wanted.high)
    if start >= wanted.high and not len(earlier):
        return []
    count = wanted.high - start
    parts = -(-count // (most_records or MOST_RECORDS))
    parts = max(parts, least_parts or min(_PARTS, count // FEWEST_RECORDS))
    parts = max(min(parts, count), 1)  # not more parts than messages
    bounds = np.linspace(start, wanted.high, parts + 1).astype(np.int64).tolist()
    bounds[0], bounds[-1] = wanted.low, wanted.high
    with_statuses = not STATUS_COLUMNS.isdisjoint(columns)
    return [
        Part(
            state.name,
            state.record.id,
            state.record.bundle_id,
            Span(low, high),
            selection,
            state.begin_offset,
            _moved(state, low, high),
            MessageStatuses.of(state, subscription, low, high) if with_statuses else None,
            fail_on_loss,
            with_archives,
        )
        for low, high in pairwise(bounds)
        if low < high
    ]


def cut_unarchived(
    state: TopicState, selection: Selection, archived: OffsetSet, most_records: int
) -> list[Part]:
    """Return parts that cover all finished messages that are not archived, in arrival order.

    Parts may also cover other messages, which the task leaves out.

    Args:
      archived: the offsets that are archived already.
      most_records: the maximum of offsets in a part.
    """
    high = min(selection.offsets.high, state.end_offset)
    first = min(selection.offsets.low, high)
    begin = min(max(state.begin_offset, first), high)
    earlier = stated_again(state, first, begin)
    bounds = [*range(archived.first_missing(begin), high, most_records), high]
    spans = [Span(low, end) for low, end in pairwise(bounds)]
    spans = [span for span in spans if archived.first_missing(span.low) < span.high]
    if len(earlier) and not archived.contains(earlier).all():
        spans.insert(0, Span(first, begin))
    return [
        Part(
            state.name,
            state.record.id,
            state.record.bundle_id,
            span,
            selection,
            state.begin_offset,
            _moved(state, span.low, span.high),
            MessageStatuses.of(state, None, span.low, span.high),
            fail_on_loss=False,
            archived=archived.part(span.low, span.high),
        )
        for span in spans
    ]


def stated_again(state: TopicState, low: int, high: int) -> Int64s:
    """Return the offsets in ``[low, high)`` that the log has in restating rows; ascending.

    The range must lie before the log's beginning.
    """
    offsets = state.moves.between(low, high)
    if not state.first_base:
        return offsets[:0]
    return offsets[state.moves.bases(offsets) <= state.first_base]


def _moved(state: TopicState, low: int, high: int) -> Moved:
    begin = min(max(low, state.begin_offset), high)
    offsets = np.concatenate([stated_again(state, low, begin), state.moves.between(begin, high)])
    return Moved.of(state, offsets)
