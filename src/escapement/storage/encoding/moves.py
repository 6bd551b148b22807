"""A map from offsets to due times, for the messages of a topic that have been moved.

A restatement in the log gives a message a new due time, and so a second key in the delivery
order. The map gives the key of a message that counts; its other keys are *stale*. The entry is
needed as long as the log has both rows, because a subscription that seeks back finds both keys in
the index. A message that was relocated, that is restated with an unchanged due time, has an entry
too, because its first row is gone. When its first row is gone and no subscription wants the
message, the entry is discarded.

An entry also has the latest of the message's due times, at which all of its keys are due. Its
*base* is the key of the row that restated the message last. The log has the message in that row
once its first row is gone.

Entries are columns sorted by offset: a large set, and a small set of recent entries, which is
merged into the large one when it has grown. So the cost of a move depends on the small set, and a
lookup is two binary searches for each offset.

Entries are stored as rows ``(chunk_no, bytes)`` of 2^16 offsets each, as a set of offsets is:
``dirty_chunks`` returns the changed rows, ``load_chunk`` loads a row. A row, little-endian::

    crc32 of the rest u32 | count u32
    4 columns of i64: offsets, due_ms, last_ms, bases

Rows of older versions have five columns, with the earliest of the due times after ``due_ms``, or
only the first three of those five. Then the base is 0, for unknown.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from escapement.errors import LogDamaged
from escapement.message import Bools, Buffer, Int64s
from escapement.sorting import find_sorted
from escapement.storage.encoding.seal import SEAL_BYTES, sealed, unsealed

_CHUNK_BITS: Final = 16
_COUNT: Final = struct.Struct("<I")
_HEAD_BYTES: Final = SEAL_BYTES + _COUNT.size
# Recent entries are merged when there are more than this. Sorting this many with each move takes
# about 0.1 ms. Merging them into a million entries takes about 5 us for each.
_YOUNG_ROWS: Final = 4096


class _Entries(NamedTuple):
    """Columns of equal length, by ascending offset."""

    offsets: Int64s
    due_ms: Int64s
    last_ms: Int64s
    bases: Int64s

    def find(self, offsets: Int64s) -> tuple[Int64s, Bools]:
        """Return the place of each offset, and whether it exists there."""
        return find_sorted(self.offsets, offsets)

    def pick(self, which: Bools | slice) -> _Entries:
        return _Entries(*(column[which] for column in self))

    def under(self, newer: _Entries) -> _Entries:
        """Merge with newer entries, which replace those of the same offset."""
        _, covered = newer.find(self.offsets)
        both = [np.concatenate(pair) for pair in zip(self.pick(~covered), newer, strict=True)]
        order = np.argsort(both[0], kind="stable")
        return _Entries(*(column[order] for column in both))


_COLUMNS: Final = len(_Entries._fields)
_NONE: Final = _Entries(*(np.zeros(0, np.int64) for _ in range(_COLUMNS)))


class Moves:
    """The due times of a topic's moved messages."""

    __slots__ = ("_changed", "_old", "_young")

    def __init__(self) -> None:
        self._old = _NONE
        self._young = _NONE
        self._changed: set[int] = set()  # chunks changed since the last dirty_chunks

    def __len__(self) -> int:
        self._merge()
        return len(self._old.offsets)

    @property
    def empty(self) -> bool:
        """Whether no message of the topic has been moved."""
        return not len(self._old.offsets) and not len(self._young.offsets)

    def put(self, offsets: Int64s, due_ms: Int64s, stale_ms: Int64s, bases: Int64s | int) -> None:
        """Move messages from ``stale_ms`` to ``due_ms``. ``offsets`` ascend.

        ``bases`` are the keys of the rows that restate them, or the one key of all.
        """
        last_ms = np.maximum(due_ms, stale_ms)
        for entries in (self._old, self._young):
            at, there = entries.find(offsets)
            at = at[there]
            last_ms[there] = np.maximum(last_ms[there], entries.last_ms[at])
        columns = (offsets, due_ms, last_ms, np.broadcast_to(bases, len(offsets)))
        self._young = self._young.under(_Entries(*columns))
        self._changed.update(np.unique(offsets >> _CHUNK_BITS).tolist())
        if len(self._young.offsets) > _YOUNG_ROWS:
            self._merge()

    def current(self, offsets: Int64s, due_ms: Int64s) -> Int64s:
        """Return the due time of each message; ``due_ms`` if it was not moved. int64[n]."""
        if self.empty:
            return due_ms
        for entries in (self._old, self._young):
            at, there = entries.find(offsets)
            if there.any():
                due_ms = due_ms.copy()
                due_ms[there] = entries.due_ms[at[there]]
        return due_ms

    def bases(self, offsets: Int64s) -> Int64s:
        """Return the key of the row that restated each message last, or 0; int64[n]."""
        bases = np.zeros(len(offsets), np.int64)
        for entries in (self._old, self._young):
            at, there = entries.find(offsets)
            bases[there] = entries.bases[at[there]]
        return bases

    def between(self, low: int, high: int) -> Int64s:
        """Return the moved messages in ``[low, high)``, ascending."""
        self._merge()
        first, last = self._old.offsets.searchsorted([low, high]).tolist()
        return self._old.offsets[first:last]

    def contains(self, offsets: Int64s) -> Bools:
        """Return which of these messages were moved; bool[n]."""
        return self._old.find(offsets)[1] | self._young.find(offsets)[1]

    def stale(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Return which of these keys are stale; bool[n], or None if none is."""
        if self.empty:
            return None
        stale: Bools = self.current(offsets, due_ms) != due_ms
        return stale if stale.any() else None

    # -- discarding ------------------------------------------------------------

    def below(self, end: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return due times, latest due times and offsets of the entries before ``end``."""
        self._merge()
        found = self._old.pick(slice(0, int(self._old.offsets.searchsorted(end))))
        return found.due_ms, found.last_ms, found.offsets

    def discard(self, offsets: Int64s) -> None:
        """Discard the entries of ascending ``offsets``."""
        if len(offsets):
            self._merge()
            self._old = self._old.pick(~np.isin(self._old.offsets, offsets, assume_unique=True))
            self._changed.update(np.unique(offsets >> _CHUNK_BITS).tolist())

    # -- rows ------------------------------------------------------------------

    def dirty_chunks(self) -> dict[int, bytes]:
        """Return the rows that changed since the last call. Empty bytes delete the row."""
        self._merge()
        changed, self._changed = sorted(self._changed), set()
        return {chunk_no: self._row(chunk_no) for chunk_no in changed}

    def rows(self) -> list[tuple[int, bytes]]:
        """Return all rows, as ``load_chunk`` takes them."""
        self._merge()
        chunks = np.unique(self._old.offsets >> _CHUNK_BITS).tolist()
        return [(chunk_no, self._row(chunk_no)) for chunk_no in chunks]

    def load_chunk(self, chunk_no: int, row: Buffer) -> None:
        """Load a row that ``dirty_chunks`` returned.

        Raises:
          LogDamaged: if the row is damaged.
        """
        view = unsealed(row, 0, _HEAD_BYTES, f"chunk {chunk_no} of a topic's moves")
        (count,) = _COUNT.unpack_from(view, SEAL_BYTES)
        columns, rest = divmod(len(view) - _HEAD_BYTES, 8 * max(count, 1))
        if rest or columns not in (_COLUMNS, 5, 3):
            raise LogDamaged(f"chunk {chunk_no} of a topic's moves has the wrong length")
        table = np.frombuffer(view, "<i8", columns * count, _HEAD_BYTES).reshape(columns, count)
        offsets, due_ms, *more = table.astype(np.int64)
        last_ms, bases = more[-2:] if len(more) > 1 else (due_ms, np.zeros(count, np.int64))
        self._old = self._old.under(_Entries(offsets, due_ms, last_ms, bases))

    def _row(self, chunk_no: int) -> bytes:
        bounds = np.array([chunk_no, chunk_no + 1]) << _CHUNK_BITS
        low, high = self._old.offsets.searchsorted(bounds).tolist()
        if low == high:
            return b""
        columns = [column[low:high].astype("<i8").tobytes() for column in self._old]
        return sealed(b"", [_COUNT.pack(high - low), *columns])

    def _merge(self) -> None:
        if len(self._young.offsets):
            self._old, self._young = self._old.under(self._young), _NONE
