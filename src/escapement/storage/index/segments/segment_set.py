"""The set of segments (files) of an index, and the part of each topic in them.

The set changes in single steps, when a checkpoint or a compaction has written a new segment. A
reader that refers to a segment can go on reading it when it is no longer in the set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from escapement.errors import IndexDamaged
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.segment import Segment, TopicSlice

_SUFFIX: Final = ".segment"
# The parts of this many topics are cached. When another topic is looked up, the cache is cleared.
# With 8 segments the cache makes `next_due` of a topic 3 to 4 times as fast, and scans of small
# topics 1.2 times. Scans of one large topic gain nothing.
_REMEMBERED_TOPICS: Final = 4096


class Segments:
    """The segments of the index in one directory, ordered by their earliest due times."""

    def __init__(self, directory: Path, segments: Iterable[Segment] = ()) -> None:
        self._directory = directory
        self._segments = _in_order(segments)
        self._slices: dict[int, tuple[TopicSlice, ...]] = {}
        self._last_number = max((int(one.path.stem) for one in self._segments), default=0)

    @classmethod
    def open(cls, directory: Path, sizes_bytes: Mapping[str, int], cache: BlockCache) -> Segments:
        """Open the segments that a manifest names; blocking.

        Args:
          sizes_bytes: the size of each segment, by file name.

        Raises:
          IndexDamaged: if a segment is missing, is damaged, or has another size.
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
        """The total size of the segments on disk."""
        return sum(segment.size_bytes for segment in self._segments)

    def named(self, names: Collection[str]) -> list[Segment]:
        """Return the segments whose files have these names."""
        return [segment for segment in self._segments if segment.path.name in names]

    def of(self, topic_id: int) -> tuple[TopicSlice, ...]:
        """Return a topic's part of each segment that has messages of it.

        Complexity: O(1) if the topic is cached, else O(segments) binary searches. A change of the
        set clears the cache.
        """
        found = self._slices.get(topic_id)
        if found is None:
            parts = [segment.slice(topic_id) for segment in self._segments]
            found = tuple(part for part in parts if part is not None)
            if len(self._slices) >= _REMEMBERED_TOPICS:
                self._slices.clear()
            self._slices[topic_id] = found
        return found

    def swap(self, old: Iterable[Segment], new: Segment | None) -> None:
        """Replace the segments ``old`` by ``new``, or remove them if it is None."""
        gone = set(old)
        kept = [segment for segment in self._segments if segment not in gone]
        self._segments = _in_order(kept if new is None else [*kept, new])
        self._slices.clear()

    def next_path(self) -> Path:
        """Return a path for a new segment. Each call returns another path."""
        self._last_number += 1
        return self._directory / segment_name(self._last_number)


def _in_order(segments: Iterable[Segment]) -> list[Segment]:
    # Messages that are due early are also read early. In this order, a search for them finds them
    # in the first segments.
    return sorted(segments, key=lambda segment: segment.first_due_ms)


def segment_name(number: int) -> str:
    """Return the file name of the segment with this number."""
    return f"{number:08d}{_SUFFIX}"
