"""A column of offsets together with its bitmaps, to test it against several sets.

Cutting a column into chunks and making bitmaps takes longer than a set's own work with them. So
they are made once, when the first set needs them. They must not be changed.
"""

from __future__ import annotations

from pyroaring import BitMap

from escapement.message import Int64s
from escapement.storage.offsets import offset_chunk


class OffsetBits:
    """Offsets in any order, repeats allowed; int64[n]."""

    __slots__ = ("_chunks", "_is_run", "offsets")

    def __init__(self, offsets: Int64s, chunks: list[tuple[int, BitMap]] | None = None) -> None:
        """``chunks`` are the bitmaps of the offsets, if they are known."""
        self.offsets = offsets
        self._chunks = chunks
        self._is_run: bool | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_run(self) -> bool:
        """Whether the offsets are one unbroken ascending run."""
        if self._is_run is None:
            self._is_run = offset_chunk.is_run(self.offsets)
        return self._is_run

    @property
    def chunks(self) -> list[tuple[int, BitMap]]:
        """The chunks of the offsets, each with a bitmap of its remainders."""
        if self._chunks is None:
            parts = offset_chunk.by_chunk(self.offsets)
            self._chunks = [(no, offset_chunk.bitmap_of(remainders)) for no, remainders in parts]
        return self._chunks


def bits_of(offsets: Int64s | OffsetBits) -> OffsetBits:
    """Return the offsets as ``OffsetBits``."""
    return offsets if isinstance(offsets, OffsetBits) else OffsetBits(offsets)
