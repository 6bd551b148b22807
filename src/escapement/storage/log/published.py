"""Messages as they were published, independent of the log row that has them now.

A message is in the log row that its publishing wrote, its *first* row. A message that is later
rescheduled or relocated is *restated*: another row, a *restatement*, has the message too. When the
log has forgotten the first row, the message is read from the row that restated it last. A
restatement repeats the due time and the publish time of the first row, so a message reads the same
from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.message import Blobs, Int64s, MessageBatch
from escapement.storage.log.log_table import LogRow


class Published(NamedTuple):
    """Messages of one topic as they were published, by ascending offset.

    ``due_ms`` and ``published_ms`` are the due times and publish times in the first rows.
    """

    offsets: Int64s
    due_ms: Int64s
    published_ms: Int64s
    batch: MessageBatch

    @classmethod
    def of(cls, row: LogRow) -> Published:
        """Return all messages of one log row, which may be a restatement."""
        content, again = row.content, row.content.restating
        if again is not None:
            return cls(again.offsets, again.first_ms, again.published_ms, content.batch())
        published_ms = np.full(len(content.due_ms), content.accepted_at_ms)
        return cls(row.offsets, content.due_ms, published_ms, content.batch())

    @classmethod
    def first_stated(cls, rows: Sequence[LogRow]) -> Published:
        """Return all messages of several log rows, none of which is a restatement.

        Copies the bytes of each row once.
        """
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
        """Join parts, whose offsets ascend from each part to the next, into one."""
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
        """Return the messages with the given indices, in that order."""
        batch = self.batch.take(rows)
        return Published(self.offsets[rows], self.due_ms[rows], self.published_ms[rows], batch)

    def part(self, low: int, high: int) -> Published:
        """Return the messages with indices in ``[low, high)``, without copying them."""
        some = slice(low, high)
        batch = self.batch.part(low, high)
        return Published(self.offsets[some], self.due_ms[some], self.published_ms[some], batch)

    def of_these(self, offsets: Int64s) -> Published:
        """Return those of the messages whose offset is in ``offsets``.

        O(log n) for each offset, where n is the number of messages.

        Args:
          offsets: ascending; int64[n].
        """
        rows = self.offsets.searchsorted(offsets)
        rows[rows == len(self.offsets)] = 0
        there = self.offsets[rows] == offsets if len(self.offsets) else np.zeros(len(rows), bool)
        return self.take(rows[there])

    def pick(self, which: npt.NDArray[np.bool_]) -> Published:
        """Return the messages that the mask ``which`` marks."""
        return self if which.all() else self.take(np.flatnonzero(which))
