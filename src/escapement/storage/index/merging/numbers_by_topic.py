"""Numbers by topic, passed in a file from the broker to a merging process.

The numbers are offsets of messages that a merge of segments leaves out, or times. They are too many
for memory. The broker writes the file piece by piece, and the merging process reads it. The file
has the numbers (int64) of one topic after the other. The reader gets a *description* of the file:
its path, its checksum, and how many numbers each topic has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged
from escapement.message import Int64s
from escapement.storage.index.segments.writer import writing


@dataclass(slots=True)
class NumbersByTopic:
    """Writes numbers by topic to a file. The file does not exist before the first are added."""

    path: Path
    _checksum: int = 0
    _counts: dict[int, int] = field(default_factory=dict)

    def add(self, topic_id: int, numbers: Int64s) -> None:
        """Append numbers of a topic to the file; blocking. Topics must ascend from call to call.

        Raises:
          StorageError: if the file cannot be written.
        """
        assert topic_id >= max(self._counts, default=topic_id), "topics must ascend"
        piece = numbers.astype("<i8", copy=False).tobytes()
        with writing(self.path), self.path.open("ab") as file:
            file.write(piece)
        self._checksum = crc32(piece, self._checksum)
        self._counts[topic_id] = self._counts.get(topic_id, 0) + len(numbers)

    def discard(self) -> None:
        """Delete the file, if it exists."""
        self.path.unlink(missing_ok=True)

    def plain(self) -> dict[str, Any]:
        """Return the description of the file for the reader, as values that JSON can encode."""
        counts = {str(topic_id): count for topic_id, count in self._counts.items()}
        return {"path": str(self.path), "checksum": self._checksum, "counts": counts}


class NumbersByTopicFile:
    """Reads the numbers of each topic from a file that a ``NumbersByTopic`` wrote."""

    def __init__(self, plain: dict[str, Any]) -> None:
        """Map the file into memory, and verify it.

        Args:
          plain: the description of the file, from ``NumbersByTopic.plain``.

        Raises:
          IndexDamaged: if the file does not match its description.
        """
        self._parts: dict[int, tuple[int, int]] = {}
        self._numbers: Int64s = np.zeros(0, np.int64)
        at = 0
        for topic_id, count in plain["counts"].items():
            self._parts[int(topic_id)] = (at, at + count)
            at += count
        if not at:
            return
        self._numbers = np.memmap(plain["path"], "<i8", "r")
        if len(self._numbers) != at or crc32(self._numbers.data) != plain["checksum"]:
            raise IndexDamaged(f"{plain['path']}: fails its checksum")

    def of(self, topic_id: int) -> Int64s:
        """Return the numbers of a topic in the order in which they were added."""
        low, high = self._parts.get(topic_id, (0, 0))
        return self._numbers[low:high]
