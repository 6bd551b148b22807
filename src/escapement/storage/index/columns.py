"""Columns of messages in memory: columns that grow, and batches gathered from several sources.

A message is a *row*: its payload, key, properties, priority and group are entries of five columns.
:class:`Columns` is the set of columns of a memory table or of a block read from disk, and
:class:`GrowingColumns` is such a set that grows at its end. Byte strings are in an :class:`Arena`:
the bytes of all rows end to end, with the start and the length of each string.

:func:`assemble` gathers rows of several sources into one ``MessageBatch``. A :class:`Pick` names
rows of one source and their *positions*, the rows of the result that they become. This module knows
nothing of sort keys, topics or files. ("Key" here is the key that a producer gives a message.)

Rows are only appended, and growing replaces arrays instead of changing them. So a reader in any
thread sees every row that existed when it got its reference to the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from escapement.message import (
    DEFAULT_PRIORITY,
    Blobs,
    Buffer,
    Int64s,
    MessageBatch,
    UInt8s,
    UInt32s,
    cells_of,
    copy_strings,
)

# The first size of an arena: small, because a hundred thousand topics may have a message each.
_FIRST_BYTES: Final = 128
# Rows that follow each other in the source and in the result are copied together. If fewer than
# one row in this many follows another, all rows are copied one by one.
_FEW_NEIGHBOURS: Final = 8
# The strings of fewer rows than this are copied one at a time, because each call of numpy costs as
# much as copying some strings.
_FEW_ROWS: Final = 16
# Scattered strings are copied fastest as *cells* of equal width, whose surplus bytes are cut off
# afterwards. That is done for at least ``_FEW`` strings. So that the surplus is small, they must
# all have one length of at most ``_WIDE_BYTES``, or any lengths up to ``_NARROW_BYTES``.
_FEW: Final = 128
_WIDE_BYTES: Final = 1024
_NARROW_BYTES: Final = 32


class Strings(Protocol):
    """A column of byte strings: the bytes of all, and the start and the length of each in these."""

    @property
    def data(self) -> Buffer: ...
    @property
    def starts(self) -> Int64s: ...
    @property
    def lengths(self) -> UInt32s: ...


@dataclass(frozen=True, slots=True)
class FixedStrings:
    """A column of byte strings that does not grow, such as one of a block read from disk."""

    data: Buffer
    starts: Int64s
    lengths: UInt32s

    @classmethod
    def of(cls, blobs: Blobs) -> FixedStrings:
        return cls(blobs.data, blobs.starts(), blobs.lengths)


class Arena:
    """A column of byte strings that grows at its end."""

    __slots__ = ("_bytes", "lengths", "starts", "used")

    def __init__(self, row_capacity: int, size_bytes: int) -> None:
        self._bytes: UInt8s = np.empty(max(size_bytes, _FIRST_BYTES), np.uint8)
        self.starts: Int64s = np.zeros(row_capacity, np.int64)
        self.lengths: UInt32s = np.zeros(row_capacity, np.uint32)
        self.used = 0

    @property
    def data(self) -> Buffer:
        return self._bytes.data

    @property
    def memory_bytes(self) -> int:
        return self._bytes.nbytes + self.starts.nbytes + self.lengths.nbytes

    def append(self, row: int, blobs: Blobs, keep: bool = False) -> None:
        """Store strings as the rows from ``row`` on; there must be room for these rows.

        Args:
          blobs: the strings to store.
          keep: refer to the bytes of ``blobs`` instead of copying them. The arena must be empty.
        """
        size = len(blobs.data)
        used = self.used
        if keep and size:
            assert not used, "only an empty arena can keep the bytes of a batch"
            self._bytes = np.frombuffer(blobs.data, np.uint8)
        else:
            if used + size > len(self._bytes):
                self._grow(used + size)
            self._bytes.data[used : used + size] = blobs.data
        count = len(blobs.lengths)
        self.lengths[row : row + count] = blobs.lengths
        self.starts[row] = used
        if count > 1:
            starts = self.starts[row + 1 : row + count]
            np.cumsum(blobs.lengths[:-1], dtype=np.int64, out=starts)
            starts += used
        self.used = used + size

    def make_room(self, row_capacity: int) -> None:
        """Grow to ``row_capacity`` rows; the new rows have empty strings."""
        starts = np.zeros(row_capacity, np.int64)
        starts[: len(self.starts)] = self.starts
        lengths = np.zeros(row_capacity, np.uint32)
        lengths[: len(self.lengths)] = self.lengths
        self.starts, self.lengths = starts, lengths

    def _grow(self, needed_bytes: int) -> None:
        larger = np.empty(max(2 * len(self._bytes), needed_bytes), np.uint8)
        larger[: self.used] = self._bytes[: self.used]
        self._bytes = larger


class GrowingColumns:
    """The columns of a memory table, which grows at its end.

    Columns other than the payloads are None until a batch with such a column is appended.
    """

    __slots__ = ("_row_capacity", "groups", "keys", "payloads", "priorities", "properties")

    def __init__(self, row_capacity: int, size_bytes: int) -> None:
        self._row_capacity = row_capacity
        self.payloads = Arena(row_capacity, size_bytes)
        self.keys: Arena | None = None
        self.properties: Arena | None = None
        self.priorities: UInt8s | None = None
        self.groups: Arena | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory that the columns take, unused capacity included."""
        size = 0 if self.priorities is None else self.priorities.nbytes
        for arena in self.arenas():
            size += arena.memory_bytes
        return size

    @property
    def message_bytes(self) -> int:
        """The total size of the messages' byte strings, without unused capacity."""
        return sum(arena.used for arena in self.arenas())

    def append(self, row: int, batch: MessageBatch, keep: bool = False) -> None:
        """Store a batch as the rows from ``row`` on; there must be room for these rows.

        Args:
          batch: the messages to store.
          keep: refer to the bytes of the batch instead of copying them. It must be the first batch.
        """
        end = row + len(batch.payloads.lengths)
        self.payloads.append(row, batch.payloads, keep)
        if batch.keys is not None or self.keys is not None:
            self.keys = self._append(self.keys, row, end, batch.keys, keep)
        if batch.properties is not None or self.properties is not None:
            self.properties = self._append(self.properties, row, end, batch.properties, keep)
        if batch.groups is not None or self.groups is not None:
            self.groups = self._append(self.groups, row, end, batch.groups, keep)
        if batch.priorities is not None:
            if self.priorities is None:
                self.priorities = np.full(self._row_capacity, DEFAULT_PRIORITY, np.uint8)
            self.priorities[row:end] = batch.priorities

    def _append(
        self, arena: Arena | None, row: int, end: int, blobs: Blobs | None, keep: bool
    ) -> Arena:
        if arena is None:
            arena = Arena(self._row_capacity, 0)  # rows of earlier batches are empty strings
        if blobs is not None:
            arena.append(row, blobs, keep)
        else:
            arena.starts[row:end] = arena.used
        return arena

    def make_room(self, row_capacity: int) -> None:
        """Grow all columns to ``row_capacity`` rows."""
        self._row_capacity = row_capacity
        for arena in self.arenas():
            arena.make_room(row_capacity)
        if self.priorities is not None:
            priorities = np.full(row_capacity, DEFAULT_PRIORITY, np.uint8)
            priorities[: len(self.priorities)] = self.priorities
            self.priorities = priorities

    def clear(self) -> None:
        """Remove all rows, but keep the memory of the payloads for new rows."""
        self.payloads.used = 0
        self.keys = self.properties = self.groups = None
        self.priorities = None

    def arenas(self) -> list[Arena]:
        """Return the columns of byte strings that exist: all columns but the priorities."""
        columns = (self.payloads, self.keys, self.properties, self.groups)
        return [arena for arena in columns if arena is not None]


def pinned_bytes(*columns: Blobs | None) -> int:
    """Return the bytes of memory that these columns keep alive.

    A column may be a view of a larger buffer, which then counts in full, and only once.
    """
    pinned: dict[int, int] = {}
    for column in columns:
        owner: object = None if column is None else column.data
        while isinstance(owner, memoryview | np.ndarray):
            base = owner.obj if isinstance(owner, memoryview) else owner.base
            if base is None:
                break
            owner = base
        if owner is not None:
            pinned[id(owner)] = memoryview(owner).nbytes  # type: ignore[arg-type]
    return sum(pinned.values())


class Columns(Protocol):
    """The columns of a memory table or block, from which ``assemble`` gathers rows."""

    @property
    def payloads(self) -> Strings: ...
    @property
    def keys(self) -> Strings | None: ...
    @property
    def properties(self) -> Strings | None: ...
    @property
    def priorities(self) -> UInt8s | None: ...
    @property
    def groups(self) -> Strings | None: ...


@dataclass(frozen=True, slots=True)
class FixedColumns:
    """The columns of a batch, from which ``assemble`` gathers rows."""

    payloads: FixedStrings
    keys: FixedStrings | None
    properties: FixedStrings | None
    priorities: UInt8s | None
    groups: FixedStrings | None

    @classmethod
    def of(cls, batch: MessageBatch) -> FixedColumns:
        """Return the columns of ``batch`` without a copy."""
        return cls(
            FixedStrings.of(batch.payloads),
            None if batch.keys is None else FixedStrings.of(batch.keys),
            None if batch.properties is None else FixedStrings.of(batch.properties),
            batch.priorities,
            None if batch.groups is None else FixedStrings.of(batch.groups),
        )


class Pick(NamedTuple):
    """Rows of one source; ``rows[i]`` becomes row ``positions[i]`` of the result."""

    positions: Int64s
    columns: Columns
    rows: Int64s


def assemble(count: int, picks: Sequence[Pick]) -> MessageBatch:
    """Return a batch of ``count`` messages, gathered from the sources that the picks name.

    The picks must fill each of the ``count`` positions exactly once. Rows that follow each other in
    the source and in the result are copied together, if there are enough of them.

    Complexity: O(bytes copied).
    """
    if not count:
        return MessageBatch(Blobs.empty(0))
    # For a few rows, looking for neighbours costs more than copying each row by itself.
    few = count < _FEW_ROWS
    runs = [None if few else _runs(pick.positions, pick.rows) for pick in picks]
    payloads = _strings(count, picks, runs, [pick.columns.payloads for pick in picks])
    assert payloads is not None, "every source has payloads"
    return MessageBatch(
        payloads,
        _strings(count, picks, runs, [pick.columns.keys for pick in picks]),
        _strings(count, picks, runs, [pick.columns.properties for pick in picks]),
        _priorities(count, picks),
        _strings(count, picks, runs, [pick.columns.groups for pick in picks]),
    )


def _priorities(count: int, picks: Sequence[Pick]) -> UInt8s | None:
    if all(pick.columns.priorities is None for pick in picks):
        return None
    out = np.full(count, DEFAULT_PRIORITY, np.uint8)
    for positions, columns, rows in picks:
        if columns.priorities is not None:
            out[positions] = columns.priorities[rows]
    return out


def _strings(
    count: int,
    picks: Sequence[Pick],
    runs: Sequence[tuple[Int64s, Int64s] | None],
    sources: Sequence[Strings | None],
) -> Blobs | None:
    """Return one string column of the result, or None if no source has this column.

    Rows from a source without the column get empty strings.

    Args:
      runs: the result of ``_runs`` for each pick.
      sources: the column in the source of each pick, or None if the source does not have it.
    """
    used = [(p, r, s) for p, r, s in zip(picks, runs, sources, strict=True) if s is not None]
    if not used:
        return None
    if count < _FEW_ROWS:
        return _few_strings(count, [(pick, source) for pick, _, source in used])
    lengths = np.zeros(count, np.uint32)
    for pick, _, source in used:
        lengths[pick.positions] = source.lengths[pick.rows]
    if all(run is None for _, run, _ in used) and (width := _cell_width(lengths)):
        return _from_cells(lengths, width, [(p, s) for p, _, s in used])
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    out = np.empty(int(ends[-1]), np.uint8)
    for (positions, _, rows), run, source in used:
        if run is None:
            begins, own = source.starts[rows], lengths[positions]
            if _are_neighbours(positions) and (width := _cell_width(own)):
                found = _cut(cells_of(source.data, begins, own, width), own)
                out[starts[positions[0]] : ends[positions[-1]]] = found
            else:
                copy_strings(out, starts[positions], source.data, begins, own.astype(np.int64))
            continue
        firsts, lasts = rows[run[0]], rows[run[1]]
        begins = source.starts[firsts]
        widths = source.starts[lasts] + source.lengths[lasts] - begins
        copy_strings(out, starts[positions[run[0]]], source.data, begins, widths)
    return Blobs(lengths, out.data)


def _few_strings(count: int, used: Sequence[tuple[Pick, Strings]]) -> Blobs:
    """Gather a string column of a few rows, one string at a time.

    Args:
      used: each pick with the column of its source.
    """
    found: list[Buffer] = [b""] * count
    for (positions, _, rows), source in used:
        data = memoryview(source.data)
        columns = (positions.tolist(), source.starts[rows].tolist(), source.lengths[rows].tolist())
        for position, start, length in zip(*columns, strict=True):
            found[position] = data[start : start + length]
    lengths = np.array([len(string) for string in found], np.uint32)
    return Blobs(lengths, b"".join(found))


def _cell_width(lengths: UInt32s) -> int:
    """Return the width of the cells as which to copy strings of these lengths.

    Returns 0 if the strings should not be copied as cells.
    """
    if len(lengths) < _FEW:
        return 0
    widest = int(lengths.max())
    uniform = int(lengths.min()) == widest
    return widest if widest <= (_WIDE_BYTES if uniform else _NARROW_BYTES) else 0


def _from_cells(lengths: UInt32s, width: int, used: Sequence[tuple[Pick, Strings]]) -> Blobs:
    """Gather a string column by copying each string as a cell of ``width`` bytes.

    Args:
      lengths: the length of each string of the result.
      used: each pick with the column of its source.
    """
    (positions, _, rows), source = used[0]
    # In the usual case, one source has all strings in order, and no cells have to be rearranged.
    if len(positions) == len(lengths) and _are_neighbours(positions):
        cells = cells_of(source.data, source.starts[rows], lengths, width)
        return Blobs(lengths, _cut(cells, lengths).data)
    cells = np.empty(len(lengths), np.dtype((np.void, width)))
    for (positions, _, rows), source in used:
        cells[positions] = cells_of(source.data, source.starts[rows], lengths[positions], width)
    return Blobs(lengths, _cut(cells, lengths).data)


def _cut(cells: npt.NDArray[np.void], lengths: UInt32s) -> UInt8s:
    """Return the first ``lengths[i]`` bytes of each cell ``i``, end to end."""
    width = cells.dtype.itemsize
    found = cells.view(np.uint8)
    if int(lengths.min()) == width:
        return found
    of_length = np.arange(width) < np.arange(width + 1)[:, None]
    wanted: UInt8s = found.reshape(-1, width)[of_length.take(lengths, axis=0)]
    return wanted


def _are_neighbours(positions: Int64s) -> bool:
    return bool((positions[1:] - positions[:-1] == 1).all())


def _runs(positions: Int64s, rows: Int64s) -> tuple[Int64s, Int64s] | None:
    """Return the first and the last index of each run in which positions and rows ascend by one.

    The strings of a run are copied together. Returns None if there are nearly as many runs as rows.
    """
    breaks = (rows[1:] - rows[:-1]) != 1
    if _FEW_NEIGHBOURS * int(np.count_nonzero(breaks)) <= (_FEW_NEIGHBOURS - 1) * len(breaks):
        breaks |= (positions[1:] - positions[:-1]) != 1
    ends = np.flatnonzero(breaks)
    if _FEW_NEIGHBOURS * len(ends) > (_FEW_NEIGHBOURS - 1) * len(breaks):
        return None
    return np.append(0, ends + 1), np.append(ends, len(rows) - 1)
