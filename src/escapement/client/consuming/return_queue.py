"""The nacks and releases of a consumer until they are sent: offsets by command and delay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from escapement.message import Int64s
from escapement.protocol.commands import Nack, Release
from escapement.protocol.limits import MAX_ACK_ROWS

ReturnKind = type[Nack] | type[Release]

# The delay of a nack without a delay: the back-off of the subscription.
BACK_OFF: Final = -1


class ReturnQueue:
    """A queue of nacks and releases, which collects offsets with the same delay."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[tuple[ReturnKind, int], list[Int64s]] = {}

    def add(self, kind: ReturnKind, offsets: Int64s, delay_ms: int) -> None:
        """Queue offsets for redelivery after ``delay_ms``, or after the back-off if it is -1."""
        self._columns.setdefault((kind, delay_ms), []).append(offsets)

    def take(self) -> Iterator[tuple[ReturnKind, Int64s, int]]:
        """Remove all offsets; return them with their delays, in columns that fit a frame."""
        columns, self._columns = self._columns, {}
        for (kind, delay_ms), parts in columns.items():
            offsets = np.concatenate(parts)
            for low in range(0, len(offsets), MAX_ACK_ROWS):
                yield kind, offsets[low : low + MAX_ACK_ROWS], delay_ms

    def clear(self) -> None:
        """Discard all offsets: the broker redelivers these messages without a request."""
        self._columns.clear()
