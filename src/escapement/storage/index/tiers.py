"""Which segments to merge next: a pure choice.

Owns the balance between reading few segments, writing little, and giving back the space
of what is dead. Knows sizes only; does no I/O.

1. Segments of which less than half is live are rewritten once that frees something
   worth it. What is written is less than what is freed, so this costs at most one byte
   written for each byte removed.
2. Segments of like size are merged: ordered by size, the longest run of the smallest,
   at least ``width`` of them, whose largest is at most ``_LIKE`` times the rest
   together. Where no such run is left, sizes grow by 1 + ``_LIKE`` from one to the next,
   so their number is logarithmic, and so is how often a byte is rewritten.
3. If there are more than ``most`` all the same, the smallest are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

# Dead bytes that are worth a rewrite of their segments.
_WORTH_BYTES: Final = 16 << 20
_LIKE: Final = 2


class SegmentSize(NamedTuple):
    """What the choice goes by."""

    name: str
    size_bytes: int
    rows: int
    live_rows: int  # an estimate; ``rows`` where nobody knows

    @property
    def live_bytes(self) -> int:
        return self.size_bytes * self.live_rows // max(self.rows, 1)


def choose(segments: Sequence[SegmentSize], most: int, width: int) -> list[str]:
    """The names of the segments to merge into one now; none if all is well."""
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
