"""Messages as they were published, independent of the log row that holds them now.

A message is in the row that first stated it. When the log has forgotten that row, the message is in
the row that last restated it, if it was rescheduled or relocated. A restatement repeats the due and
publish times of the first row, so a message reads the same from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.message import Blobs, Int64s, MessageBatch
from escapement.storage.log.log_table import LogRow


class Published(NamedTuple):
    """Columns of equal height, by ascending offset; times are those first stated."""

    offsets: Int64s
    due_ms: Int64s
    published_ms: Int64s
    batch: MessageBatch

    @classmethod
    def of(cls, row: LogRow) -> Published:
        """Return all messages of a row, which may be a restatement."""
        content, again = row.content, row.content.restating
        if again is not None:
            return cls(again.offsets, again.first_ms, again.published_ms, content.batch())
        published_ms = np.full(len(content.due_ms), content.accepted_at_ms)
        return cls(row.offsets, content.due_ms, published_ms, content.batch())

    @classmethod
    def first_stated(cls, rows: Sequence[LogRow]) -> Published:
        """Return all messages of rows that first state them; copies each row's bytes once."""
        contents = [row.content for row in rows]
        accepted_ms = np.array([content.accepted_at_ms for content in contents], np.int64)
        return cls(
            np.concatenate([row.offsets for row in rows]),
            np.concatenate([content.due_ms for content in contents]),
            accepted_ms.repeat([len(content.due_ms) for content in contents]),
            MessageBatch.concat([batch for content in contents for batch in content.batches()]),
        )

    @classmethod
    def concat(cls, parts: Sequence[Published]) -> Published:
        """Concatenate the parts."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            none = np.zeros(0, np.int64)
            return cls(none, none, none, MessageBatch(Blobs.empty(0)))
        offsets, due_ms, published_ms, batches = zip(*parts, strict=True)
        return cls(
            np.concatenate(offsets),
            np.concatenate(due_ms),
            np.concatenate(published_ms),
            MessageBatch.concat(batches),
        )

    def take(self, rows: Int64s) -> Published:
        """Return the rows given by index, in that order."""
        batch = self.batch.take(rows)
        return Published(self.offsets[rows], self.due_ms[rows], self.published_ms[rows], batch)

    def part(self, low: int, high: int) -> Published:
        """Return the rows ``[low, high)`` without a copy."""
        some = slice(low, high)
        batch = self.batch.part(low, high)
        return Published(self.offsets[some], self.due_ms[some], self.published_ms[some], batch)

    def of_these(self, offsets: Int64s) -> Published:
        """Return the messages at those ``offsets`` (ascending) that are here; O(log n) for each."""
        rows = self.offsets.searchsorted(offsets)
        rows[rows == len(self.offsets)] = 0
        there = self.offsets[rows] == offsets if len(self.offsets) else np.zeros(len(rows), bool)
        return self.take(rows[there])

    def pick(self, which: npt.NDArray[np.bool_]) -> Published:
        """Return the marked rows."""
        return self if which.all() else self.take(np.flatnonzero(which))
