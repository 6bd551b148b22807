"""A column of offsets together with its bitmaps, for whoever asks several sets about the same.

Cutting a column into chunks and making bitmaps of them takes longer than what a set then does
with these. So they are made once, when the first set wants them. Nobody changes them.
"""

from __future__ import annotations

from pyroaring import BitMap

from escapement.message import Int64s
from escapement.storage.offsets import offsetchunk


class OffsetBits:
    """Offsets in any order, repeats allowed; int64[n]."""

    __slots__ = ("_chunks", "_is_run", "offsets")

    def __init__(self, offsets: Int64s, chunks: list[tuple[int, BitMap]] | None = None) -> None:
        """``chunks`` are those of the offsets, where they are known."""
        self.offsets = offsets
        self._chunks = chunks
        self._is_run: bool | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_run(self) -> bool:
        """Whether they are one unbroken run in order."""
        if self._is_run is None:
            self._is_run = offsetchunk.is_run(self.offsets)
        return self._is_run

    @property
    def chunks(self) -> list[tuple[int, BitMap]]:
        """The chunks that they fall into, each with a bitmap of its remainders."""
        if self._chunks is None:
            parts = offsetchunk.by_chunk(self.offsets)
            self._chunks = [(no, offsetchunk.bitmap_of(remainders)) for no, remainders in parts]
        return self._chunks


def bits_of(offsets: Int64s | OffsetBits) -> OffsetBits:
    """The offsets with their bitmaps."""
    return offsets if isinstance(offsets, OffsetBits) else OffsetBits(offsets)
