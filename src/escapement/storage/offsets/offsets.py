"""Sets of message offsets, such as those that a subscription has acknowledged.

An :class:`OffsetSet` is a set of integers from 0 to 2^63 - 1, divided into chunks of 2^20 integers.
A chunk is in one of three states, and only a partial chunk takes memory:

    =========  ==========================================  ======================
    empty      nothing is stored
    partial    a roaring bitmap of 20-bit remainders       at most 128 KiB
    full       one bit in the bitmap of full chunks        runs of them are free
    =========  ==========================================  ======================

In an old subscription nearly all chunks are full. A message due next year leaves one bit unset in
its chunk, and ten billion acknowledged messages take next to no memory.

A set is stored as *rows* ``(chunk_no, bytes)`` of a database table. Each partial chunk has a row;
empty and full chunks have none. One more row, with the number ``FULL_CHUNKS``, has the numbers of
all full chunks. Rows that must be written or deleted because the set has changed are *dirty*:
``dirty_chunks`` returns them, and ``mark_clean`` confirms that they were written. ``load_chunk``
restores a set from its rows, in any order.

Invariants (``_check``): a chunk is never both partial and full; a partial chunk has at least one
offset and lacks at least one; the length of the set is the sum of its chunks. This module does no
I/O, and its callers define the meaning of the offsets.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s
from escapement.storage.offsets import offset_chunk
from escapement.storage.offsets.offset_bits import OffsetBits, bits_of
from escapement.storage.offsets.offset_chunk import CHUNK_BITS, CHUNK_SIZE
from escapement.storage.offsets.offset_column import decode_offsets, encode_offsets

# The number of the row that has the numbers of all full chunks.
FULL_CHUNKS: Final = -1

# One more than the highest offset.
_END: Final = 1 << 63

_REMAINDER: Final = CHUNK_SIZE - 1
_NO_BITS: Final = BitMap()


class OffsetSet:
    """A mutable set of offsets, with methods for numpy columns of offsets.

    Methods take time for the offsets passed and the chunks that these lie in, whatever the size of
    the set, unless their docstrings say otherwise.
    """

    __slots__ = ("_changed", "_chunks", "_full", "_length", "_unconfirmed", "removed")

    def __init__(self) -> None:
        self._chunks: dict[int, BitMap] = {}  # the partial chunks, by number
        self._full = BitMap64()  # the numbers of the full chunks
        self._length = 0
        # Grows by at least one for each offset that is removed, so that callers notice removals.
        self.removed = 0
        # The numbers of rows that have changed since the last call of dirty_chunks.
        self._changed: set[int] = set()
        # The numbers of rows that dirty_chunks has returned and mark_clean has not confirmed.
        self._unconfirmed: set[int] = set()

    def __len__(self) -> int:
        return self._length

    def __contains__(self, offset: int) -> bool:
        chunk_no = offset >> CHUNK_BITS
        chunk = self._chunks.get(chunk_no)
        if chunk is None:
            return chunk_no >= 0 and chunk_no in self._full
        return (offset & _REMAINDER) in chunk

    # -- single offsets and columns --------------------------------------------

    def add(self, offsets: Int64s | OffsetBits) -> int:
        """Add offsets, in any order and with repeats, and return how many were new."""
        bits = bits_of(offsets)
        column = bits.offsets
        if len(column) == 1:
            return self.add_one(int(column[0]))
        if bits.is_run:
            return self.add_range(int(column[0]), int(column[-1]) + 1)
        before = self._length
        for chunk_no, added in bits.chunks:
            self._add_bits(chunk_no, added)
        return self._length - before

    def add_one(self, offset: int) -> bool:
        """Add one offset and return whether it was new."""
        assert offset >= 0, offset
        chunk_no = offset >> CHUNK_BITS
        if chunk_no in self._full:
            return False
        chunk = self._chunk_to_fill(chunk_no)
        had = len(chunk)
        chunk.add(offset & _REMAINDER)
        return self._settle(chunk_no, chunk, had)

    def discard(self, offsets: Int64s | OffsetBits) -> int:
        """Remove offsets, in any order and with repeats, and return how many were in the set."""
        bits = bits_of(offsets)
        column = bits.offsets
        if len(column) == 1:
            return self.discard_one(int(column[0]))
        if bits.is_run:
            return self.discard_range(int(column[0]), int(column[-1]) + 1)
        before = self._length
        for chunk_no, taken in bits.chunks:
            self._discard_bits(chunk_no, taken)
        return before - self._length

    def discard_one(self, offset: int) -> bool:
        """Remove one offset and return whether it was in the set."""
        assert offset >= 0, offset
        chunk_no = offset >> CHUNK_BITS
        chunk = self._chunk_to_thin(chunk_no)
        if chunk is None:
            return False
        had = len(chunk)
        chunk.discard(offset & _REMAINDER)
        return self._settle(chunk_no, chunk, had)

    def contains(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return a mask that is true for each of the ``offsets`` that is in the set; bool[n]."""
        if not len(offsets):
            return np.zeros(0, np.bool_)
        numbers = offsets >> CHUNK_BITS
        if int(numbers.min()) == int(numbers.max()):
            return self._contains_in(int(numbers[0]), offsets)
        found = np.empty(len(offsets), np.bool_)
        order = np.argsort(numbers, kind="stable")
        bounds = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
        for low, high in pairwise(bounds):
            rows = order[low:high]
            found[rows] = self._contains_in(int(numbers[rows[0]]), offsets[rows])
        return found

    def new_of(self, offsets: Int64s | OffsetBits) -> OffsetBits:
        """Return those of the ``offsets`` that are not in the set, sorted, each once."""
        bits = bits_of(offsets)
        if bits.is_run and not self._meets(int(bits.offsets[0]), int(bits.offsets[-1]) + 1):
            return bits
        new = []
        for chunk_no, asked in bits.chunks:
            if chunk_no not in self._full:
                chunk = self._chunks.get(chunk_no)
                new.append((chunk_no, asked if chunk is None else asked - chunk))
        parts = [offset_chunk.offsets_of(chunk_no, bits) for chunk_no, bits in new]
        return OffsetBits(offset_chunk.concatenate(parts), [part for part in new if part[1]])

    def intersects(self, offsets: Int64s | OffsetBits) -> bool:
        """Return whether any of ``offsets`` is in the set."""
        for chunk_no, asked in bits_of(offsets).chunks:
            chunk = self._chunks.get(chunk_no)
            if chunk is None:
                if chunk_no in self._full:
                    return True
            elif chunk.intersect(asked):
                return True
        return False

    # -- ranges ----------------------------------------------------------------

    def _meets(self, first: int, end: int) -> bool:
        """Return whether any offset in ``[first, end)`` is in the set."""
        if end - first == 1:
            return first in self
        for chunk_no, low, high in offset_chunk.edges(first, end):
            chunk = self._chunks.get(chunk_no)
            if chunk is None:
                if chunk_no in self._full:
                    return True
            elif chunk.range_cardinality(low, high):
                return True
        whole = range(*offset_chunk.whole_chunks(first, end))
        return any(chunk_no in self._chunks or chunk_no in self._full for chunk_no in whole)

    def add_range(self, first: int, end: int) -> int:
        """Add all offsets in ``[first, end)`` and return how many were new. O(partial chunks)."""
        before = self._length
        for chunk_no, low, high in offset_chunk.edges(first, end):
            if chunk_no not in self._full:
                chunk = self._chunk_to_fill(chunk_no)
                had = len(chunk)
                chunk.add_range(low, high)
                self._settle(chunk_no, chunk, had)
        low_no, high_no = offset_chunk.whole_chunks(first, end)
        if low_no < high_no and not self._full.contains_range(low_no, high_no):
            self._forget(low_no, high_no)
            self._length += (high_no - low_no) * CHUNK_SIZE
            self._full.add_range(low_no, high_no)
            self._changed.add(FULL_CHUNKS)
        return self._length - before

    def discard_range(self, first: int, end: int) -> int:
        """Remove all offsets in ``[first, end)`` and return how many were in the set.

        Complexity: O(partial chunks).
        """
        before = self._length
        for chunk_no, low, high in offset_chunk.edges(first, end):
            chunk = self._chunk_to_thin(chunk_no)
            if chunk is not None:
                had = len(chunk)
                chunk.remove_range(low, high)
                self._settle(chunk_no, chunk, had)
        self._forget(*offset_chunk.whole_chunks(first, end))
        return before - self._length

    # -- holes and members -----------------------------------------------------

    def first_missing(self, start: int) -> int:
        """Return the smallest offset from ``start`` on that is not in the set.

        Complexity: O(log n) for each chunk that has to be searched.
        """
        while True:
            chunk_no, low = start >> CHUNK_BITS, start & _REMAINDER
            chunk = self._chunks.get(chunk_no)
            if chunk is not None:
                gap = offset_chunk.first_gap(chunk, low, CHUNK_SIZE)
                if gap < CHUNK_SIZE:
                    return (chunk_no << CHUNK_BITS) + gap
                chunk_no += 1
            elif chunk_no in self._full:
                chunk_no = offset_chunk.first_gap(self._full, chunk_no, int(self._full.max()) + 1)
            else:
                return start
            start = chunk_no << CHUNK_BITS

    def missing(self, low: int, high: int, limit: int | None = None) -> Int64s:
        """Return the offsets in ``[low, high)`` that are not in the set, sorted; int64[m].

        Args:
          limit: return only this many, the lowest; None for all.
        """
        left = high - low if limit is None else limit
        parts = []
        at = self.first_missing(low)
        while at < high and left > 0:
            chunk_no, start = at >> CHUNK_BITS, at & _REMAINDER
            end = min(CHUNK_SIZE, high - (chunk_no << CHUNK_BITS))
            chunk = self._chunks.get(chunk_no)
            if chunk is None:
                part = np.arange(at, at + min(left, end - start), dtype=np.int64)
            else:
                holes = offset_chunk.span(start, end) - chunk
                part = offset_chunk.offsets_of(chunk_no, holes)[:left]
            parts.append(part)
            left -= len(part)
            at = self.first_missing((chunk_no + 1) << CHUNK_BITS)
        return offset_chunk.concatenate(parts)

    def count_below(self, end: int) -> int:
        """Return how many offsets of the set are below ``end``; O(chunks)."""
        last_no, rest = end >> CHUNK_BITS, end & _REMAINDER
        count = sum(len(chunk) for chunk_no, chunk in self._chunks.items() if chunk_no < last_no)
        if last_no:
            count += int(self._full.rank(last_no - 1)) << CHUNK_BITS
        if rest and last_no in self._full:
            return count + rest
        chunk = self._chunks.get(last_no)
        return count + (int(chunk.rank(rest - 1)) if rest and chunk is not None else 0)

    def to_array(self, low: int, high: int) -> Int64s:
        """Return the offsets of the set in ``[low, high)``; int64[m], sorted."""
        parts = []
        for chunk_no in sorted({*self._chunks, *offset_chunk.members(self._full, low, high)}):
            base = chunk_no << CHUNK_BITS
            if base + CHUNK_SIZE <= low or base >= high:
                continue
            chunk = self._chunks.get(chunk_no)
            if chunk is None:
                part = np.arange(max(base, low), min(base + CHUNK_SIZE, high), dtype=np.int64)
            else:
                part = offset_chunk.offsets_of(chunk_no, chunk)
                part = part[np.searchsorted(part, low) : np.searchsorted(part, high)]
            parts.append(part)
        return offset_chunk.concatenate(parts)

    def left(
        self, done: OffsetSet, dropped: OffsetSet, kept: OffsetSet, highest: int | None = None
    ) -> Iterator[tuple[int, BitMap]]:
        """Yield the offsets of this set that are neither done nor dropped, highest chunk first.

        Args:
          done: offsets to leave out.
          dropped: more offsets to leave out, except those that are also in ``kept``.
          kept: offsets that ``dropped`` does not apply to.
          highest: skip the chunks above the chunk with this offset; None to skip none.

        Yields:
          For each chunk with such offsets, the first offset of the chunk, and a bitmap of the
          remainders, which are to be added to it.
        """
        for chunk_no in sorted({*self._chunks, *self._full}, reverse=True):
            if highest is not None and chunk_no > highest >> CHUNK_BITS:
                continue
            left = self._bits(chunk_no) - done._bits(chunk_no)
            if left and len(dropped):
                left -= dropped._bits(chunk_no) - kept._bits(chunk_no)
            if left:
                yield chunk_no << CHUNK_BITS, left

    def _bits(self, chunk_no: int) -> BitMap:
        if chunk_no in self._full:
            return offset_chunk.span(0, CHUNK_SIZE)
        return self._chunks.get(chunk_no, _NO_BITS)

    # -- other sets ------------------------------------------------------------

    def union_update(self, other: OffsetSet) -> int:
        """Add all offsets of ``other`` and return how many were new. O(size of other)."""
        before = self._length
        for low_no, high_no in offset_chunk.runs(other._full):
            self.add_range(low_no << CHUNK_BITS, high_no << CHUNK_BITS)
        for chunk_no, theirs in other._chunks.items():
            self._add_bits(chunk_no, theirs)
        return self._length - before

    def difference_update(self, other: OffsetSet) -> int:
        """Remove all offsets of ``other`` and return how many were in the set.

        Complexity: O(size of other).
        """
        before = self._length
        for low_no, high_no in offset_chunk.runs(other._full):
            self.discard_range(low_no << CHUNK_BITS, high_no << CHUNK_BITS)
        for chunk_no, theirs in list(other._chunks.items()):
            self._discard_bits(chunk_no, theirs)
        return before - self._length

    def copy(self) -> OffsetSet:
        """Return a copy of the set. All rows of the copy are dirty. O(size)."""
        return self.part(0, _END)

    def part(self, low: int, high: int) -> OffsetSet:
        """Return a new set with copies of the chunks that overlap with ``[low, high)``.

        These chunks may have offsets outside of the range too. All rows of the new set are dirty.
        """
        twin = OffsetSet()
        first, end = low >> CHUNK_BITS, -(-high >> CHUNK_BITS)
        twin._chunks = {no: self._chunks[no].copy() for no in self._chunks if first <= no < end}
        twin._full = self._full.copy()
        twin._full.remove_range(0, first)
        twin._full.remove_range(end, _END >> CHUNK_BITS)
        twin._length = sum(map(len, twin._chunks.values())) + len(twin._full) * CHUNK_SIZE
        twin._changed = {*twin._chunks, FULL_CHUNKS}
        return twin

    # -- rows ------------------------------------------------------------------

    def dirty_chunks(self, without: OffsetSet | None = None) -> dict[int, bytes]:
        """Return the dirty rows: those that changed, and those that are not confirmed yet.

        Writing all of them in one transaction makes the stored set equal to this one. A row with
        empty bytes is to be deleted.

        Args:
          without: offsets to leave out of the rows, so that the stored set lacks them. Rows that
            this changes stay dirty.
        """
        self._unconfirmed |= self._changed
        self._changed.clear()
        stored = self
        if without is not None and len(without):
            stored = self._without(without)
            self._changed |= stored._changed
            self._unconfirmed |= stored._changed
        return {chunk_no: stored._row(chunk_no) for chunk_no in sorted(self._unconfirmed)}

    def _without(self, other: OffsetSet) -> OffsetSet:
        """Return this set without the offsets of ``other``, only to read its rows.

        Its dirty rows are those that differ from this set's. It shares the other chunks with this
        set, so neither may be changed meanwhile.
        """
        twin = OffsetSet()
        twin._chunks = self._chunks | {
            no: self._chunks[no].copy() for no in other._chunks if no in self._chunks
        }
        twin._full = self._full.copy()
        twin.difference_update(other)
        return twin

    def rows(self) -> list[tuple[int, bytes]]:
        """Return all rows of the set as pairs (number, bytes), which ``load_chunk`` takes."""
        full = [FULL_CHUNKS] if self._full else []
        return [(no, self._row(no)) for no in (*full, *sorted(self._chunks))]

    def mark_clean(self) -> None:
        """Confirm that the rows that ``dirty_chunks`` returned last were written durably.

        Rows that changed since that call stay dirty. If writing failed, do not call this, and the
        next ``dirty_chunks`` returns the rows again.
        """
        self._unconfirmed.clear()

    def load_chunk(self, chunk_no: int, row: Buffer) -> None:
        """Restore a stored row. Begin with an empty set, and call this for each of its rows.

        A full chunk may still have an old row of its own, because rows are written and deleted in
        several steps, and the row of full chunks is written first. The old row becomes dirty, so
        that the next ``dirty_chunks`` deletes it.

        Args:
          chunk_no: the number of the row.
          row: the bytes of the row.

        Raises:
          LogDamaged: if the row is damaged, or a row with this number was loaded before.
        """
        if chunk_no == FULL_CHUNKS:
            if self._full:
                raise LogDamaged("a set of offsets has two rows of full chunks")
            numbers = decode_offsets(row)
            for no in numbers.tolist():
                stale = self._chunks.pop(no, None)
                if stale is not None:
                    self._length -= len(stale)
                    self._changed.add(no)
            self._full.update(array("Q", numbers.tobytes()))
            self._length += len(numbers) * CHUNK_SIZE
            return
        if chunk_no < 0 or chunk_no in self._chunks:
            raise LogDamaged(f"chunk {chunk_no} of a set of offsets has an unexpected row")
        if chunk_no in self._full:
            self._changed.add(chunk_no)
            return
        chunk = offset_chunk.decode_chunk(chunk_no, row)
        self._chunks[chunk_no] = chunk
        self._length += len(chunk)

    def _row(self, chunk_no: int) -> bytes:
        if chunk_no == FULL_CHUNKS:
            return encode_offsets(np.array(self._full.to_array(), np.int64))
        partial = self._chunks.get(chunk_no)
        return b"" if partial is None else offset_chunk.encode_chunk(partial)

    # -- states of a chunk -----------------------------------------------------

    def _add_bits(self, chunk_no: int, added: BitMap) -> None:
        if chunk_no not in self._full:
            chunk = self._chunk_to_fill(chunk_no)
            had = len(chunk)
            chunk |= added
            self._settle(chunk_no, chunk, had)

    def _discard_bits(self, chunk_no: int, taken: BitMap) -> None:
        chunk = self._chunk_to_thin(chunk_no)
        if chunk is not None:
            had = len(chunk)
            chunk -= taken
            self._settle(chunk_no, chunk, had)

    def _chunk_to_fill(self, chunk_no: int) -> BitMap:
        chunk = self._chunks.get(chunk_no)
        if chunk is None:
            chunk = self._chunks[chunk_no] = BitMap()
        return chunk

    def _chunk_to_thin(self, chunk_no: int) -> BitMap | None:
        chunk = self._chunks.get(chunk_no)
        if chunk is None and chunk_no in self._full:
            # The caller will remove offsets from this full chunk, so that it becomes partial.
            self._full.discard(chunk_no)
            self._changed.add(FULL_CHUNKS)
            chunk = self._chunks[chunk_no] = offset_chunk.span(0, CHUNK_SIZE)
        return chunk

    def _settle(self, chunk_no: int, chunk: BitMap, had: int) -> bool:
        """Update length, states and dirty rows after a change of a chunk.

        Args:
          chunk: the bitmap of the chunk after the change.
          had: the number of offsets in the chunk before the change.

        Returns:
          Whether the chunk has another number of offsets than before.
        """
        has = len(chunk)
        if has == had:
            return False
        self._length += has - had
        self.removed += max(0, had - has)
        self._changed.add(chunk_no)
        if has == CHUNK_SIZE:
            del self._chunks[chunk_no]
            self._full.add(chunk_no)
            self._changed.add(FULL_CHUNKS)
        elif not has:
            del self._chunks[chunk_no]
        return True

    def _forget(self, low_no: int, high_no: int) -> None:
        """Remove all offsets of the chunks from number ``low_no`` to ``high_no - 1``."""
        if low_no >= high_no:
            return
        for chunk_no in [no for no in self._chunks if low_no <= no < high_no]:
            self._length -= (had := len(self._chunks.pop(chunk_no)))
            self.removed += had
            self._changed.add(chunk_no)
        full = self._full.range_cardinality(low_no, high_no)
        if full:
            self._length -= full * CHUNK_SIZE
            self.removed += full * CHUNK_SIZE
            self._full.remove_range(low_no, high_no)
            self._changed.add(FULL_CHUNKS)

    def _contains_in(self, chunk_no: int, offsets: Int64s) -> npt.NDArray[np.bool_]:
        chunk = self._chunks.get(chunk_no)
        if chunk is None:
            return np.full(len(offsets), chunk_no in self._full, np.bool_)
        return offset_chunk.which_of(offset_chunk.remainders_of(offsets), chunk)

    def _check(self) -> None:
        """Assert the invariants in the module's docstring; O(size)."""
        assert all(0 < len(chunk) < CHUNK_SIZE for chunk in self._chunks.values())
        assert all(chunk.max() < CHUNK_SIZE for chunk in self._chunks.values())
        assert all(no >= 0 and no not in self._full for no in self._chunks)
        partial = sum(map(len, self._chunks.values()))
        assert self._length == len(self._full) * CHUNK_SIZE + partial
