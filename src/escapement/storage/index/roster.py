"""Rosters: numbers by topic, too many for memory, that go to a merge in a file.

Written piece by piece beside the broker, read by the process that merges. A roster is named
by its file, the checksum of that, and how many numbers there are for each topic, which stand
topic after topic in it (i64).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged
from escapement.message import Int64s
from escapement.storage.index.writer import writing


@dataclass(slots=True)
class Roster:
    """One that is being written; no file as long as it is empty."""

    path: Path
    _checksum: int = 0
    _counts: dict[int, int] = field(default_factory=dict)

    def add(self, topic_id: int, numbers: Int64s) -> None:
        """Append to a topic's part; topics ascend from call to call. Blocking.

        Raises:
          StorageError: the disk refuses.
        """
        assert topic_id >= max(self._counts, default=topic_id), "topics must ascend"
        piece = numbers.astype("<i8", copy=False).tobytes()
        with writing(self.path), self.path.open("ab") as file:
            file.write(piece)
        self._checksum = crc32(piece, self._checksum)
        self._counts[topic_id] = self._counts.get(topic_id, 0) + len(numbers)

    def discard(self) -> None:
        """Delete the file, if there is one."""
        self.path.unlink(missing_ok=True)

    def plain(self) -> dict[str, Any]:
        """What names it, as JSON has it."""
        counts = {str(topic_id): count for topic_id, count in self._counts.items()}
        return {"path": str(self.path), "checksum": self._checksum, "counts": counts}


class RosterFile:
    """One that was written, mapped from its file."""

    def __init__(self, plain: dict[str, Any]) -> None:
        """Raises ``IndexDamaged`` if the file is not what its name says."""
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
        """The numbers of a topic, in the order in which they came."""
        low, high = self._parts.get(topic_id, (0, 0))
        return self._numbers[low:high]
