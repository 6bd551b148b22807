"""Messages of what is ready, in memory: for whoever hands it out in another order.

The index has messages by due time. Where what goes out together is chosen by priority or by
key it lies in a hundred blocks of the index, and each frame would read them all again. So what
becomes ready is read at once, in the index's order, and kept here until it is done.

*Expected* is what is ready and was not read. When there is enough of it, ``begin_read`` says
what to read, the lowest ranks first, and ``put`` takes what was read. All subscriptions
together have a bound of bytes (``BrokerLimits.staged_bytes``); what finds no room is read from
the index when it goes out. So nothing depends on what is here but speed.

Pure: it does not know what is ready or done, but is told with each question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.ready import Rows, order_of
from escapement.message import Int64s, MessageBatch
from escapement.storage.index.columns import FixedColumns, Pick, assemble

# Fewer are not worth a read of their own.
_LEAST_ROWS: Final = 2048
# Parts of so many rows are not made larger.
_LARGE_ROWS: Final = 32_768
# What a row takes beside its strings: where it is, and where each string begins and ends.
_ROW_BYTES: Final = 64

Bools = npt.NDArray[np.bool_]
Which = Callable[[Int64s], Bools]


class Staged:
    """See the module's docstring."""

    __slots__ = ("__weakref__", "_asked", "_expected", "_is_full", "_parts", "expected")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._expected: list[Rows] = []
        self.expected = 0  # rows that are ready and were not read
        self._asked = 0  # rows that were asked for since ``keep``
        self._is_full = False  # there was no room when that was looked at last

    @property
    def rows(self) -> int:
        """How many messages are here."""
        return sum(part.height for part in self._parts)

    @property
    def size_bytes(self) -> int:
        """What everything here takes."""
        return sum(part.size_bytes for part in self._parts)

    # -- what is to be read ----------------------------------------------------------

    def expect(self, rows: Rows) -> None:
        """These are ready."""
        self._expected.append(rows)
        self.expected += rows.height

    @property
    def wants_read(self) -> bool:
        """Whether enough is expected, and there may be room for it."""
        if self.expected < _LEAST_ROWS:
            return False
        return not self._is_full or self._asked >= _LEAST_ROWS

    @property
    def is_untidy(self) -> bool:
        """Whether much of what is here may be done."""
        return 2 * self._asked >= self.rows

    def take_expected(self, waits: Which) -> Rows:
        """What was expected and ``waits`` still; it is not expected any more."""
        rows = Rows.concat(self._expected)
        self._expected, self.expected = [], 0
        return rows.pick(waits(rows.offsets)) if rows.height else rows

    def begin_read(self, rows: Rows, ageing_ms: int, room_bytes: int, mean_bytes: float) -> Rows:
        """Which of these to read now, sorted by key; the others are expected.

        Args:
          ageing_ms: what a step of priority is worth.
          room_bytes: how much may be added.
          mean_bytes: what a message weighs; 0 if nobody knows, and then none is read.
        """
        most = int(room_bytes / (mean_bytes + _ROW_BYTES)) if mean_bytes else 0
        self._is_full = most < _LEAST_ROWS
        if most >= rows.height:
            return rows.in_order()
        order = order_of(rows.ranks(ageing_ms), rows.offsets)
        if self._is_full:
            most = 0
        self.expect(rows.pick(order[most:]))
        return rows.pick(order[:most]).in_order()

    def put(self, part: Part) -> None:
        """These were read."""
        self._parts.append(part)
        self._merge()

    # -- what is here ----------------------------------------------------------------

    def keep(self, which: Which) -> None:
        """Let go of what is not one of these, all but a little; amortized O(log n) a message."""
        parts = [part.only(which) for part in self._parts]
        self._parts = [part for part in parts if part is not None]
        self._parts.sort(key=lambda part: -part.height)
        self._merge()
        self._asked = 0

    def find(self, due_ms: Int64s, offsets: Int64s) -> list[Pick]:
        """The wanted keys that are here: their places among the wanted, and their rows."""
        self._asked += len(offsets)
        picks: list[Pick] = []
        missing = np.argsort(offsets)  # what is sought in order is found sooner
        for part in self._parts:
            if not len(missing):
                break
            here, rows = part.find(due_ms[missing], offsets[missing])
            if len(rows):
                picks.append(Pick(missing[here], part.columns, rows))
                missing = missing[~here]
        return picks

    def _merge(self) -> None:
        """Make one part of small ones at the end, so that there are few."""
        while len(self._parts) > 1:
            last, other = self._parts[-1], self._parts[-2]
            if other.height > min(2 * last.height, _LARGE_ROWS):
                return
            del self._parts[-2:]
            self._parts.append(other.with_part(last))


class Part:
    """What one read brought, to be found by offset. To make one takes a moment for each row."""

    __slots__ = ("_by_offset", "_due_ms", "_offsets", "_order", "batch", "columns", "size_bytes")

    def __init__(self, due_ms: Int64s, offsets: Int64s, batch: MessageBatch) -> None:
        self._due_ms = due_ms
        self._offsets = offsets
        self._order = np.argsort(offsets)
        self._by_offset = offsets[self._order]
        self.batch = batch
        self.columns = FixedColumns.of(batch)
        self.size_bytes = batch.size_bytes + _ROW_BYTES * len(offsets)

    @classmethod
    def of(cls, rows: Rows, batch: MessageBatch) -> Part:
        """``batch`` has the messages of the rows, in the same order."""
        return cls(rows.due_ms, rows.offsets, batch)

    @property
    def height(self) -> int:
        return len(self._offsets)

    def find(self, due_ms: Int64s, offsets: Int64s) -> tuple[Bools, Int64s]:
        """Which of the wanted keys are here, and in which rows."""
        at = np.minimum(np.searchsorted(self._by_offset, offsets), self.height - 1)
        rows = self._order[at]
        here = (self._by_offset[at] == offsets) & (self._due_ms[rows] == due_ms)
        return here, rows[here]

    def only(self, which: Which) -> Part | None:
        """What is one of these; itself as long as that is most of it."""
        stays = np.flatnonzero(which(self._offsets))
        if not len(stays):
            return None
        return self if 2 * len(stays) > self.height else self._of([(self, stays)])

    def with_part(self, other: Part) -> Part:
        """Both."""
        return self._of([(part, np.arange(part.height)) for part in (self, other)])

    @staticmethod
    def _of(parts: list[tuple[Part, Int64s]]) -> Part:
        """These rows of these parts."""
        picks, height = [], 0
        for part, rows in parts:
            picks.append(Pick(np.arange(height, height + len(rows)), part.columns, rows))
            height += len(rows)
        return Part(
            np.concatenate([part._due_ms[rows] for part, rows in parts]),
            np.concatenate([part._offsets[rows] for part, rows in parts]),
            assemble(height, picks),
        )
