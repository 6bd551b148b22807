"""Reusable memory for the long byte strings of results.

New memory is expensive: the system clears each page when it is first touched, which takes
longer than receiving into it. A caller that reads many results, and uses each only briefly,
passes a ``Landing``.
"""

from __future__ import annotations

import numpy as np

from escapement.message import UInt8s


class Landing:
    """A buffer that is allocated in pieces, then cleared. For one thread at a time."""

    __slots__ = ("_memory", "_used")

    def __init__(self, size_bytes: int) -> None:
        self._memory: UInt8s = np.empty(size_bytes, np.uint8)
        self._used = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return an unused piece of the buffer, or new memory if the buffer is full."""
        begin, end = self._used, self._used + size_bytes
        if end > len(self._memory):
            return np.empty(size_bytes, np.uint8).data
        self._used = end
        return self._memory[begin:end].data

    def clear(self) -> None:
        """Reuse the buffer from its start. Pieces taken before will be overwritten."""
        self._used = 0
