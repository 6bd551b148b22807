"""Moves: the current due times of the messages of a topic that were rescheduled.

Rescheduling a message writes it to the log again, in a row that *restates* it with a new due time.
The message then has several keys ``(due_ms, offset)`` in the delayed index, one for each due time.
A :class:`Moves` has an *entry* for each such message, a *moved* message, with the due time that
counts. Keys with other due times are *stale*. The entry is needed as long as the log has the
message's first row, because a subscription that seeks back finds all keys in the index. A message
that was restated with an unchanged due time, so that its first row can be deleted from the log, has
an entry too. When the first row is gone and no subscription wants the message, the entry is
discarded.

An entry also has the latest of the message's due times, at which all of its keys are due. Its
*base* is the base offset of the log row that restated the message last, a negative number that
names the row. The log has the message in that row once its first row is gone.

Entries are columns sorted by offset: a large set, and a small set of recent entries, which is
merged into the large one when it has grown. So the cost of a move depends on the small set, and a
lookup is two binary searches for each offset.

Entries are stored as rows ``(chunk_no, bytes)`` of a database table, one for each 2^16 offsets with
entries. ``dirty_chunks`` returns the changed rows, and ``load_chunk`` restores a row. The bytes of
a row, little-endian::

    crc32 of the rest u32 | count u32
    4 columns of i64: offsets, due_ms, last_ms, bases

This module reads no clock and does no I/O.
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
# The recent entries are merged into the large set when there are more than this. Each move sorts
# them, which takes about 0.1 ms. Merging them into a million entries takes about 5 us for each.
_YOUNG_ROWS: Final = 4096


class _Entries(NamedTuple):
    """A set of entries, as columns of equal length in ascending order of the offsets."""

    offsets: Int64s
    due_ms: Int64s
    last_ms: Int64s
    bases: Int64s

    def find(self, offsets: Int64s) -> tuple[Int64s, Bools]:
        """Return the index of each offset in the entries, and whether it has an entry at all."""
        return find_sorted(self.offsets, offsets)

    def pick(self, which: Bools | slice) -> _Entries:
        return _Entries(*(column[which] for column in self))

    def under(self, newer: _Entries) -> _Entries:
        """Return the union of these entries and ``newer``, whose entries win for equal offsets."""
        _, covered = newer.find(self.offsets)
        both = [np.concatenate(pair) for pair in zip(self.pick(~covered), newer, strict=True)]
        order = np.argsort(both[0], kind="stable")
        return _Entries(*(column[order] for column in both))


_COLUMNS: Final = len(_Entries._fields)
_NONE: Final = _Entries(*(np.zeros(0, np.int64) for _ in range(_COLUMNS)))


class Moves:
    """The entries of a topic's moved messages: current due time, latest due time, and base."""

    __slots__ = ("_changed", "_old", "_young")

    def __init__(self) -> None:
        self._old = _NONE
        self._young = _NONE
        # The numbers of the rows that have changed since the last call of dirty_chunks.
        self._changed: set[int] = set()

    def __len__(self) -> int:
        self._merge()
        return len(self._old.offsets)

    @property
    def empty(self) -> bool:
        """Whether the topic has no entries."""
        return not len(self._old.offsets) and not len(self._young.offsets)

    def put(self, offsets: Int64s, due_ms: Int64s, stale_ms: Int64s, bases: Int64s | int) -> None:
        """Record that log rows have moved messages.

        Args:
          offsets: the messages, ascending.
          due_ms: the new due time of each message.
          stale_ms: the due time that each message had before.
          bases: the base offset of the log row that restates each message, or one number if a
            single row restates all.
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
        """Return the current due time of each message; int64[n].

        Args:
          offsets: the messages.
          due_ms: the due time of each message if it was not moved.
        """
        if self.empty:
            return due_ms
        for entries in (self._old, self._young):
            at, there = entries.find(offsets)
            if there.any():
                due_ms = due_ms.copy()
                due_ms[there] = entries.due_ms[at[there]]
        return due_ms

    def bases(self, offsets: Int64s) -> Int64s:
        """Return the base offset of the log row that restated each message last; int64[n].

        It is 0 if the message was not moved.
        """
        bases = np.zeros(len(offsets), np.int64)
        for entries in (self._old, self._young):
            at, there = entries.find(offsets)
            bases[there] = entries.bases[at[there]]
        return bases

    def between(self, low: int, high: int) -> Int64s:
        """Return the offsets in ``[low, high)`` of moved messages, ascending."""
        self._merge()
        first, last = self._old.offsets.searchsorted([low, high]).tolist()
        return self._old.offsets[first:last]

    def contains(self, offsets: Int64s) -> Bools:
        """Return a mask that is true for each of these messages that was moved; bool[n]."""
        return self._old.find(offsets)[1] | self._young.find(offsets)[1]

    def stale(self, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        """Return a mask that is true for each of these keys that is stale; bool[n].

        Returns None if no key is stale.
        """
        if self.empty:
            return None
        stale: Bools = self.current(offsets, due_ms) != due_ms
        return stale if stale.any() else None

    # -- discarding ------------------------------------------------------------

    def below(self, end: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return the entries with offsets below ``end``.

        Returns three columns: the current due times, the latest due times, and the offsets.
        """
        self._merge()
        found = self._old.pick(slice(0, int(self._old.offsets.searchsorted(end))))
        return found.due_ms, found.last_ms, found.offsets

    def discard(self, offsets: Int64s) -> None:
        """Discard the entries of these messages, if they have any. The offsets ascend."""
        if len(offsets):
            self._merge()
            self._old = self._old.pick(~np.isin(self._old.offsets, offsets, assume_unique=True))
            self._changed.update(np.unique(offsets >> _CHUNK_BITS).tolist())

    # -- rows ------------------------------------------------------------------

    def dirty_chunks(self) -> dict[int, bytes]:
        """Return the rows that changed since the last call; empty bytes delete a row."""
        self._merge()
        changed, self._changed = sorted(self._changed), set()
        return {chunk_no: self._row(chunk_no) for chunk_no in changed}

    def rows(self) -> list[tuple[int, bytes]]:
        """Return all rows as pairs (number, bytes), which ``load_chunk`` takes."""
        self._merge()
        chunks = np.unique(self._old.offsets >> _CHUNK_BITS).tolist()
        return [(chunk_no, self._row(chunk_no)) for chunk_no in chunks]

    def load_chunk(self, chunk_no: int, row: Buffer) -> None:
        """Add the entries of a stored row, which ``dirty_chunks`` or ``rows`` returned.

        Raises:
          LogDamaged: if the row is damaged.
        """
        view = unsealed(row, 0, _HEAD_BYTES, f"chunk {chunk_no} of a topic's moves")
        (count,) = _COUNT.unpack_from(view, SEAL_BYTES)
        if len(view) - _HEAD_BYTES != 8 * _COLUMNS * count:
            raise LogDamaged(f"chunk {chunk_no} of a topic's moves has the wrong length")
        table = np.frombuffer(view, "<i8", _COLUMNS * count, _HEAD_BYTES).reshape(_COLUMNS, count)
        self._old = self._old.under(_Entries(*table.astype(np.int64)))

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
