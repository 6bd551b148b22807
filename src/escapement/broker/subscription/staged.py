"""Messages of what is ready, in memory: for whoever hands it out in another order.

The index has messages by due time. Where what goes out together is chosen by priority or by
key it lies in a hundred blocks of the index, and each frame would read them all again. So what
becomes ready is read at once, in the index's order, and kept here until it is done.

*Expected* is what is ready and was not read. When there is enough of it, ``begin_read`` says
what to read, the lowest ranks first, and ``put`` takes what was read. All subscriptions
together have a bound of bytes (``BrokerLimits.staged_bytes``); what finds no room is read from
the index when it goes out. So nothing depends on what is here but speed.

What was read together is a *part*. Where each message lies is known of its offset, so that a
frame's are found at once, however many parts there are. Parts that are mostly done are made
into one. Of what is not here any more the map may still say where it was: numbers of parts are
not used again.

Invariants (``_check``): the map of offsets is sound; no message stands twice in a part.

Pure: it does not know what is ready or done, but is told with each question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.offsetmap import OffsetMap
from escapement.broker.subscription.ready import Rows, order_of
from escapement.message import Int64s, MessageBatch
from escapement.storage.index.columns import FixedColumns, Pick, assemble

# Fewer are not worth a read of their own.
_LEAST_ROWS: Final = 2048
# Parts of so many rows are not made larger.
_LARGE_ROWS: Final = 16_384
# What a row takes beside its strings: where it is, and where each string begins and ends.
_ROW_BYTES: Final = 64
# A place: the number of a part, above so many bits for the row.
_ROW_BITS: Final = 32

# The map of offsets is made anew where it takes more for each message.
_SPARSE_BYTES: Final = 128

Bools = npt.NDArray[np.bool_]
Which = Callable[[Int64s], Bools]


class _Part(NamedTuple):
    """What one read brought."""

    first_place: int
    offsets: Int64s
    due_ms: Int64s
    columns: FixedColumns
    size_bytes: int

    @property
    def height(self) -> int:
        return len(self.offsets)

    @property
    def places(self) -> Int64s:
        return self.first_place + np.arange(self.height)


class Staged:
    """See the module's docstring."""

    __slots__ = (
        "__weakref__",
        "_asked",
        "_expected",
        "_is_full",
        "_next",
        "_parts",
        "_places",
        "expected",
    )

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}  # by number, ascending
        self._next = 0
        self._places = OffsetMap()  # where each message is, or was: part and row
        self._expected: list[Rows] = []
        self.expected = 0  # rows that are ready and were not read
        self._asked = 0  # rows that were asked for since ``keep``
        self._is_full = False  # there was no room when that was looked at last

    @property
    def size_bytes(self) -> int:
        """What everything here takes."""
        return self._places.size_bytes + sum(part.size_bytes for part in self._parts.values())

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
        return 4 * self._asked >= 3 * self._height

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

    def put(self, rows: Rows, batch: MessageBatch) -> None:
        """These were read: the messages of the rows, in the same order."""
        self._add(rows.offsets, rows.due_ms, batch)
        self._join_small()

    # -- what is here ----------------------------------------------------------------

    def keep(self, which: Which) -> None:
        """Let go of what is not one of these, where it is most of a part; amortized O(1) each."""
        self._asked = 0
        left = {}
        for number, part in self._parts.items():
            stays = np.flatnonzero(which(part.offsets))
            if 2 * len(stays) <= part.height:
                left[number] = self._here(part, stays)
        self._join(left)
        if self._places.size_bytes > _SPARSE_BYTES * self._height:
            self._places = OffsetMap()
            for part in self._parts.values():
                self._places.put(part.offsets, part.places)

    def find(self, due_ms: Int64s, offsets: Int64s) -> list[Pick]:
        """The wanted keys that are here: their places among the wanted, and their rows."""
        self._asked += len(offsets)
        if not self._parts:
            return []
        places = self._places.get(offsets)
        numbers = places >> _ROW_BITS
        picks = []
        for number, part in self._parts.items():
            wanted = np.flatnonzero(numbers == number)
            rows = places[wanted] - part.first_place
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
        self._places.put(offsets, part.places)

    @property
    def _height(self) -> int:
        return sum(part.height for part in self._parts.values())

    def _here(self, part: _Part, rows: Int64s) -> Int64s:
        """Those of the rows of a part that were not read again since."""
        here: Int64s = rows[self._places.get(part.offsets[rows]) == part.first_place + rows]
        return here

    def _join_small(self) -> None:
        """Make one part of small ones at the end, so that there are few."""
        numbers = list(self._parts)
        small = [numbers.pop()]
        height = self._parts[small[0]].height
        while numbers and self._parts[numbers[-1]].height <= min(2 * height, _LARGE_ROWS):
            small.append(numbers.pop())
            height += self._parts[small[-1]].height
        if len(small) > 1:
            parts = [(number, self._parts[number]) for number in small]
            self._join({no: self._here(part, np.arange(part.height)) for no, part in parts})

    def _join(self, left: dict[int, Int64s]) -> None:
        """Make one part of these, of which these rows are left."""
        parts = [(self._parts.pop(number), rows) for number, rows in left.items()]
        picks, height = [], 0
        for part, rows in parts:
            if len(rows):
                places = np.arange(height, height + len(rows))
                picks.append(Pick(places, part.columns, rows))
                height += len(rows)
        if height:
            offsets = np.concatenate([part.offsets[rows] for part, rows in parts])
            due_ms = np.concatenate([part.due_ms[rows] for part, rows in parts])
            self._add(offsets, due_ms, assemble(height, picks))

    def _check(self) -> None:
        """Assert every invariant."""
        self._places._check()
        for number, part in self._parts.items():
            assert part.first_place == number << _ROW_BITS, "a part has another's places"
            assert len(np.unique(part.offsets)) == part.height, "a message stands twice in a part"
