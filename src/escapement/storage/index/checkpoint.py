"""A checkpoint of the delayed index: writes messages from memory to a new segment file.

New messages are in memory tables. A checkpoint begins when the index *freezes* these tables: they
stay readable and get no more messages. The checkpoint writes their *live* messages, those that may
still be delivered, to one segment. Then it writes a manifest, the file that names all segments.

The work is cut into *groups* of topics, so that the event loop never blocks for long. The caller
iterates over :meth:`Checkpoint.groups` and decides in its own thread which messages of a group are
live. It runs :meth:`Checkpoint.write` and :meth:`Checkpoint.finish` in a thread for blocking calls.
Payloads are gathered some megabytes at a time by numpy, which releases the interpreter lock
meanwhile.

This module knows nothing of acknowledgements: the caller passes a mask that says which messages
are live. It knows nothing of readers either: the index replaces the frozen tables by the segment
when that is durable. The order of the steps is: segment, fsync, manifest, fsync.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from escapement.failpoints import failpoint
from escapement.message import Bools, Int64s, MessageBatch
from escapement.storage.index.columns import Pick, assemble
from escapement.storage.index.keys import unique_sorted
from escapement.storage.index.memory import Generation, MemoryTable
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.due_soon_blocks import DueSoonBlocks
from escapement.storage.index.segments.manifest import (
    Lineage,
    Manifest,
    ManifestFile,
    Position,
    latest,
)
from escapement.storage.index.segments.segment import Segment
from escapement.storage.index.segments.writer import SegmentWriter, writing

# A group ends at about this many messages: the caller takes a millisecond to say which are live.
_GROUP_ROWS: Final = 1 << 16
# A group ends at this many topics even if it has few messages, because each topic takes time too.
_GROUP_TOPICS: Final = 256
# From this size of the frozen memory on, a segment whose messages are mostly due late is written
# past the operating system's page cache.
_MUCH_BYTES: Final = 16 << 20


class Part(NamedTuple):
    """The keys of one memory table. The caller decides which of their messages are live."""

    topic_id: int
    due_ms: Int64s
    offsets: Int64s


@dataclass(frozen=True, slots=True)
class Group:
    """Some topics of a checkpoint, each with all its frozen memory tables."""

    topics: Sequence[tuple[int, Sequence[MemoryTable]]]

    def parts(self) -> list[Part]:
        """Return the keys of each table of the group, at most ``TABLE_ROWS`` in each part."""
        return [
            Part(topic_id, table.due_ms, table.offsets)
            for topic_id, tables in self.topics
            for table in tables
        ]


class _Live:
    """The live messages in the memory tables of one topic.

    They are numbered from 0 across the tables, as if they were the rows of one table.
    """

    def __init__(self, tables: Sequence[MemoryTable], keeps: Sequence[Bools | None]) -> None:
        self._tables = tables
        self._rows = [
            np.arange(table.count) if keep is None else np.flatnonzero(keep)
            for table, keep in zip(tables, keeps, strict=True)
        ]
        self._ends = np.cumsum([len(rows) for rows in self._rows])

    @property
    def count(self) -> int:
        return int(self._ends[-1])

    def write(self, writer: SegmentWriter, topic_id: int) -> None:
        """Write the live messages to a segment in key order, each key once; blocking."""
        parts = list(zip(self._tables, self._rows, strict=True))
        due_ms = np.concatenate([table.due_ms[rows] for table, rows in parts])
        offsets = np.concatenate([table.offsets[rows] for table, rows in parts])
        order, (due_ms, offsets) = unique_sorted(due_ms, offsets)
        message_bytes = sum(table.columns.message_bytes for table in self._tables)
        row_bytes = message_bytes // sum(table.count for table in self._tables)
        for part in writer.steps(len(order), row_bytes):
            writer.append(topic_id, (due_ms[part], offsets[part]), self._take(order[part]))

    def _take(self, numbers: Int64s) -> MessageBatch:
        table_of = self._ends.searchsorted(numbers, "right")
        picks = []
        for number, (table, rows) in enumerate(zip(self._tables, self._rows, strict=True)):
            positions = np.flatnonzero(table_of == number)
            if len(positions):
                first = self._ends[number] - len(rows)
                picks.append(Pick(positions, table.columns, rows[numbers[positions] - first]))
        return assemble(len(numbers), picks)


class Checkpoint:
    """One checkpoint in progress. ``DelayedIndex.begin_checkpoint`` creates it."""

    def __init__(
        self,
        generations: Sequence[Generation],
        path: Path,
        block_rows: int,
        manifest: ManifestFile,
        cache: BlockCache,
        due_soon: DueSoonBlocks,
        far_ms: int,
    ) -> None:
        """Begin to write frozen memory. Only ``DelayedIndex.begin_checkpoint`` calls this.

        Args:
          generations: the frozen memory tables.
          path: where to write the segment.
          due_soon: collects blocks with messages that are due soon, for the block cache.
          far_ms: if most messages of a large memory are due after this time, the segment is
            written past the operating system's page cache.
        """
        self.generations = generations
        self.segment: Segment | None = None
        self.finished = False
        self._path = path
        self._block_rows = block_rows
        self._manifest = manifest
        self._cache = cache
        self._due_soon = due_soon
        self._far_ms = far_ms
        self._writer: SegmentWriter | None = None
        self._named = False

    @property
    def rows(self) -> int:
        """The number of messages in the frozen memory, whether live or not."""
        return sum(generation.rows for generation in self.generations)

    def groups(self) -> Iterator[Group]:
        """Yield the frozen messages as groups of topics. ``write`` takes them in this order."""
        topics: list[tuple[int, Sequence[MemoryTable]]] = []
        rows = 0
        for topic_id in sorted({t for generation in self.generations for t in generation.topics}):
            tables: list[MemoryTable] = []
            for generation in self.generations:
                topic = generation.topics.get(topic_id)  # None if it has no messages of the topic
                tables += topic.tables if topic is not None else []
            if not tables:
                continue
            # Offsets then ascend from table to table too, unless messages were added twice.
            tables.sort(key=_first_offset)
            topics.append((topic_id, tables))
            rows += sum(table.count for table in tables)
            if rows >= _GROUP_ROWS or len(topics) >= _GROUP_TOPICS:
                yield Group(topics)
                topics, rows = [], 0
        if topics:
            yield Group(topics)

    def write(self, group: Group, keeps: Sequence[Bools | None]) -> None:
        """Write the live messages of a group to the segment; blocking.

        Args:
          keeps: for each part of ``group.parts()`` a mask that is true for its live messages, or
            None if all are live.

        Raises:
          StorageError: if writing to the disk fails. Abandon the checkpoint then.
        """
        masks = iter(keeps)
        for topic_id, tables in group.topics:
            live = _Live(tables, [next(masks) for _ in tables])
            if not live.count:
                continue
            with writing(self._path):
                failpoint("checkpoint_write")
                if self._writer is None:
                    self._writer = SegmentWriter(
                        self._path, self._block_rows, bulk=self._is_far(), due_soon=self._due_soon
                    )
                live.write(self._writer, topic_id)
        assert next(masks, None) is None, "one mask for each part"

    def _is_far(self) -> bool:
        """Return whether the frozen memory is large and mostly due after ``far_ms``.

        Most of its messages are then not read for a while.
        """
        if sum(generation.memory_bytes for generation in self.generations) < _MUCH_BYTES:
            return False
        topics = [topic for generation in self.generations for topic in generation.topics.values()]
        tables = [table for topic in topics for table in topic.tables]
        far = sum(int((table.due_ms > self._far_ms).sum()) for table in tables)
        return 2 * far > self.rows

    def finish(
        self,
        log_identity: str,
        positions: Mapping[int, Position],
        lineage: Lineage,
        forgotten_until_ms: int = 0,
        relied_on: Mapping[int, Position] | None = None,
    ) -> None:
        """Make the segment and a manifest that names it durable; blocking.

        If no message was live, there is no segment, and only the manifest is written.

        Args:
          log_identity: the id of the log that the messages come from.
          positions: for each lane (a writer of the log), its position in the journal when the
            checkpoint began.
          lineage: which checkpoint this is, for the manifest.
          forgotten_until_ms: all messages that were not live were due by this time.
          relied_on: for each lane, its position when the last message was found not to be live;
            None if that is ``positions``.

        Raises:
          StorageError: if writing to the disk fails. Abandon the checkpoint then.
        """
        with writing(self._path):
            added = self._finish_segment()
            self._manifest.update(
                lambda old: Manifest(
                    log_identity,
                    dict(positions),
                    {**(old.segments if old else {}), **added},
                    lineage,
                    max(forgotten_until_ms, old.forgotten_until_ms if old else 0),
                    latest(relied_on or positions, old.relied_on if old else {}),
                ),
                self._name,
            )
        self.finished = True

    def _name(self) -> None:
        self._named = True

    def _finish_segment(self) -> dict[str, int]:
        if self._writer is None:
            return {}
        self._writer.finish()
        self.segment = Segment(self._path, self._cache)
        for at, block in self._due_soon.blocks:
            self.segment.remember(at, block)
        return {self._path.name: self.segment.size_bytes}

    def discard(self) -> None:
        """Give up the checkpoint. Delete its segment file unless a manifest on disk may name it."""
        if self._writer is not None and not self._named:
            self._writer.discard()


def _first_offset(table: MemoryTable) -> int:
    return int(table.offsets[0])
