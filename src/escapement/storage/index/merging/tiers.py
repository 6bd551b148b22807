"""The choice of segments to merge next. Pure.

It balances reading few segments, writing little, and freeing the space of obsolete messages. It
knows sizes only and does no I/O.

1. Segments of which less than half is live are rewritten once that frees enough space. The
   merge writes less than it frees, so this costs at most one byte written for each byte
   removed.
2. Segments of similar size are merged: ordered by size, the longest run of the smallest,
   at least ``width`` of them, whose largest is at most ``_LIKE`` times the rest
   together. Without such a run, sizes grow by 1 + ``_LIKE`` from one segment to the next,
   so their number is logarithmic, and so is the number of times that a byte is rewritten.
3. If there are still more than ``most`` segments, the smallest are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

# Obsolete bytes that are worth a rewrite of their segments.
_WORTH_BYTES: Final = 16 << 20
_LIKE: Final = 2


class SegmentSize(NamedTuple):
    """The name of a segment, its size, and how much of it is live."""

    name: str
    size_bytes: int
    rows: int
    live_rows: int  # an estimate; equal to ``rows`` if unknown

    @property
    def live_bytes(self) -> int:
        return self.size_bytes * self.live_rows // max(self.rows, 1)


def choose(segments: Sequence[SegmentSize], most: int, width: int) -> list[str]:
    """Return the names of the segments to merge into one now; empty if no merge is worth it."""
    mostly_dead = [s for s in segments if 2 * s.live_rows < s.rows]
    if sum(s.size_bytes - s.live_bytes for s in mostly_dead) >= _WORTH_BYTES:
        return [s.name for s in mostly_dead]
    smallest_first = sorted(segments, key=_by_size)
    below = chosen = 0
    for number, segment in enumerate(smallest_first, 1):
        if number >= width and segment.size_bytes <= _LIKE * below:
            chosen = number
        below += segment.size_bytes
    if not chosen and len(segments) > most:
        chosen = len(segments) - most + width
    return [segment.name for segment in smallest_first[:chosen]]


def _by_size(segment: SegmentSize) -> tuple[int, str]:
    return segment.size_bytes, segment.name
