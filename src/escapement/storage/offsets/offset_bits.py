"""A column of message offsets together with the same offsets as bitmaps.

A set of offsets (``offsets.py``) consists of chunks of 2^20 offsets, each a bitmap of the offsets'
*remainders*, their lowest 20 bits. To compare a column with a set, the column is converted to such
bitmaps too. That takes longer than the comparison itself. So a caller who uses one column with
several sets passes an :class:`OffsetBits`, which converts the column once, when the first set needs
it. The bitmaps must not be changed.
"""

from __future__ import annotations

from pyroaring import BitMap

from escapement.message import Int64s
from escapement.storage.offsets import offset_chunk


class OffsetBits:
    """A column of offsets in any order, which may repeat, and its bitmaps."""

    __slots__ = ("_chunks", "_is_run", "offsets")

    def __init__(self, offsets: Int64s, chunks: list[tuple[int, BitMap]] | None = None) -> None:
        """Wrap a column of offsets.

        Args:
          chunks: the bitmaps of the offsets with their chunk numbers, if the caller has them.
        """
        self.offsets = offsets
        self._chunks = chunks
        self._is_run: bool | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_run(self) -> bool:
        """Whether the offsets ascend without gaps or repeats."""
        if self._is_run is None:
            self._is_run = offset_chunk.is_run(self.offsets)
        return self._is_run

    @property
    def chunks(self) -> list[tuple[int, BitMap]]:
        """The numbers of the chunks that have some of the offsets, each with these as a bitmap."""
        if self._chunks is None:
            parts = offset_chunk.by_chunk(self.offsets)
            self._chunks = [(no, offset_chunk.bitmap_of(remainders)) for no, remainders in parts]
        return self._chunks


def bits_of(offsets: Int64s | OffsetBits) -> OffsetBits:
    """Return the offsets as ``OffsetBits``, unless they are that already."""
    return offsets if isinstance(offsets, OffsetBits) else OffsetBits(offsets)
