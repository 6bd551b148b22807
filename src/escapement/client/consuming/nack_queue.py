"""The nacks or releases of a consumer until they are sent: offsets by delay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from escapement.message import Int64s
from escapement.protocol.limits import MAX_ACK_ROWS


class Returned:
    """A queue of nacks or releases, which collects offsets with the same delay."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[int, list[Int64s]] = {}

    def add(self, offsets: Int64s, delay_ms: int) -> None:
        """Queue offsets for redelivery after ``delay_ms``, or after the back-off if it is -1."""
        self._columns.setdefault(delay_ms, []).append(offsets)

    def take(self) -> Iterator[tuple[Int64s, int]]:
        """Remove all offsets; return them with their delays, in columns that fit a frame."""
        columns, self._columns = self._columns, {}
        for delay_ms, parts in columns.items():
            offsets = np.concatenate(parts)
            for low in range(0, len(offsets), MAX_ACK_ROWS):
                yield offsets[low : low + MAX_ACK_ROWS], delay_ms

    def clear(self) -> None:
        """Discard all offsets: the broker redelivers these messages without a request."""
        self._columns.clear()
