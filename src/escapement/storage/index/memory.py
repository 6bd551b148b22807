"""The part of the index in memory: tables of one topic's messages, sorted on demand.

This is the young end of the LSM tree. A :class:`MemoryTable` takes messages of one topic in
ascending offsets, copies their bytes into its arena, and keeps its keys sorted well enough that a
plan costs a few binary searches. A large batch is a table of its own that refers to the batch's
bytes: copying them would take long, mostly because new memory is expensive. A
:class:`TopicMemory` holds a topic's tables: a live stream of commits, and beside it streams of
older offsets that fills from the log bring. A :class:`Generation` holds all topics' tables between
two freezes.

This module knows nothing of files and does no I/O. Invariants:

- rows are only appended, never changed: a reader in another thread sees the rows that existed
  when it got the table;
- offsets ascend strictly inside a table, so row order is offset order and a row number stands
  for an offset in comparisons;
- a table never has more than ``TABLE_ROWS`` rows, so a row number fits 16 bits.

A message arrives here in the synchronous step after its COMMIT, and leaves when a checkpoint has
put it into a segment.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.storage.index.columns import GrowingColumns, Pick, pinned_bytes
from escapement.storage.index.sorted_run import ROW_BITS, SortedRun

TABLE_ROWS: Final = 1 << ROW_BITS
# The payloads of a full table. Large, so that a lookup searches few tables; small enough that
# doubling the arena (a copy on the event loop) takes about a millisecond.
TABLE_BYTES: Final = 8 << 20
# The payloads of a batch that becomes a table of its own. A few hundred such batches fill the
# memory, which bounds the tables that a lookup searches.
KEPT_BYTES: Final = 256 << 10
_FIRST_ROWS: Final = 2
# Unsorted rows that are sorted separately before they are merged into the rest.
_TAIL_ROWS: Final = 256
# Streams of ascending offsets that are open at once: the live one and a few fills.
_OPEN_TABLES: Final = 4
# The memory of the Python objects of a topic with one table, beside its arrays.
_TOPIC_OVERHEAD_BYTES: Final = 900


class MemoryTable:
    """Messages of one topic in ascending offsets; grows at its end."""

    __slots__ = (
        "_array",
        "_sorted",
        "_tail",
        "columns",
        "count",
        "last_offset",
        "most_traits",
        "pinned_bytes",
        "traits",
    )

    def __init__(self, row_capacity: int, size_bytes: int) -> None:
        capacity = min(max(row_capacity, _FIRST_ROWS), TABLE_ROWS)
        self._array: Int64s = np.empty((2, capacity), np.int64)  # due_ms, offsets
        self.columns = GrowingColumns(capacity, size_bytes)
        self.traits: UInt32s | None = None
        self.most_traits = 0
        self.count = 0
        self.pinned_bytes = 0  # memory kept alive by borrowed bytes, beyond the columns'
        self.last_offset = -1
        self._sorted: SortedRun | None = None
        self._tail: SortedRun | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory of the arrays, unused capacity included."""
        size = self._array.nbytes + self.columns.memory_bytes + self.pinned_bytes
        size += 0 if self.traits is None else self.traits.nbytes
        # The sorted order, eight bytes a row, counts whether it exists or not.
        return size + 8 * int(self._array.shape[1])

    @property
    def due_ms(self) -> Int64s:
        count = self.count  # read first, so that the array has at least that many rows
        return self._array[0, :count]

    @property
    def offsets(self) -> Int64s:
        count = self.count
        return self._array[1, :count]

    @property
    def offset_range(self) -> tuple[int, int]:
        """The first and the last offset."""
        offsets = self.offsets
        return int(offsets[0]), int(offsets[-1])

    def has_room(self, rows: int, size_bytes: int, table_rows: int) -> bool:
        used_bytes = self.columns.payloads.used
        return self.count + rows <= table_rows and used_bytes + size_bytes <= TABLE_BYTES

    def append(
        self,
        offsets: Int64s | int,
        due_ms: Int64s,
        batch: MessageBatch,
        traits: UInt32s | None,
        keep: bool = False,
    ) -> None:
        """Add the batch; ``offsets`` is a column, or the first of contiguous ones.

        With ``keep`` this is the only batch, and the table refers to its bytes without a copy.
        """
        row, rows = self.count, len(due_ms)
        end = row + rows
        if end > self._array.shape[1]:
            self._make_room(end)
        self._array[0, row:end] = due_ms
        if isinstance(offsets, int):
            self.last_offset = last = offsets + rows - 1
            self._array[1, row:end] = offsets if rows == 1 else np.arange(offsets, last + 1)
        else:
            self._array[1, row:end] = offsets
            self.last_offset = int(offsets[-1])
        self.columns.append(row, batch, keep)
        if traits is not None:
            if self.traits is None:
                self.traits = np.zeros(self._array.shape[1], np.uint32)
            self.traits[row:end] = traits
            self.most_traits = max(self.most_traits, int(traits.max()))
        self.count = end  # last, so that a reader in another thread counts only complete rows

    def _make_room(self, rows: int) -> None:
        capacity = min(max(2 * self._array.shape[1], rows), TABLE_ROWS)
        larger = np.empty((2, capacity), np.int64)
        larger[:, : self.count] = self._array[:, : self.count]
        self.columns.make_room(capacity)
        if self.traits is not None:
            traits = np.zeros(capacity, np.uint32)
            traits[: self.count] = self.traits[: self.count]
            self.traits = traits
        self._array = larger

    def runs(self) -> list[SortedRun]:
        """Return all rows in at most two sorted runs; only for the thread that appends.

        Rows added since the last call are sorted separately, and merged into the rest when they
        have become an eighth of it: amortized O(log n) comparisons a row.
        """
        count = self.count
        done = 0 if self._sorted is None else len(self._sorted.packed)
        tail = 0 if self._tail is None else len(self._tail.packed)
        offsets = self.offsets
        if done + tail < count:
            packed = self._array[0, done:count] << ROW_BITS
            packed |= np.arange(done, count)
            packed.sort()
            self._tail = SortedRun(packed, offsets, self.traits)
            if self._sorted is None or count - done > max(_TAIL_ROWS, done >> 3):
                if self._sorted is not None:
                    packed = np.concatenate((self._sorted.packed, packed))
                    packed.sort(kind="stable")  # finds the two runs and merges them
                self._sorted, self._tail = SortedRun(packed, offsets, self.traits), None
        return [run for run in (self._sorted, self._tail) if run is not None]

    def find(self, due_ms: Int64s, offsets: Int64s) -> list[Pick]:
        """Return the places of the given keys found here among the given ones, and their rows.

        Args:
          offsets: all in the table's range.
        """
        own = self.offsets
        own_ms = self.due_ms  # read second, so that it is at least as long
        first = int(own[0])
        if int(own[-1]) - first + 1 == len(own):  # contiguous
            rows = offsets - first
            there = own_ms[rows] == due_ms
        else:
            rows = own.searchsorted(offsets)
            there = (own[rows] == offsets) & (own_ms[rows] == due_ms)
        places = np.flatnonzero(there)
        if not len(places):
            return []
        rows = rows if len(places) == len(rows) else rows[places]
        return [Pick(places, self.columns, rows)]


class TopicMemory:
    """The tables of one topic, separate for each stream of ascending offsets."""

    __slots__ = ("_open", "memory_bytes", "rows", "tables")

    def __init__(self) -> None:
        self.tables: list[MemoryTable] = []
        self._open: list[MemoryTable] = []
        self.memory_bytes = _TOPIC_OVERHEAD_BYTES
        self.rows = 0

    def append(
        self,
        offsets: Int64s | int,
        due_ms: Int64s,
        batch: MessageBatch,
        traits: UInt32s | None,
        table_rows: int,
    ) -> None:
        """Append to the stream that ends nearest before the first offset, or begin a stream."""
        first = offsets if isinstance(offsets, int) else int(offsets[0])
        table: MemoryTable | None = None
        for stream in self._open:
            if stream.last_offset < first and (
                table is None or stream.last_offset > table.last_offset
            ):
                table = stream
        rows, size_bytes = len(due_ms), len(batch.payloads.data)
        if table is not None and not table.has_room(rows, size_bytes, table_rows):
            table.runs()  # sort each full table now, instead of all at the next plan
            self._open.remove(table)
            table = None
        if table is None:
            table = MemoryTable(rows, size_bytes)
            self.tables.append(table)
            self._open.append(table)
            if len(self._open) > _OPEN_TABLES:
                del self._open[0]
            before = 0
        else:
            before = table.memory_bytes
        table.append(offsets, due_ms, batch, traits)
        self.memory_bytes += table.memory_bytes - before
        self.rows += rows

    def keep(
        self, offsets: Int64s | int, due_ms: Int64s, batch: MessageBatch, traits: UInt32s | None
    ) -> bool:
        """Make a table of the batch, unless its bytes are a small part of the memory they pin."""
        columns = (batch.payloads, batch.keys, batch.properties, batch.groups)
        pinned = pinned_bytes(*columns)
        if pinned > 2 * batch.size_bytes:
            return False
        table = MemoryTable(len(due_ms), 0)
        table.append(offsets, due_ms, batch, traits, keep=True)
        table.pinned_bytes = max(pinned - table.columns.message_bytes, 0)
        table.runs()
        self.tables.append(table)
        self.memory_bytes += table.memory_bytes
        self.rows += len(due_ms)
        return True


class Generation:
    """The messages of all topics added between two freezes."""

    def __init__(self, table_rows: int = TABLE_ROWS, kept_bytes: int = KEPT_BYTES) -> None:
        assert table_rows <= TABLE_ROWS
        self._kept_bytes = kept_bytes
        self.topics: dict[int, TopicMemory] = {}
        self._table_rows = table_rows
        self.memory_bytes = 0
        self.rows = 0

    def append(
        self,
        topic_id: int,
        offsets: Int64s | int,
        due_ms: Int64s,
        batch: MessageBatch,
        traits: UInt32s | None = None,
    ) -> None:
        topic = self.topics.get(topic_id)
        if topic is None:
            topic = self.topics[topic_id] = TopicMemory()
            self.memory_bytes += topic.memory_bytes
        before = topic.memory_bytes
        step = self._table_rows
        if len(due_ms) <= step:
            self._append(topic, offsets, due_ms, batch, traits)
        else:
            for low in range(0, len(due_ms), step):
                rows = slice(low, min(low + step, len(due_ms)))
                part = offsets + low if isinstance(offsets, int) else offsets[rows]
                part_traits = None if traits is None else traits[rows]
                some = batch.part(rows.start, rows.stop)
                self._append(topic, part, due_ms[rows], some, part_traits)
        self.memory_bytes += topic.memory_bytes - before
        self.rows += len(due_ms)

    def _append(
        self,
        topic: TopicMemory,
        offsets: Int64s | int,
        due_ms: Int64s,
        batch: MessageBatch,
        traits: UInt32s | None,
    ) -> None:
        large = len(batch.payloads.data) >= self._kept_bytes
        if not (large and topic.keep(offsets, due_ms, batch, traits)):
            topic.append(offsets, due_ms, batch, traits, self._table_rows)

    def drop(self, topic_id: int) -> None:
        topic = self.topics.pop(topic_id, None)
        if topic is not None:
            self.memory_bytes -= topic.memory_bytes
            self.rows -= topic.rows
