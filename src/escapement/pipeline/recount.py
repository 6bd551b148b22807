"""One stretch of a topic's log, counted again row by row: what an audit's task does.

A stretch is cut in the driver out of one state of the topic (storage/topicstate.py). The rows
of its messages must follow each other without gap or overlap, be whole, and say outside of
their data what they say inside; what was moved must be in the row that says so. The messages
that somebody still is to get are counted, with a digest that does not depend on their order,
so that an index can be held against it without sending them anywhere.

No Spark in here. Nothing is locked: what the log forgets meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.errors import LogDamaged, StorageError
from escapement.message import Int64s
from escapement.pipeline.part import Moved
from escapement.pipeline.selection import Span
from escapement.pipeline.standing import Standing
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.log.log import Log
from escapement.storage.log.logtable import LogRow, RowHead
from escapement.storage.offsets import OffsetSet

_STEP_BYTES: Final = 8 << 20
# Heads of rows are looked at in runs of so many, then their data.
_HEADS_AT_ONCE: Final = 256
# What falls due so soon may be due already by a broker's clock.
_CLOCKS_APART_MS: Final = 60_000
# Findings of one stretch: who has more of a kind knows enough.
_MOST_FINDINGS: Final = 20

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Which messages of a stretch an index must have."""

    standing: Standing
    unindexed: OffsetSet  # stated by rows that the index does not have yet

    def of(self, due_ms: Int64s, offsets: Int64s) -> Bools:
        """Of these, under the times that count now; bool[n].

        What a shared subscription is to get and has not acknowledged, and what is not yet due,
        because one may still come. What a subscription fills in from the log is not needed.
        """
        shared = [one for one in self.standing.subscriptions if one.record.kind == "shared"]
        open_to = np.full(len(offsets), not shared)
        needed = np.zeros(len(offsets), bool)
        for one in shared:
            left = ~one.acked.contains(offsets)
            open_to |= left
            left &= one.covers(due_ms, offsets)
            left &= (offsets < one.record.fill_from) | (offsets >= one.record.fill_until)
            needed |= left
        needed |= (due_ms > self.standing.now_ms + _CLOCKS_APART_MS) & open_to
        needed &= ~self.standing.cancelled.contains(offsets)
        needed &= ~self.unindexed.contains(offsets)
        return needed


@dataclass(slots=True)
class Digest:
    """How many keys, and a sum of them in which none can be exchanged for another unseen."""

    count: int = 0
    sum: int = 0

    def add(self, due_ms: Int64s, offsets: Int64s) -> None:
        """Take in keys, each once, in any order."""
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

    The first generation of the log was ``generation``.
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
        """How many it has, at most."""
        there = self.offsets.high - max(self.offsets.low, self.begin_offset)
        return max(there, 0) + len(self.moved.offsets)


@dataclass(slots=True)
class Recount:
    """What was found; it means nothing if the log has ``forgotten`` something meanwhile."""

    topic: str
    offsets: Span
    rows: int = 0
    messages: int = 0
    needed: Digest = field(default_factory=Digest)
    forgotten: bool = False
    findings: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        """Something that does not add up."""
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(what)


def recount(engine: Engine, stretch: Stretch) -> Recount:
    """Count the stretch again; blocking.

    Raises:
      StorageUnavailable: when the database cannot be reached.
    """
    connection = engine.connect()
    try:
        log = Log.look(connection)
        found = Recount(stretch.topic, stretch.offsets)
        found.forgotten = first_generation(log) != stretch.generation
        if found.forgotten:
            return found
        try:
            _rows(log, connection, stretch, found)
            _moved(log, connection, stretch, found)
        except LogDamaged as error:
            found.note(str(error))
        except StorageError as error:
            # Is it a table that is gone, or something else?
            if type(error) is not StorageError:
                raise
            if first_generation(Log.look(connection)) == stretch.generation:
                raise
            found.forgotten = True
        # Rows vanish before their generation does, and a topic's when it is deleted.
        if found.findings and first_generation(Log.look(connection)) != stretch.generation:
            found.forgotten = True
        return found
    finally:
        connection.close()


def first_generation(log: Log) -> int:
    """The id of the oldest generation there is; -1 without any."""
    return log.generations[0].id if log.generations else -1


def _rows(log: Log, connection: Connection, stretch: Stretch, found: Recount) -> None:
    """The rows that first stated these messages."""
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
    """What is in some rows, against what they say of it."""
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
        found.note(f"the row at {row.key.base_offset} has other times in its data than beside it")
    row.content.batch()
    inside = (offsets >= span.low) & (offsets < span.high)
    # A row that reaches over an end is counted where it begins.
    found.rows += int(row.key.base_offset >= span.low)
    found.messages += int(inside.sum())
    moved = np.isin(offsets, stretch.moved.offsets)
    plain = inside & ~moved
    due_ms, offsets = due_ms[plain], offsets[plain]
    needed = stretch.needs.of(due_ms, offsets)
    found.needed.add(due_ms[needed], offsets[needed])


def _moved(log: Log, connection: Connection, stretch: Stretch, found: Recount) -> None:
    """What was moved, against the rows that say so; of what is done these may be gone."""
    moved = stretch.moved
    needed = stretch.needs.of(moved.due_ms, moved.offsets)
    found.needed.add(moved.due_ms[needed], moved.offsets[needed])
    offsets, due_ms, bases = moved.offsets[needed], moved.due_ms[needed], moved.bases[needed]
    sought = np.unique(bases)[::-1].tolist()
    said = bases == 0  # by no row, but a state of before there were such rows
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
        found.note(f"no row of the log says that offset {offset} was moved to its time")
