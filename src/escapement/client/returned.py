"""What a consumer gives back, until it is sent: columns of offsets, each with its delay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from escapement.message import Int64s
from escapement.protocol.limits import MAX_ACK_ROWS


class Returned:
    """Gathered by delay, so that what comes back together travels together."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[int, list[Int64s]] = {}

    def add(self, offsets: Int64s, delay_ms: int) -> None:
        """These go back, to be delivered again after ``delay_ms``; -1: after their back-off."""
        self._columns.setdefault(delay_ms, []).append(offsets)

    def take(self) -> Iterator[tuple[Int64s, int]]:
        """All of it, with its delays, in columns that fit a frame."""
        columns, self._columns = self._columns, {}
        for delay_ms, parts in columns.items():
            offsets = np.concatenate(parts)
            for low in range(0, len(offsets), MAX_ACK_ROWS):
                yield offsets[low : low + MAX_ACK_ROWS], delay_ms

    def clear(self) -> None:
        """The connection they came by is gone: they come again by themselves."""
        self._columns.clear()
