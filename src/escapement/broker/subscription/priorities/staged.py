"""A read-ahead cache of ready messages, for delivery in an order other than the index's.

The index stores messages by due time. If messages are delivered by priority or by key, the messages
of one frame are in a hundred blocks of the index, and each frame would read all of these again. So
many ready messages are read together, in the order of the index, and kept here until they are
delivered and acknowledged.

*Expected* messages are ready and not read yet. When there are enough, ``begin_read`` returns those
to read next, the lowest ranks first, and ``put`` adds them to the cache. All subscriptions together
may use ``BrokerLimits.staged_bytes``. Messages that find no room are read from the index when they
are delivered. So this cache affects only speed.

The messages of one read are a *part*. The *position* of a message is the number of its part and
its row there. A map from offsets to positions finds the messages of a frame at once, however many
parts there are. Parts that have mostly finished messages are merged. The map may still have the
position of a message that was removed. This does no harm, because part numbers are not reused.

Invariants (``_check``): the map of offsets is sound; no message is in a part twice.

Pure: callers pass in which messages are ready or finished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.subscription.number_map import NumberMap
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Bools, Int64s, MessageBatch
from escapement.storage.index.columns import FixedColumns, Pick, assemble
from escapement.storage.index.keys import sorted_order

# The fewest rows that are worth a read.
_LEAST_ROWS: Final = 2048
# The bytes that a message takes besides its strings: its position, and the bounds of each string.
_ROW_BYTES: Final = 64
# A position has the row in this many lower bits, and the number of the part above them.
_ROW_BITS: Final = 32
# The map of offsets is rebuilt if it has more than this many entries for each message.
_MOST_POSITIONS: Final = 2

Which = Callable[[Int64s], Bools]


class _Part(NamedTuple):
    """The messages of one read."""

    first_position: int
    offsets: Int64s
    due_ms: Int64s
    columns: FixedColumns
    size_bytes: int

    @property
    def height(self) -> int:
        return len(self.offsets)

    @property
    def positions(self) -> Int64s:
        return self.first_position + np.arange(self.height)


class Staged:
    """Messages read ahead for one subscription."""

    __slots__ = (
        "__weakref__",
        "_asked",
        "_expected",
        "_is_full",
        "_next",
        "_parts",
        "_positions",
        "expected",
    )

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}  # by number, ascending
        self._next = 0
        self._positions = NumberMap()  # of messages, which may be removed, by offset
        self._expected: list[Rows] = []
        self.expected = 0  # the number of rows in ``_expected``
        self._asked = 0  # how many messages ``find`` has sought since the last ``keep``
        self._is_full = False  # whether the last ``begin_read`` had no room

    @property
    def size_bytes(self) -> int:
        """The memory in use, in bytes."""
        return self._positions.size_bytes + sum(part.size_bytes for part in self._parts.values())

    # -- reading ahead ---------------------------------------------------------------

    def expect(self, rows: Rows) -> None:
        """Add ready rows to the expected messages, which are to be read ahead."""
        self._expected.append(rows)
        self.expected += rows.height

    @property
    def wants_read(self) -> bool:
        """Whether enough messages are expected for a read, and there may be room for them."""
        if self.expected < _LEAST_ROWS:
            return False
        return not self._is_full or self._asked >= _LEAST_ROWS

    @property
    def is_untidy(self) -> bool:
        """Whether most messages of the cache may be finished, so that ``keep`` should be called."""
        return 4 * self._asked >= 3 * self._height

    def take_expected(self, waits: Callable[[Rows], Bools]) -> Rows:
        """Remove all expected rows; return those that are still worth reading.

        Args:
          waits: returns which of the given rows still wait to be delivered; bool[n].
        """
        rows = Rows.concat(self._expected)
        self._expected, self.expected = [], 0
        return rows.pick(waits(rows)) if rows.height else rows

    def begin_read(self, rows: Rows, ageing_ms: int, room_bytes: int, mean_bytes: float) -> Rows:
        """Return the rows to read now, sorted by ``(due_ms, offset)``; expect the others.

        Args:
          ageing_ms: how many ms a step of priority is worth.
          room_bytes: how many bytes may be added to the cache.
          mean_bytes: the mean size of a message; 0 if it is unknown, and then no row is read.
        """
        most = int(room_bytes / (mean_bytes + _ROW_BYTES)) if mean_bytes else 0
        self._is_full = most < _LEAST_ROWS
        if most >= rows.height:
            return rows.in_order()
        order = sorted_order(rows.ranks(ageing_ms), rows.offsets)
        if self._is_full:
            most = 0
        self.expect(rows.pick(order[most:]))
        return rows.pick(order[:most]).in_order()

    def put(self, rows: Rows, batch: MessageBatch) -> None:
        """Add messages that were read; ``batch`` has the message of each row."""
        self._add(rows.offsets, rows.due_ms, batch)

    # -- messages --------------------------------------------------------------------

    def keep(self, which: Which) -> None:
        """Remove finished messages from the parts in which most are finished.

        Amortized O(1) for each message.

        Args:
          which: returns which of the given offsets are still needed; bool[n].
        """
        self._asked = 0
        left = {}
        for number, part in self._parts.items():
            stays = np.flatnonzero(which(part.offsets))
            if 2 * len(stays) <= part.height:
                left[number] = self._here(part, stays)
        self._join(left)
        if len(self._positions) > _MOST_POSITIONS * self._height:
            self._positions = NumberMap()
            for part in self._parts.values():
                self._positions.put(part.offsets, part.positions)

    def find(self, due_ms: Int64s, offsets: Int64s) -> list[Pick]:
        """Return the messages of the cache among those wanted, part by part.

        Each result has positions in ``offsets`` and the rows of these messages in one part. A
        message is found only under its current due time.
        """
        self._asked += len(offsets)
        if not self._parts:
            return []
        positions = self._positions.get(offsets)
        numbers = positions >> _ROW_BITS
        picks = []
        for number, part in self._parts.items():
            wanted = np.flatnonzero(numbers == number)
            rows = positions[wanted] - part.first_position
            current = part.due_ms[rows] == due_ms[wanted]
            if not current.all():
                wanted, rows = wanted[current], rows[current]
            if len(rows):
                picks.append(Pick(wanted, part.columns, rows))
        return picks

    # -- parts -----------------------------------------------------------------------

    def _add(self, offsets: Int64s, due_ms: Int64s, batch: MessageBatch) -> None:
        number, self._next = self._next, self._next + 1
        size_bytes = batch.size_bytes + _ROW_BYTES * len(batch)
        columns = FixedColumns.of(batch)
        part = _Part(number << _ROW_BITS, offsets, due_ms, columns, size_bytes)
        self._parts[number] = part
        self._positions.put(offsets, part.positions)

    @property
    def _height(self) -> int:
        return sum(part.height for part in self._parts.values())

    def _here(self, part: _Part, rows: Int64s) -> Int64s:
        """Return those of the given rows of a part whose messages were not read again since."""
        here: Int64s = rows[self._positions.get(part.offsets[rows]) == part.first_position + rows]
        return here

    def _join(self, left: dict[int, Int64s]) -> None:
        """Merge parts into a new one.

        Args:
          left: the numbers of the parts to merge, each with the rows to keep.
        """
        parts = [(self._parts.pop(number), rows) for number, rows in left.items()]
        picks, height = [], 0
        for part, rows in parts:
            if len(rows):
                positions = np.arange(height, height + len(rows))
                picks.append(Pick(positions, part.columns, rows))
                height += len(rows)
        if height:
            offsets = np.concatenate([part.offsets[rows] for part, rows in parts])
            due_ms = np.concatenate([part.due_ms[rows] for part, rows in parts])
            self._add(offsets, due_ms, assemble(height, picks))

    def _check(self) -> None:
        """Assert every invariant."""
        self._positions._check()
        for number, part in self._parts.items():
            assert part.first_position == number << _ROW_BITS, "a part has the positions of another"
            assert len(np.unique(part.offsets)) == part.height, "a message is in a part twice"
