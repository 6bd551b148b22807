"""The part of the delayed index in memory: tables of one topic's messages, sorted on demand.

These tables are the youngest level of an LSM tree, whose other levels are files. A message is a row
of a table: its key ``(due_ms, offset)``, its payload and other columns, and its *traits*, 32 bits
with its priority and a hash of its message key. A message arrives here in the synchronous step
after its COMMIT, and leaves when a checkpoint has written it to a file.

A :class:`MemoryTable` takes messages of one topic in ascending offsets, copies their bytes, and
keeps its keys in one or two sorted runs, so that a range of keys costs a few binary searches. A
large batch is *kept*: it becomes a table of its own that refers to the bytes of the batch. Copying
them would take long, mostly because new memory is expensive. A :class:`TopicMemory` has the tables
of a topic. Its messages come as several *streams* of ascending offsets: the new messages and, if
messages are read again from the log, older ones. A :class:`Generation` has the tables of all topics
from one checkpoint to the next.

This module knows nothing of files and does no I/O. Invariants:

- rows are only appended, never changed: a reader in another thread sees the rows that existed
  when it got the table;
- offsets ascend strictly inside a table, so row order is offset order and a row number stands
  for an offset in comparisons;
- a table never has more than ``TABLE_ROWS`` rows, so a row number fits into 16 bits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.storage.index.columns import GrowingColumns, Pick, pinned_bytes
from escapement.storage.index.sorted_run import ROW_BITS, SortedRun

TABLE_ROWS: Final = 1 << ROW_BITS
# A table is full when its payloads have this size. It is large, so that a lookup searches few
# tables, but small enough that doubling the column of payloads (a copy on the event loop) takes
# about a millisecond.
TABLE_BYTES: Final = 8 << 20
# A batch is kept as a table of its own if its payloads have at least this size. A few hundred such
# batches fill the memory, which bounds the number of tables that a lookup searches.
KEPT_BYTES: Final = 256 << 10
# A table begins with room for at least this many rows.
_FIRST_ROWS: Final = 2
# New rows are sorted as a run of their own. When there are more than this, and more than an eighth
# of the rows sorted before, they are merged into the sorted run of these.
_TAIL_ROWS: Final = 256
# At most this many tables of a topic may grow at once: one for new messages, the others for streams
# of older messages from the log.
_OPEN_TABLES: Final = 4
# The memory of the Python objects of a topic with one table, beside its arrays.
_TOPIC_OVERHEAD_BYTES: Final = 900


class MemoryTable:
    """Some messages of one topic, as rows in ascending offsets. It grows at its end."""

    __slots__ = (
        "_array",
        "_sorted",
        "_tail",
        "columns",
        "count",
        "counted_bytes",
        "last_offset",
        "most_traits",
        "pinned_bytes",
        "traits",
    )

    def __init__(self, row_capacity: int, size_bytes: int) -> None:
        capacity = min(max(row_capacity, _FIRST_ROWS), TABLE_ROWS)
        # The first row of the array has the due times, the second one the offsets.
        self._array: Int64s = np.empty((2, capacity), np.int64)
        self.columns = GrowingColumns(capacity, size_bytes)
        self.traits: UInt32s | None = None
        self.most_traits = 0
        self.count = 0
        # A kept batch may be a view of a larger buffer. This is the part of it beyond the batch.
        self.pinned_bytes = 0
        self.last_offset = -1
        self.counted_bytes = 0  # the part of ``memory_bytes`` that the topic has counted
        self._sorted: SortedRun | None = None
        self._tail: SortedRun | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory that the table takes, unused capacity included."""
        size = self._array.nbytes + self.columns.memory_bytes + self.pinned_bytes
        size += 0 if self.traits is None else self.traits.nbytes
        # Count the sorted run, eight bytes a row, whether it exists yet or not.
        return size + 8 * int(self._array.shape[1])

    @property
    def due_ms(self) -> Int64s:
        # Another thread may append meanwhile. It changes the count last, so the count is read
        # before the array, which then has at least that many rows.
        count = self.count
        return self._array[0, :count]

    @property
    def offsets(self) -> Int64s:
        count = self.count
        return self._array[1, :count]

    @property
    def offset_range(self) -> tuple[int, int]:
        """The first and the last offset in the table."""
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
        """Add a batch of messages as the next rows.

        Args:
          offsets: the offset of each message; or the first offset, if they are contiguous.
          due_ms: the due time of each message.
          batch: the messages.
          traits: the traits of each message, or None if all are 0.
          keep: refer to the bytes of the batch without a copy. The table must be empty, and no
            other batch may follow.
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
        # Set the count last, so that a reader in another thread sees only complete rows.
        self.count = end

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
        """Return all rows of the table in at most two sorted runs.

        Rows that are not in the large run yet form the small one. When they are more than an eighth
        of the large run, they are merged into it. Only the thread that appends may call this.

        Complexity: amortized O(log n) comparisons for each row.
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
                    packed.sort(kind="stable")  # linear, because it consists of two sorted runs
                self._sorted, self._tail = SortedRun(packed, offsets, self.traits), None
        return [run for run in (self._sorted, self._tail) if run is not None]

    def find(self, due_ms: Int64s, offsets: Int64s) -> list[Pick]:
        """Find messages by key: return the rows of those in this table.

        The positions in the result are indexes of the given keys.

        Args:
          due_ms: the due time of each key.
          offsets: the offset of each key, in the table's ``offset_range``.
        """
        own = self.offsets
        # Another thread may append meanwhile. Read after the offsets, this column is at least as
        # long as they are.
        own_ms = self.due_ms
        first = int(own[0])
        if int(own[-1]) - first + 1 == len(own):  # the table's offsets have no gaps
            rows = offsets - first
            there = own_ms[rows] == due_ms
        else:
            rows = own.searchsorted(offsets)
            there = (own[rows] == offsets) & (own_ms[rows] == due_ms)
        positions = there.nonzero()[0]
        if not len(positions):
            return []
        rows = rows if len(positions) == len(rows) else rows[positions]
        return [Pick(positions, self.columns, rows)]


class TopicMemory:
    """The tables of one topic, at least one for each stream of ascending offsets."""

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
        """Append a batch to the table that ends nearest before it, or to a new table.

        That is the table with the greatest last offset below the first offset of the batch, among
        those that may still grow. A new table begins if there is none, or it is full.
        """
        first = offsets if isinstance(offsets, int) else int(offsets[0])
        table: MemoryTable | None = None
        for stream in self._open:
            if stream.last_offset < first and (
                table is None or stream.last_offset > table.last_offset
            ):
                table = stream
        rows, size_bytes = len(due_ms), len(batch.payloads.data)
        if table is not None and not table.has_room(rows, size_bytes, table_rows):
            table.runs()  # sort each full table now, so that the next read need not sort many
            self._open.remove(table)
            table = None
        if table is None:
            table = MemoryTable(rows, size_bytes)
            self.tables.append(table)
            self._open.append(table)
            if len(self._open) > _OPEN_TABLES:
                del self._open[0]
        table.append(offsets, due_ms, batch, traits)
        self._count(table)
        self.rows += rows

    def _count(self, table: MemoryTable) -> None:
        """Count the memory that a table takes more than before."""
        size_bytes = table.memory_bytes
        self.memory_bytes += size_bytes - table.counted_bytes
        table.counted_bytes = size_bytes

    def keep(
        self, offsets: Int64s | int, due_ms: Int64s, batch: MessageBatch, traits: UInt32s | None
    ) -> bool:
        """Make a new table that refers to the bytes of the batch, and return True.

        Return False, and do nothing, if the bytes belong to buffers of more than twice their size:
        the table would keep all of a buffer in memory.
        """
        columns = (batch.payloads, batch.keys, batch.properties, batch.groups)
        pinned = pinned_bytes(*columns)
        if pinned > 2 * batch.size_bytes:
            return False
        table = MemoryTable(len(due_ms), 0)
        table.append(offsets, due_ms, batch, traits, keep=True)
        table.pinned_bytes = max(pinned - table.columns.message_bytes, 0)
        table.runs()
        self.tables.append(table)
        self._count(table)
        self.rows += len(due_ms)
        return True


class Generation:
    """The tables of all topics with the messages added from one checkpoint to the next."""

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
