"""When messages are due whose time was moved: a map from offsets to times.

A restatement in the log gives a message another time, and the delivery order a second key
for it. The map says which of a message's keys counts; any other is *stale*. It says so as
long as the log has both: a subscription that is sought back finds both in the index. What was
relocated, stated again with the time that it had, has an entry too: the row that first stated
it is gone. Once that is so, and nobody wants the message, its entry is discarded. An entry
also knows the first of its message's times, since when it may have been delivered, the last,
by which all of its keys are due, and its *base*: the key of the row that stated it last, which
is where the log has it once the row that first stated it is gone.

Entries are columns sorted by offset: a large one, and a small one for what came lately,
which is merged into the large one when it has grown. So a single move costs by what is
small, and a lookup is two binary searches for each offset.

Persistence goes by rows ``(chunk_no, bytes)`` of 2^16 offsets each, as with a set of
offsets: ``dirty_chunks`` gives those that changed, ``load_chunk`` takes them back. A row,
little-endian::

    crc32 of all behind it u32 | count u32
    5 columns of i64: offsets, due_ms, first_ms, last_ms, bases

An earlier program wrote the first three alone; of these the base is 0, not known.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s

_CHUNK_BITS: Final = 16
_HEAD: Final = struct.Struct("<II")
# What came lately is merged once it is more than this: sorting it again with each move takes
# some 0.1 ms, and merging it into a million some 5 us for each.
_YOUNG_ROWS: Final = 4096

Bools = npt.NDArray[np.bool_]


class _Entries(NamedTuple):
    """Columns of equal height, by ascending offset."""

    offsets: Int64s
    due_ms: Int64s
    first_ms: Int64s
    last_ms: Int64s
    bases: Int64s

    def find(self, offsets: Int64s) -> tuple[Int64s, Bools]:
        """Where each of these is, and whether it is there at all."""
        if not len(self.offsets):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
        at = np.minimum(self.offsets.searchsorted(offsets), len(self.offsets) - 1)
        return at, self.offsets[at] == offsets

    def pick(self, which: Bools | slice) -> _Entries:
        return _Entries(*(column[which] for column in self))

    def under(self, newer: _Entries) -> _Entries:
        """These and the newer ones, which win."""
        _, covered = newer.find(self.offsets)
        both = [np.concatenate(pair) for pair in zip(self.pick(~covered), newer, strict=True)]
        order = np.argsort(both[0], kind="stable")
        return _Entries(*(column[order] for column in both))


_COLUMNS: Final = len(_Entries._fields)
_NONE: Final = _Entries(*(np.zeros(0, np.int64) for _ in range(_COLUMNS)))


class Moves:
    """See the module's docstring."""

    __slots__ = ("_changed", "_old", "_young")

    def __init__(self) -> None:
        self._old = _NONE
        self._young = _NONE
        self._changed: set[int] = set()  # chunks that differ from what dirty_chunks last gave

    def __len__(self) -> int:
        self._merge()
        return len(self._old.offsets)

    @property
    def empty(self) -> bool:
        """No message of the topic has been moved."""
        return not len(self._old.offsets) and not len(self._young.offsets)

    def put(self, offsets: Int64s, due_ms: Int64s, stale_ms: Int64s, bases: Int64s | int) -> None:
        """These are due at ``due_ms`` from now on, and were at ``stale_ms``; offsets ascend.

        The rows with the keys ``bases``, or all the same row, say so.
        """
        first_ms, last_ms = np.minimum(due_ms, stale_ms), np.maximum(due_ms, stale_ms)
        for entries in (self._old, self._young):
            at, there = entries.find(offsets)
            at = at[there]
            first_ms[there] = np.minimum(first_ms[there], entries.first_ms[at])
            last_ms[there] = np.maximum(last_ms[there], entries.last_ms[at])
        columns = (offsets, due_ms, first_ms, last_ms, np.broadcast_to(bases, len(offsets)))
        self._young = self._young.under(_Entries(*columns))
        self._changed.update(np.unique(offsets >> _CHUNK_BITS).tolist())
        if len(self._young.offsets) > _YOUNG_ROWS:
            self._merge()

    def current(self, offsets: Int64s, due_ms: Int64s) -> Int64s:
        """When each of these is due; ``due_ms`` of what was not moved. int64[n]."""
        return self._times(offsets, due_ms, lambda entries: entries.due_ms)

    def first(self, offsets: Int64s, due_ms: Int64s) -> Int64s:
        """When each of these was due first; ``due_ms`` of what was not moved. int64[n]."""
        return self._times(offsets, due_ms, lambda entries: entries.first_ms)

    def _times(
        self, offsets: Int64s, due_ms: Int64s, column: Callable[[_Entries], Int64s]
    ) -> Int64s:
        if self.empty:
            return due_ms
        for entries in (self._old, self._young):
            at, there = entries.find(offsets)
            if there.any():
                due_ms = due_ms.copy()
                due_ms[there] = column(entries)[at[there]]
        return due_ms

    def bases(self, offsets: Int64s) -> Int64s:
        """The key of the row that stated each of these last, 0 if none did again; int64[n]."""
        bases = np.zeros(len(offsets), np.int64)
        for entries in (self._old, self._young):
            at, there = entries.find(offsets)
            bases[there] = entries.bases[at[there]]
        return bases

    def between(self, low: int, high: int) -> Int64s:
        """Which of ``[low, high)`` were moved, ascending."""
        self._merge()
        first, last = self._old.offsets.searchsorted([low, high]).tolist()
        return self._old.offsets[first:last]

    def contains(self, offsets: Int64s) -> Bools:
        """Which of these were moved; bool[n]."""
        return self._old.find(offsets)[1] | self._young.find(offsets)[1]

    def stale(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Which of these keys do not count any more; bool[n], or None for none."""
        if self.empty:
            return None
        stale: Bools = self.current(offsets, due_ms) != due_ms
        return stale if stale.any() else None

    # -- forgetting ------------------------------------------------------------

    def below(self, end: int) -> tuple[Int64s, Int64s, Int64s]:
        """Those before ``end``: when they are due, the last of their times, their offsets."""
        self._merge()
        found = self._old.pick(slice(0, int(self._old.offsets.searchsorted(end))))
        return found.due_ms, found.last_ms, found.offsets

    def discard(self, offsets: Int64s) -> None:
        """Forget these; ascending."""
        if len(offsets):
            self._merge()
            self._old = self._old.pick(~np.isin(self._old.offsets, offsets, assume_unique=True))
            self._changed.update(np.unique(offsets >> _CHUNK_BITS).tolist())

    # -- rows ------------------------------------------------------------------

    def dirty_chunks(self) -> dict[int, bytes]:
        """The rows that changed since the last call; empty bytes: the row is to be deleted."""
        self._merge()
        changed, self._changed = sorted(self._changed), set()
        return {chunk_no: self._row(chunk_no) for chunk_no in changed}

    def rows(self) -> list[tuple[int, bytes]]:
        """All rows, as ``load_chunk`` takes them back."""
        self._merge()
        chunks = np.unique(self._old.offsets >> _CHUNK_BITS).tolist()
        return [(chunk_no, self._row(chunk_no)) for chunk_no in chunks]

    def load_chunk(self, chunk_no: int, row: Buffer) -> None:
        """Take back a row of ``dirty_chunks``.

        Raises:
          LogDamaged: if it is damaged.
        """
        view = memoryview(row)
        if len(view) < _HEAD.size:
            raise LogDamaged(f"chunk {chunk_no} of a topic's moves has no header")
        crc, count = _HEAD.unpack_from(view)
        columns, rest = divmod(len(view) - _HEAD.size, 8 * max(count, 1))
        if crc32(view[4:]) != crc or rest or columns not in (_COLUMNS, 3):
            raise LogDamaged(f"chunk {chunk_no} of a topic's moves fails its checksum")
        table = np.frombuffer(view, "<i8", columns * count, _HEAD.size).reshape(columns, count)
        offsets, due_ms, first_ms, *more = table.astype(np.int64)
        last_ms, bases = more or (due_ms, np.zeros(count, np.int64))
        self._old = self._old.under(_Entries(offsets, due_ms, first_ms, last_ms, bases))

    def _row(self, chunk_no: int) -> bytes:
        bounds = np.array([chunk_no, chunk_no + 1]) << _CHUNK_BITS
        low, high = self._old.offsets.searchsorted(bounds).tolist()
        if low == high:
            return b""
        columns = [column[low:high].astype("<i8").tobytes() for column in self._old]
        body = b"".join([struct.pack("<I", high - low), *columns])
        return struct.pack("<I", crc32(body)) + body

    def _merge(self) -> None:
        if len(self._young.offsets):
            self._old, self._young = self._old.under(self._young), _NONE
