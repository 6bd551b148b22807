"""Reusable memory for long byte strings in the results of SQL statements.

New memory is expensive: the operating system clears each page of it at the first use, which takes
longer than receiving data into it. A caller that reads many results, and uses each only briefly,
passes a :class:`Landing` to ``Connection.execute``, and clears it when it needs the result no more.
"""

from __future__ import annotations

import numpy as np

from escapement.message import UInt8s


class Landing:
    """A buffer from which pieces are taken until it is cleared. For one thread at a time."""

    __slots__ = ("_memory", "_used")

    def __init__(self, size_bytes: int) -> None:
        self._memory: UInt8s = np.empty(size_bytes, np.uint8)
        self._used = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return the next piece of the buffer, or new memory if the rest of it is too small."""
        begin, end = self._used, self._used + size_bytes
        if end > len(self._memory):
            return np.empty(size_bytes, np.uint8).data
        self._used = end
        return self._memory[begin:end].data

    def clear(self) -> None:
        """Make the whole buffer available again. Pieces taken before will be overwritten."""
        self._used = 0
