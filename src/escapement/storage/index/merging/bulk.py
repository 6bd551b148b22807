"""The bulk table: many messages in memory, sorted when they are written to a segment file.

A rebuild of the delayed index from the log uses it. Nobody reads its messages before they are in a
segment. So one large unsorted table is enough, where a running broker has many small tables that
are always sorted. The memory of the table is reused for the next segment.

The table has columns of keys ``(due_ms, offset)`` and of message bytes in order of arrival, and
knows the rows of each topic. It does not know which messages are still needed: the caller adds only
these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from escapement.message import Int64s, MessageBatch
from escapement.storage.index.columns import GrowingColumns, Pick, assemble
from escapement.storage.index.keys import unique_sorted
from escapement.storage.index.segments.writer import SegmentWriter

# The memory that a message takes beside its bytes: its key, and its payload's start and length.
_ROW_BYTES: Final = 8 + 8 + 8 + 4


class BulkTable:
    """Messages of any topics that become one segment.

    Call ``add`` until ``has_room`` returns False, then ``write``, then ``clear``; and so on. Rows
    are numbered in order of arrival. The address space is reserved at once, and the system provides
    the memory when it is first used.
    """

    def __init__(self, size_bytes: int) -> None:
        """Reserve the address space.

        Args:
          size_bytes: the maximal size of the content. Only a first batch may be larger.
        """
        self.count = 0
        self.used_bytes = 0
        self._size_bytes = size_bytes
        self._capacity = max(size_bytes // _ROW_BYTES, 1)
        self._due_ms: Int64s = np.empty(self._capacity, np.int64)
        self._offsets: Int64s = np.empty(self._capacity, np.int64)
        self._columns = GrowingColumns(self._capacity, size_bytes)
        # The rows of each topic, by topic id. Offsets ascend in each slice.
        self._ranges: dict[int, list[slice]] = {}

    def has_room(self, rows: int, size_bytes: int) -> bool:
        """Return whether ``rows`` more messages of ``size_bytes`` in total may be added.

        Any number and size may be added to an empty table.
        """
        size_bytes += self.used_bytes + rows * _ROW_BYTES
        return not self.count or size_bytes <= self._size_bytes

    def add(
        self, topic_id: int, offsets: Int64s | int, due_ms: Int64s, batch: MessageBatch
    ) -> None:
        """Add a batch of messages of a topic; O(bytes).

        Args:
          offsets: the offset of each message; or the first offset, if they are contiguous.
          due_ms: the due time of each message.
        """
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
        self._columns.append(row, batch)
        ranges = self._ranges.setdefault(topic_id, [])
        goes_on = ranges and ranges[-1].stop == row and self._offsets[row - 1] < self._offsets[row]
        if goes_on:
            ranges[-1] = slice(ranges[-1].start, end)
        else:
            ranges.append(slice(row, end))
        self.count = end
        self.used_bytes += rows * _ROW_BYTES + batch.size_bytes

    def write(self, writer: SegmentWriter) -> None:
        """Write all messages to a segment: by topic, in key order, each key once; blocking."""
        for topic_id in sorted(self._ranges):
            # Sorting by key is faster if the offsets ascend.
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
        """Remove all messages, but keep the memory for the next ones."""
        self.count = self.used_bytes = 0
        self._columns.clear()
        self._ranges.clear()

    def _take(self, rows: Int64s) -> MessageBatch:
        return assemble(len(rows), [Pick(np.arange(len(rows)), self._columns, rows)])

    def _mean_bytes(self, parts: Sequence[slice]) -> int:
        """Return the mean size in bytes of the messages in these slices of rows."""
        lengths = [arena.lengths[part] for arena in self._columns.arenas() for part in parts]
        rows: int = sum(part.stop - part.start for part in parts)
        return sum(int(some.sum(dtype=np.int64)) for some in lengths) // rows

    def _make_room(self, rows: int) -> None:
        self._capacity = rows
        self._due_ms = np.resize(self._due_ms, rows)
        self._offsets = np.resize(self._offsets, rows)
        self._columns.make_room(rows)


def _joined(column: Int64s, parts: Sequence[slice]) -> Int64s:
    return column[parts[0]] if len(parts) == 1 else np.concatenate([column[part] for part in parts])
