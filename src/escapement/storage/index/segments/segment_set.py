"""The set of segments of an index, and the part of each topic in them.

The set changes in single steps, when a checkpoint or a compaction is installed. Files that a
reader has pinned stay open for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from escapement.errors import IndexDamaged
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.segment import Segment, TopicSlice

_SUFFIX: Final = ".segment"
# The number of topics whose parts are cached. When it is exceeded, the cache is cleared.
_REMEMBERED_TOPICS: Final = 4096


class Segments:
    """The segments of one directory, in the order of their earliest due time."""

    def __init__(self, directory: Path, segments: Iterable[Segment] = ()) -> None:
        self._directory = directory
        self._segments = _in_order(segments)
        self._slices: dict[int, tuple[TopicSlice, ...]] = {}
        self._last_number = max((int(one.path.stem) for one in self._segments), default=0)

    @classmethod
    def open(cls, directory: Path, sizes_bytes: Mapping[str, int], cache: BlockCache) -> Segments:
        """Open the segments that a manifest names, with their sizes; blocking.

        Raises ``IndexDamaged``.
        """
        found = []
        for name, size_bytes in sizes_bytes.items():
            segment = Segment(directory / name, cache)
            if segment.size_bytes != size_bytes:
                raise IndexDamaged(
                    f"{segment.path}: has {segment.size_bytes} of {size_bytes} bytes"
                )
            found.append(segment)
        return cls(directory, found)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """The size of the segments on disk."""
        return sum(segment.size_bytes for segment in self._segments)

    def named(self, names: Collection[str]) -> list[Segment]:
        """Return the segments whose files have these names."""
        return [segment for segment in self._segments if segment.path.name in names]

    def of(self, topic_id: int) -> tuple[TopicSlice, ...]:
        """Return the parts of a topic; the first call after a change is O(segments) searches."""
        found = self._slices.get(topic_id)
        if found is None:
            parts = [segment.slice(topic_id) for segment in self._segments]
            found = tuple(part for part in parts if part is not None)
            if len(self._slices) >= _REMEMBERED_TOPICS:
                self._slices.clear()
            self._slices[topic_id] = found
        return found

    def swap(self, old: Iterable[Segment], new: Segment | None) -> None:
        """Replace some segments by a new one."""
        gone = set(old)
        kept = [segment for segment in self._segments if segment not in gone]
        self._segments = _in_order(kept if new is None else [*kept, new])
        self._slices.clear()

    def next_path(self) -> Path:
        """Return the path for the next segment; no path is returned twice."""
        self._last_number += 1
        return self._directory / segment_name(self._last_number)


def _in_order(segments: Iterable[Segment]) -> list[Segment]:
    # Messages due first are fetched first, so a fetch looks into their segments first.
    return sorted(segments, key=lambda segment: segment.first_due_ms)


def segment_name(number: int) -> str:
    """Return the name of a segment's file."""
    return f"{number:08d}{_SUFFIX}"
