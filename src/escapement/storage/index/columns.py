"""Columns that grow, and one batch gathered out of many of them.

Owns how message columns lie in memory: :class:`Arena` is a column of byte strings
that grows at its end, :class:`Columns` the set of columns of one table or block, and
:func:`assemble` builds a ``MessageBatch`` from rows that lie in several of those, in
one pass. Knows nothing of keys, topics or files.

Rows are only ever appended, and growing replaces arrays instead of changing them:
whoever holds a reference sees every row that was there when it was taken, from any
thread.
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

# A first arena: small, because a hundred thousand topics may hold one message each.
_FIRST_BYTES: Final = 128
# Of rows of which fewer than one in so many follow each other each is copied by itself.
_FEW_NEIGHBOURS: Final = 8
# Strings that lie apart are taken as cells of equal width, where there are at least so many, and
# they are no wider: if all have one length, or if what is cut off again is little.
_FEW: Final = 128
_WIDE_BYTES: Final = 1024
_NARROW_BYTES: Final = 32


class Strings(Protocol):
    """A column of byte strings: where each begins in ``data`` and how long it is."""

    @property
    def data(self) -> Buffer: ...
    @property
    def starts(self) -> Int64s: ...
    @property
    def lengths(self) -> UInt32s: ...


@dataclass(frozen=True, slots=True)
class FixedStrings:
    """A column that does not grow any more (of a block that was read)."""

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
        """Put the strings at ``row`` and on; the rows must have been made room for.

        With ``keep`` they are the first, and their bytes are not copied but kept.
        """
        size = len(blobs.data)
        used = self.used
        if keep and size:
            assert not used, "bytes are kept in an arena that has some"
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
        """Make room for rows; new ones are empty strings."""
        starts = np.zeros(row_capacity, np.int64)
        starts[: len(self.starts)] = self.starts
        lengths = np.zeros(row_capacity, np.uint32)
        lengths[: len(self.lengths)] = self.lengths
        self.starts, self.lengths = starts, lengths

    def _grow(self, needed_bytes: int) -> None:
        larger = np.empty(max(2 * len(self._bytes), needed_bytes), np.uint8)
        larger[: self.used] = self._bytes[: self.used]
        self._bytes = larger


def pinned_bytes(*columns: Blobs | None) -> int:
    """What stays in memory as long as these are kept: all that their bytes are views of."""
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
    """The columns of a table or block that rows are gathered from."""

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
    """The columns of a batch, to gather from."""

    payloads: FixedStrings
    keys: FixedStrings | None
    properties: FixedStrings | None
    priorities: UInt8s | None
    groups: FixedStrings | None

    @classmethod
    def of(cls, batch: MessageBatch) -> FixedColumns:
        """The columns of ``batch``, not copied."""
        return cls(
            FixedStrings.of(batch.payloads),
            None if batch.keys is None else FixedStrings.of(batch.keys),
            None if batch.properties is None else FixedStrings.of(batch.properties),
            batch.priorities,
            None if batch.groups is None else FixedStrings.of(batch.groups),
        )


class Pick(NamedTuple):
    """Rows of one source, and where in the result they belong; equal heights."""

    places: Int64s
    columns: Columns
    rows: Int64s


def assemble(count: int, picks: Sequence[Pick]) -> MessageBatch:
    """The batch of ``count`` rows that the picks fill, each place exactly once.

    O(bytes taken). Neighbours in both are copied as one, where there are many.
    """
    if not count:
        return MessageBatch(Blobs.empty(0))
    runs = [_runs(pick.places, pick.rows) for pick in picks]
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
    for places, columns, rows in picks:
        if columns.priorities is not None:
            out[places] = columns.priorities[rows]
    return out


def _strings(
    count: int,
    picks: Sequence[Pick],
    runs: Sequence[tuple[Int64s, Int64s] | None],
    sources: Sequence[Strings | None],
) -> Blobs | None:
    """One column of the result; None if no source uses it, empty where a source does not.

    Args:
      runs: of each pick, as of ``_runs``.
    """
    used = [(p, r, s) for p, r, s in zip(picks, runs, sources, strict=True) if s is not None]
    if not used:
        return None
    lengths = np.zeros(count, np.uint32)
    for pick, _, source in used:
        lengths[pick.places] = source.lengths[pick.rows]
    if all(run is None for _, run, _ in used) and (width := _cell_width(lengths)):
        return _from_cells(lengths, width, [(p, s) for p, _, s in used])
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    out = np.empty(int(ends[-1]), np.uint8)
    for (places, _, rows), run, source in used:
        if run is None:
            begins, own = source.starts[rows], lengths[places]
            if (places[1:] - places[:-1] == 1).all() and (width := _cell_width(own)):
                found = _cut(cells_of(source.data, begins, own, width), own)
                out[starts[places[0]] : ends[places[-1]]] = found
            else:
                copy_strings(out, starts[places], source.data, begins, own.astype(np.int64))
            continue
        firsts, lasts = rows[run[0]], rows[run[1]]
        begins = source.starts[firsts]
        widths = source.starts[lasts] + source.lengths[lasts] - begins
        copy_strings(out, starts[places[run[0]]], source.data, begins, widths)
    return Blobs(lengths, out.data)


def _cell_width(lengths: UInt32s) -> int:
    """How wide the cells are as which strings of these lengths are best taken; 0: not as cells."""
    if len(lengths) < _FEW:
        return 0
    widest = int(lengths.max())
    uniform = int(lengths.min()) == widest
    return widest if widest <= (_WIDE_BYTES if uniform else _NARROW_BYTES) else 0


def _from_cells(lengths: UInt32s, width: int, used: Sequence[tuple[Pick, Strings]]) -> Blobs:
    """The strings of rows that lie apart, each of which is taken as a cell of ``width`` bytes."""
    cells = np.empty(len(lengths), np.dtype((np.void, width)))
    for (places, _, rows), source in used:
        cells[places] = cells_of(source.data, source.starts[rows], lengths[places], width)
    return Blobs(lengths, _cut(cells, lengths).data)


def _cut(cells: npt.NDArray[np.void], lengths: UInt32s) -> UInt8s:
    """The bytes of cells, of each so many."""
    width = cells.dtype.itemsize
    found = cells.view(np.uint8)
    if int(lengths.min()) == width:
        return found
    of_length = np.arange(width) < np.arange(width + 1)[:, None]
    wanted: UInt8s = found.reshape(-1, width)[of_length.take(lengths, axis=0)]
    return wanted


def _runs(places: Int64s, rows: Int64s) -> tuple[Int64s, Int64s] | None:
    """Where runs begin and end in which places and rows both go on by one: one string each.

    None if there are nearly as many as rows.
    """
    breaks = (rows[1:] - rows[:-1]) != 1
    if _FEW_NEIGHBOURS * int(np.count_nonzero(breaks)) <= (_FEW_NEIGHBOURS - 1) * len(breaks):
        breaks |= (places[1:] - places[:-1]) != 1
    ends = np.flatnonzero(breaks)
    if _FEW_NEIGHBOURS * len(ends) > (_FEW_NEIGHBOURS - 1) * len(breaks):
        return None
    return np.append(0, ends + 1), np.append(ends, len(rows) - 1)
