"""The audit of one *stretch*, a range of offsets of a topic's log; runs in a task.

A row of the log *first states* the messages of one commit. A later row *restates* messages that
were rescheduled, or relocated so that the log can forget their first row. A *head* is a row's key
and its columns with times, without its data.

The driver cuts stretches out of one state of the topic (storage/state/topic_state.py). The rows of
a stretch must follow each other without gap or overlap and be intact, and their heads must match
their data. A rescheduled message must be in the row that restates it. The task computes a digest of
the messages that an index must have. The digest does not depend on their order, so the driver can
compare it with an index without receiving the keys. Each contradiction is a *finding*, as text.

The task does not lock rows. If the log meanwhile drops its oldest *generation*, a set of tables,
the driver repeats the audit. This module does not use Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from escapement.errors import LogDamaged, NotFound, StorageError
from escapement.message import Bools, Int64s
from escapement.names import TopicName
from escapement.pipeline.auditing.finding import Kind
from escapement.pipeline.selection import Span
from escapement.pipeline.source.message_status import MessageStatuses
from escapement.pipeline.source.part import Moved
from escapement.storage.catalog.catalog import find_topic
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow, RowHead
from escapement.storage.offsets import OffsetSet

_STEP_BYTES: Final = 8 << 20
# The number of heads that are read before the data of their rows.
_HEADS_AT_ONCE: Final = 256
# The assumed maximum difference between the database's clock and a broker's clock.
_CLOCKS_APART_MS: Final = 60_000
# The maximum of findings for one stretch; further ones are dropped.
_MOST_FINDINGS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """The data that determines which messages of a stretch an index must have."""

    statuses: MessageStatuses
    unindexed: OffsetSet  # messages in rows that the index does not have yet
    # The index may lack finished messages that were due by this time. It may lie in the future, if
    # the wall clock was set back.
    forgotten_until_ms: int = 0

    def of(self, due_ms: Int64s, offsets: Int64s) -> Bools:
        """Return a mask of the messages that an index must have; bool[n].

        An index must have the messages that a shared subscription covers and has not acknowledged,
        except messages that the subscription is still to read from the log. It must also have
        messages that are not due, because a new subscription may need them, unless every shared
        subscription has acknowledged them. It need not have cancelled messages.

        Args:
          due_ms: the current due times.
        """
        shared = [one for one in self.statuses.subscriptions if one.record.kind == "shared"]
        open_to = np.full(len(offsets), not shared)
        needed = np.zeros(len(offsets), bool)
        for one in shared:
            left = ~one.acked.contains(offsets)
            open_to |= left
            left &= one.covers(due_ms, offsets)
            left &= (offsets < one.record.fill_from) | (offsets >= one.record.fill_until)
            needed |= left
        due_by_ms = max(self.statuses.now_ms + _CLOCKS_APART_MS, self.forgotten_until_ms)
        needed |= (due_ms > due_by_ms) & open_to
        needed &= ~self.statuses.cancelled.contains(offsets)
        needed &= ~self.unindexed.contains(offsets)
        return needed


@dataclass(slots=True)
class Digest:
    """A count of keys and the sum of their hashes. A key is a due time and an offset.

    Two sets of keys with the same digest are the same, in all probability.
    """

    count: int = 0
    sum: int = 0

    def add(self, due_ms: Int64s, offsets: Int64s) -> None:
        """Add keys, in any order. No key may be added twice."""
        mixed = due_ms.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= offsets.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        # The finalizer of splitmix64 (Steele, Lea, Flood 2014).
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        self.count += len(offsets)
        self.sum = (self.sum + int(mixed.sum(dtype=np.uint64))) & ((1 << 64) - 1)

    def __iadd__(self, other: Digest) -> Digest:
        self.count += other.count
        self.sum = (self.sum + other.sum) & ((1 << 64) - 1)
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """A range of a topic's offsets, with the topic's state at the start of the audit."""

    topic: str
    topic_id: int
    bundle_id: int
    offsets: Span
    begin_offset: int  # the beginning of the topic's log
    generation: int  # the oldest generation of the log
    moved: Moved  # the rescheduled and relocated messages
    needs: Needs

    @property
    def messages(self) -> int:
        """An upper bound of the number of messages that the log has in the stretch."""
        there = self.offsets.high - max(self.offsets.low, self.begin_offset)
        return max(there, 0) + len(self.moved.offsets)


@dataclass(slots=True)
class Recount:
    """The result of auditing one stretch."""

    rows: int = 0  # rows that begin in the stretch, without restating rows
    messages: int = 0  # messages of the stretch in these rows
    needed: Digest = field(default_factory=Digest)  # of the messages that an index must have
    forgotten: bool = False  # whether rows vanished meanwhile, so that this result is invalid
    findings: list[tuple[Kind, str]] = field(default_factory=list)

    def note(self, kind: Kind, what: str) -> None:
        """Add a finding, or drop it if there are ``_MOST_FINDINGS`` already."""
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append((kind, what))


def recount(engine: Engine, stretch: Stretch) -> Recount:
    """Audit a stretch; blocking.

    Raises:
      StorageUnavailable: if the database cannot be reached.
    """
    with closing(engine.connect()) as connection:
        log = Log.look(connection, stretch.bundle_id)
        found = Recount()
        found.forgotten = first_generation(log) != stretch.generation
        if found.forgotten:
            return found
        try:
            _rows(log, connection, stretch, found)
            _moved(log, connection, stretch, found)
        except LogDamaged as error:
            found.note(Kind.LOG_ROWS, str(error))
        except StorageError as error:
            # The error may mean that the table of a generation was dropped.
            if type(error) is not StorageError:
                raise
            if first_generation(Log.look(connection, stretch.bundle_id)) == stretch.generation:
                raise
            found.forgotten = True
        # If the log dropped a generation meanwhile, or frees the rows of the topic because it was
        # deleted, the findings may only show its missing rows.
        if found.findings and (
            first_generation(Log.look(connection, stretch.bundle_id)) != stretch.generation
            or not _exists(connection, stretch)
        ):
            found.forgotten = True
        return found


def first_generation(log: Log) -> int:
    """Return the id of the log's oldest generation, or -1 if the log has no generation."""
    return log.generations[0].id if log.generations else -1


def _exists(connection: Connection, stretch: Stretch) -> bool:
    """Return whether the topic of the stretch has not been deleted."""
    try:
        return find_topic(connection, TopicName.parse(stretch.topic)).id == stretch.topic_id
    except NotFound:
        return False


def _rows(log: Log, connection: Connection, stretch: Stretch, found: Recount) -> None:
    """Check the rows that first state the messages of a stretch: their sequence and content."""
    at = max(stretch.offsets.low, stretch.begin_offset)
    end = stretch.offsets.high
    some: list[RowHead] = []
    first = True
    for head in log.heads(connection, stretch.topic_id, at, end) if at < end else ():
        base = head.key.base_offset
        if base > at:
            found.note(Kind.LOG_ORDER, f"offsets {at} to {base - 1} are not in the log")
        elif base < at and not first:
            found.note(Kind.LOG_ORDER, f"offsets {base} to {at - 1} are in the log twice")
        first = False
        at = max(at, base + head.key.message_count)
        some.append(head)
        if len(some) == _HEADS_AT_ONCE:
            _contents(log, connection, stretch, some, found)
            some = []
    _contents(log, connection, stretch, some, found)
    if at < end:
        found.note(Kind.LOG_ORDER, f"offsets {at} to {end - 1} are not in the log")


def _contents(
    log: Log, connection: Connection, stretch: Stretch, heads: Sequence[RowHead], found: Recount
) -> None:
    """Read the data of these rows and check it against their heads."""
    by_key = {head.key: head for head in heads}
    try:
        for rows in log.fetch(connection, list(by_key), _STEP_BYTES):
            for row in rows:
                _content(row, by_key[row.key], stretch, found)
                del by_key[row.key]
    except LogDamaged as error:
        if len(by_key) == 1:
            found.note(Kind.LOG_ROWS, str(error))
            return
        for head in by_key.values():
            _contents(log, connection, stretch, [head], found)
        return
    if by_key:
        found.forgotten = True  # rows vanish one by one while their topic is deleted


def _content(row: LogRow, head: RowHead, stretch: Stretch, found: Recount) -> None:
    span, due_ms, offsets = stretch.offsets, row.content.due_ms, row.offsets
    bounds = (int(due_ms.min()), int(due_ms.max()), row.content.accepted_at_ms)
    if bounds != head[1:]:
        found.note(
            Kind.LOG_ROWS,
            f"the row at offset {row.key.base_offset} has other times in its data than in its"
            " columns",
        )
    row.content.batch()
    inside = (offsets >= span.low) & (offsets < span.high)
    # A row that spans two stretches is counted where it begins.
    found.rows += int(row.key.base_offset >= span.low)
    found.messages += int(inside.sum())
    moved = np.isin(offsets, stretch.moved.offsets)
    plain = inside & ~moved
    due_ms, offsets = due_ms[plain], offsets[plain]
    needed = stretch.needs.of(due_ms, offsets)
    found.needed.add(due_ms[needed], offsets[needed])


def _moved(log: Log, connection: Connection, stretch: Stretch, found: Recount) -> None:
    """Check rescheduled and relocated messages against the rows that restate them.

    Checks only messages that an index must have: the log may have forgotten the rows of others.
    """
    moved = stretch.moved
    needed = stretch.needs.of(moved.due_ms, moved.offsets)
    found.needed.add(moved.due_ms[needed], moved.offsets[needed])
    offsets, due_ms, bases = moved.offsets[needed], moved.due_ms[needed], moved.bases[needed]
    sought = np.unique(bases)[::-1].tolist()
    said = np.zeros(len(offsets), bool)
    while sought:
        rows, looked = log.restatements(connection, stretch.topic_id, sought, _STEP_BYTES)
        for row in rows:
            theirs = bases == row.key.base_offset
            at = row.offsets.searchsorted(offsets[theirs])
            at = np.minimum(at, len(row.offsets) - 1)
            there = row.offsets[at] == offsets[theirs]
            said[theirs] = there & (row.content.due_ms[at] == due_ms[theirs])
        sought = sought[looked:]
    for offset in offsets[~said][:_MOST_FINDINGS].tolist():
        text = f"no row of the log has the current due time of offset {offset}"
        found.note(Kind.RESCHEDULED, text)
