"""The audit of one stretch of a topic's log, row by row; runs in a task.

The driver cuts stretches out of one state of the topic (storage/state/topic_state.py). The rows of
a stretch must follow each other without gap or overlap and be intact, and their columns must match
their data. A rescheduled message must be in the row that restates it. The task counts the
messages that an index must have and computes a digest of them. The digest does not depend on
their order, so the driver can compare an index with it without transferring keys.

This module does not use Spark. Rows are not locked: a recount is repeated if the log forgets rows
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from escapement.errors import LogDamaged, StorageError
from escapement.message import Bools, Int64s
from escapement.pipeline.selection import Span
from escapement.pipeline.source.message_status import MessageStatuses
from escapement.pipeline.source.part import Moved
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow, RowHead
from escapement.storage.offsets import OffsetSet

_STEP_BYTES: Final = 8 << 20
# How many heads of rows are read before their data.
_HEADS_AT_ONCE: Final = 256
# The assumed maximum difference between the database's clock and a broker's clock.
_CLOCKS_APART_MS: Final = 60_000
# The maximum of findings for one stretch; further ones are dropped.
_MOST_FINDINGS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """The rules for which messages of a stretch an index must have."""

    statuses: MessageStatuses
    unindexed: OffsetSet  # from rows that the index does not have yet

    def of(self, due_ms: Int64s, offsets: Int64s) -> Bools:
        """Return a mask of the messages that an index must have; bool[n].

        ``due_ms`` has the current due times. An index must have the messages that a shared
        subscription covers and has not acknowledged. It must also have messages that are not due,
        because a new subscription may still need them, unless every shared subscription has
        acknowledged them. Messages that a subscription fills in from the log are not needed.
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
        needed |= (due_ms > self.statuses.now_ms + _CLOCKS_APART_MS) & open_to
        needed &= ~self.statuses.cancelled.contains(offsets)
        needed &= ~self.unindexed.contains(offsets)
        return needed


@dataclass(slots=True)
class Digest:
    """A count of keys, and a sum over their hashes, which detects exchanged keys."""

    count: int = 0
    sum: int = 0

    def add(self, due_ms: Int64s, offsets: Int64s) -> None:
        """Add keys, each once, in any order."""
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
    """The messages ``offsets`` of a topic, whose log began at ``begin_offset``.

    ``generation`` is the first generation of the log.
    """

    topic: str
    topic_id: int
    offsets: Span
    begin_offset: int
    generation: int
    moved: Moved
    needs: Needs

    @property
    def messages(self) -> int:
        """An upper bound of its messages."""
        there = self.offsets.high - max(self.offsets.low, self.begin_offset)
        return max(there, 0) + len(self.moved.offsets)


@dataclass(slots=True)
class Recount:
    """The result for one stretch. It is invalid if the log has ``forgotten`` rows meanwhile."""

    rows: int = 0
    messages: int = 0
    needed: Digest = field(default_factory=Digest)
    forgotten: bool = False
    findings: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        """Add a finding, up to a maximum."""
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(what)


def recount(engine: Engine, stretch: Stretch) -> Recount:
    """Audit a stretch; blocking.

    Raises:
      StorageUnavailable: if the database cannot be reached.
    """
    with closing(engine.connect()) as connection:
        log = Log.look(connection)
        found = Recount()
        found.forgotten = first_generation(log) != stretch.generation
        if found.forgotten:
            return found
        try:
            _rows(log, connection, stretch, found)
            _moved(log, connection, stretch, found)
        except LogDamaged as error:
            found.note(str(error))
        except StorageError as error:
            # The error may mean that the table of a generation was dropped.
            if type(error) is not StorageError:
                raise
            if first_generation(Log.look(connection)) == stretch.generation:
                raise
            found.forgotten = True
        # Rows vanish before their generation does, and when a topic is deleted.
        if found.findings and first_generation(Log.look(connection)) != stretch.generation:
            found.forgotten = True
        return found


def first_generation(log: Log) -> int:
    """Return the id of the oldest generation, or -1 if there are none."""
    return log.generations[0].id if log.generations else -1


def _rows(log: Log, connection: Connection, stretch: Stretch, found: Recount) -> None:
    """Check the rows that first stated these messages."""
    at = max(stretch.offsets.low, stretch.begin_offset)
    end = stretch.offsets.high
    some: list[RowHead] = []
    first = True
    for head in log.heads(connection, stretch.topic_id, at, end) if at < end else ():
        base = head.key.base_offset
        if base > at:
            found.note(f"offsets {at} to {base - 1} are not in the log")
        elif base < at and not first:
            found.note(f"offsets {base} to {at - 1} are in the log twice")
        first = False
        at = max(at, base + head.key.message_count)
        some.append(head)
        if len(some) == _HEADS_AT_ONCE:
            _contents(log, connection, stretch, some, found)
            some = []
    _contents(log, connection, stretch, some, found)
    if at < end:
        found.note(f"offsets {at} to {end - 1} are not in the log")


def _contents(
    log: Log, connection: Connection, stretch: Stretch, heads: Sequence[RowHead], found: Recount
) -> None:
    """Check the data of some rows against their heads."""
    by_key = {head.key: head for head in heads}
    try:
        for rows in log.fetch(connection, list(by_key), _STEP_BYTES):
            for row in rows:
                _content(row, by_key[row.key], stretch, found)
                del by_key[row.key]
    except LogDamaged as error:
        if len(by_key) == 1:
            found.note(str(error))
            return
        for head in by_key.values():
            _contents(log, connection, stretch, [head], found)
        return
    if by_key:
        found.forgotten = True  # a topic's deletion takes its rows one by one


def _content(row: LogRow, head: RowHead, stretch: Stretch, found: Recount) -> None:
    span, due_ms, offsets = stretch.offsets, row.content.due_ms, row.offsets
    bounds = (int(due_ms.min()), int(due_ms.max()), row.content.accepted_at_ms)
    if bounds != head[1:]:
        found.note(
            f"the row at offset {row.key.base_offset} has other times in its data than in its"
            " columns"
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

    Only messages that an index must have are checked: the rows of others may be gone.
    """
    moved = stretch.moved
    needed = stretch.needs.of(moved.due_ms, moved.offsets)
    found.needed.add(moved.due_ms[needed], moved.offsets[needed])
    offsets, due_ms, bases = moved.offsets[needed], moved.due_ms[needed], moved.bases[needed]
    sought = np.unique(bases)[::-1].tolist()
    said = bases == 0  # from a state older than restating rows, so there is no row to check
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
        found.note(f"no row of the log has the current due time of offset {offset}")
