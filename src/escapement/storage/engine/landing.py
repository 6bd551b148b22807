"""Memory that long byte strings of a result are received into, and that is used again.

New memory is dear: the system clears each page when it is first touched, which takes longer
than receiving into it. Who reads much, and is done with each part before long, brings this.
"""

from __future__ import annotations

import numpy as np

from escapement.message import UInt8s


class Landing:
    """A piece of memory that is taken bit by bit, then cleared; for one thread at a time."""

    __slots__ = ("_memory", "_used")

    def __init__(self, size_bytes: int) -> None:
        self._memory: UInt8s = np.empty(size_bytes, np.uint8)
        self._used = 0

    def take(self, size_bytes: int) -> memoryview:
        """So much of it that nobody has; memory of its own where that is not left."""
        begin, end = self._used, self._used + size_bytes
        if end > len(self._memory):
            return np.empty(size_bytes, np.uint8).data
        self._used = end
        return self._memory[begin:end].data

    def clear(self) -> None:
        """What was taken is of no more use, and will be overwritten."""
        self._used = 0
