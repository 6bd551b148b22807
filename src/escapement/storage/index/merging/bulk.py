"""Many messages of any topics, added in any order and sorted when they are written.

This is for building an index from a log. Messages are not read before they are in a segment, so
one unsorted table of any size is enough, where the memory of a live index is many small tables
that are always sorted. The memory of the table is reused for the next segment.

This module holds columns of keys and strings in order of arrival, and the rows of each topic. It
does not know which messages are live: the caller adds only messages to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from escapement.message import (
    DEFAULT_PRIORITY,
    Blobs,
    Int64s,
    MessageBatch,
    UInt8s,
    UInt32s,
    gather,
)
from escapement.storage.index.keys import unique_sorted
from escapement.storage.index.segments.writer import SegmentWriter

# The memory of a row: its key, and the start and length of its payload.
_ROW_BYTES: Final = 8 + 8 + 8 + 4


class BulkTable:
    """Messages that become one segment; used in cycles of ``add``, ``write`` and ``clear``.

    Rows are numbered in order of arrival. The address space is reserved at once, and memory is
    taken as it is used.
    """

    def __init__(self, size_bytes: int) -> None:
        """``size_bytes`` bounds the content, except that a first batch may be larger."""
        self.count = 0
        self.used_bytes = 0
        self._size_bytes = size_bytes
        self._capacity = max(size_bytes // _ROW_BYTES, 1)
        self._due_ms: Int64s = np.empty(self._capacity, np.int64)
        self._offsets: Int64s = np.empty(self._capacity, np.int64)
        self._payloads = _Strings(self._capacity, size_bytes)
        self._keys: _Strings | None = None
        self._properties: _Strings | None = None
        self._groups: _Strings | None = None
        self._priorities: UInt8s | None = None
        self._ranges: dict[int, list[slice]] = {}  # rows of ascending offsets, by topic id

    def has_room(self, rows: int, size_bytes: int) -> bool:
        """Whether this many more messages of this total size fit; an empty table takes any."""
        size_bytes += self.used_bytes + rows * _ROW_BYTES
        return not self.count or size_bytes <= self._size_bytes

    def add(
        self, topic_id: int, offsets: Int64s | int, due_ms: Int64s, batch: MessageBatch
    ) -> None:
        """Add the batch; ``offsets`` is a column, or the first of contiguous ones. O(bytes)."""
        row, rows = self.count, len(due_ms)
        if not rows:
            return
        end = row + rows
        if end > self._capacity:
            self._make_room(end)
        self._due_ms[row:end] = due_ms
        if isinstance(offsets, int):
            self._offsets[row:end] = np.arange(offsets, offsets + rows)
        else:
            self._offsets[row:end] = offsets
        self._payloads.append(row, batch.payloads)
        self._keys = self._append(self._keys, row, batch.keys)
        self._properties = self._append(self._properties, row, batch.properties)
        self._groups = self._append(self._groups, row, batch.groups)
        if batch.priorities is not None:
            if self._priorities is None:
                self._priorities = np.full(self._capacity, DEFAULT_PRIORITY, np.uint8)
            self._priorities[row:end] = batch.priorities
        ranges = self._ranges.setdefault(topic_id, [])
        goes_on = ranges and ranges[-1].stop == row and self._offsets[row - 1] < self._offsets[row]
        if goes_on:
            ranges[-1] = slice(ranges[-1].start, end)
        else:
            ranges.append(slice(row, end))
        self.count = end
        self.used_bytes += rows * _ROW_BYTES + batch.size_bytes

    def write(self, writer: SegmentWriter) -> None:
        """Write everything, each topic in the order of its keys, each key once; blocking."""
        for strings in self._strings():
            strings.find_starts(self.count)
        for topic_id in sorted(self._ranges):
            # Sorting is faster if offsets ascend.
            parts = sorted(self._ranges[topic_id], key=lambda part: self._offsets[part.start])
            due_ms, offsets = _joined(self._due_ms, parts), _joined(self._offsets, parts)
            rows, (due_ms, offsets) = unique_sorted(due_ms, offsets)
            if len(parts) == 1:
                rows += parts[0].start
            else:
                rows = np.concatenate([np.arange(part.start, part.stop) for part in parts])[rows]
            for step in writer.steps(len(rows), self._mean_bytes(parts)):
                writer.append(topic_id, (due_ms[step], offsets[step]), self._take(rows[step]))

    def clear(self) -> None:
        """Remove all rows."""
        self.count = self.used_bytes = 0
        self._payloads.used = 0
        # Rows without a value must be empty in these columns, as in new ones.
        self._keys = self._properties = self._groups = None
        self._priorities = None
        self._ranges.clear()

    def _take(self, rows: Int64s) -> MessageBatch:
        priorities = self._priorities
        return MessageBatch(
            self._payloads.take(rows),
            _gathered(self._keys, rows),
            _gathered(self._properties, rows),
            None if priorities is None else priorities[rows],
            _gathered(self._groups, rows),
        )

    def _mean_bytes(self, parts: Sequence[slice]) -> int:
        """Return the mean size of the strings of these rows."""
        lengths = [strings.lengths[part] for strings in self._strings() for part in parts]
        rows: int = sum(part.stop - part.start for part in parts)
        return sum(int(some.sum(dtype=np.int64)) for some in lengths) // rows

    def _strings(self) -> list[_Strings]:
        columns = self._payloads, self._keys, self._properties, self._groups
        return [strings for strings in columns if strings is not None]

    def _append(self, strings: _Strings | None, row: int, blobs: Blobs | None) -> _Strings | None:
        if blobs is not None:
            if strings is None:
                strings = _Strings(self._capacity, 0)
            strings.append(row, blobs)
        return strings

    def _make_room(self, rows: int) -> None:
        self._capacity = rows
        self._due_ms = np.resize(self._due_ms, rows)
        self._offsets = np.resize(self._offsets, rows)
        for strings in self._strings():
            strings.make_room(rows)
        if self._priorities is not None:
            grown = np.full(rows, DEFAULT_PRIORITY, np.uint8)
            grown[: len(self._priorities)] = self._priorities
            self._priorities = grown


class _Strings:
    """A column of byte strings, end to end in the order of their rows.

    The start of each follows from the lengths; ``find_starts`` computes all starts at once.
    """

    __slots__ = ("_bytes", "_starts", "lengths", "used")

    def __init__(self, row_capacity: int, size_bytes: int) -> None:
        self._bytes: UInt8s = np.empty(size_bytes, np.uint8)
        self._starts: Int64s = np.empty(row_capacity, np.int64)
        self.lengths: UInt32s = np.zeros(row_capacity, np.uint32)
        self.used = 0

    def append(self, row: int, blobs: Blobs) -> None:
        """Store the strings from ``row`` on; rows that are skipped have empty strings."""
        end = self.used + len(blobs.data)
        if end > len(self._bytes):
            larger = np.empty(max(2 * len(self._bytes), end), np.uint8)
            larger[: self.used] = self._bytes[: self.used]
            self._bytes = larger
        # A copy by numpy releases the interpreter lock, and a memoryview's slice does not.
        self._bytes[self.used : end] = np.frombuffer(blobs.data, np.uint8)
        self.lengths[row : row + len(blobs)] = blobs.lengths
        self.used = end

    def find_starts(self, count: int) -> None:
        """Compute the starts of the first ``count`` strings; must precede ``take``."""
        starts, lengths = self._starts[:count], self.lengths[:count]
        np.cumsum(lengths, out=starts)
        starts -= lengths

    def take(self, rows: Int64s) -> Blobs:
        """Return the strings of these rows, in that order."""
        return gather(self._bytes.data, self._starts, self.lengths, rows)

    def make_room(self, row_capacity: int) -> None:
        """Grow to a number of rows; new rows have empty strings."""
        lengths = np.zeros(row_capacity, np.uint32)
        lengths[: len(self.lengths)] = self.lengths
        self._starts, self.lengths = np.empty(row_capacity, np.int64), lengths


def _joined(column: Int64s, parts: Sequence[slice]) -> Int64s:
    return column[parts[0]] if len(parts) == 1 else np.concatenate([column[part] for part in parts])


def _gathered(strings: _Strings | None, rows: Int64s) -> Blobs | None:
    return None if strings is None else strings.take(rows)
