"""The choice of segments, files of the delayed index, to merge next. It does no I/O.

A message in a segment is *live* while it may still be delivered, and *obsolete* afterwards. Merging
makes segments few, so that reads are fast, and frees the space of obsolete messages. But live
messages must be written again. The choice knows only the sizes of segments. The first of these
rules that applies decides:

1. Segments whose messages are mostly obsolete are merged once that frees ``_WORTH_BYTES``. The
   merge writes less than it frees.
2. Segments of similar size are merged. Ordered by size, these are as many of the smallest as
   possible, at least ``width``, so that the largest of them is at most ``_LIKE`` times as large as
   the others together. If no segments are similar, each further one is more than ``_LIKE`` times
   as large as all smaller ones together. So the number of segments is logarithmic in the size of
   the index, and so is the number of times that a byte is rewritten.
3. If there are more than ``most`` segments, the smallest are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

# Segments with mostly obsolete messages are merged if they have this many bytes of obsolete ones.
_WORTH_BYTES: Final = 16 << 20
# A segment counts as similar to all smaller ones if it is at most this many times as large as they
# are together.
_LIKE: Final = 2


class SegmentSize(NamedTuple):
    """The file name of a segment, its size, and how many of its messages are live."""

    name: str
    size_bytes: int
    rows: int  # the number of messages
    live_rows: int  # an estimate; equal to ``rows`` if unknown

    @property
    def live_bytes(self) -> int:
        return self.size_bytes * self.live_rows // max(self.rows, 1)


def choose(segments: Sequence[SegmentSize], most: int, width: int) -> list[str]:
    """Return the names of the segments to merge into one now; empty if no merge is worthwhile.

    Args:
      most: with more segments than this, the smallest are merged whatever their sizes.
      width: segments of similar size are merged if there are at least this many.
    """
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
