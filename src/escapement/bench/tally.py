"""What arrived, against what was sent: lost, early, twice, how late.

Columns are kept as they come and looked at when all is over, so that counting costs the
measured consumer next to nothing. Lateness is this machine's wall clock at the moment the
consumer had the message, less the moment it was due.
"""

from __future__ import annotations

import time
from array import array
from typing import NamedTuple

import numpy as np

from escapement.message import Int64s


class Lateness(NamedTuple):
    """In milliseconds."""

    p50: float
    p99: float
    max: float


class Tally:
    """One run's messages; offsets are those of a topic nobody else writes."""

    def __init__(self) -> None:
        self.received = 0
        self._offsets: list[Int64s] = []
        self._due_ms: list[Int64s] = []
        self._arrived_ms: list[tuple[int, int]] = []
        self._wanted: list[tuple[Int64s, Int64s]] = []
        self._single = array("q")

    def sent(self, offsets: Int64s, at_ms: Int64s) -> None:
        """These are durable, and wanted at ``at_ms``."""
        self._wanted.append((offsets, at_ms))

    def add(self, offsets: Int64s, due_ms: Int64s) -> None:
        """A batch has just arrived."""
        self._arrived_ms.append((time.time_ns() // 1_000_000, len(offsets)))
        self._offsets.append(offsets)
        self._due_ms.append(due_ms)
        self.received += len(offsets)

    def add_one(self, offset: int, due_ms: int, payload: bytes) -> None:
        """A message has just arrived, and its payload was looked at."""
        del payload
        self._single.extend((offset, due_ms, time.time_ns() // 1_000_000))
        self.received += 1

    def lateness(self) -> Lateness:
        """Over all that arrived."""
        late = self._arrivals() - self._column(self._due_ms, 1)
        p50, p99, most = np.percentile(late, [50, 99, 100]).tolist() if len(late) else [0.0] * 3
        return Lateness(p50, p99, most)

    def early(self) -> int:
        """How many arrived before they were due, or wanted."""
        arrived = self._arrivals()
        early = arrived < self._column(self._due_ms, 1)
        offsets = self._column(self._offsets, 0)
        if self._wanted and len(offsets):
            wanted_ms = np.zeros(int(max(o.max() for o, _ in self._wanted)) + 1, np.int64)
            for rows, at_ms in self._wanted:
                wanted_ms[rows] = at_ms
            known = offsets < len(wanted_ms)
            early[known] |= arrived[known] < wanted_ms[offsets[known]]
        return int(early.sum())

    def lost(self) -> int:
        """How many that were sent did not arrive."""
        if not self._wanted:
            return 0
        sent = np.concatenate([offsets for offsets, _ in self._wanted])
        return int((~np.isin(sent, self._column(self._offsets, 0))).sum())

    def duplicates(self) -> int:
        """How many arrivals were not the first of their message."""
        offsets = self._column(self._offsets, 0)
        return len(offsets) - len(np.unique(offsets))

    def _arrivals(self) -> Int64s:
        moments = np.array([at_ms for at_ms, _ in self._arrived_ms], np.int64)
        counts = np.array([count for _, count in self._arrived_ms], np.int64)
        return np.concatenate([np.repeat(moments, counts), self._singles(2)])

    def _column(self, columns: list[Int64s], single: int) -> Int64s:
        return np.concatenate([*columns, self._singles(single)])

    def _singles(self, place: int) -> Int64s:
        return np.array(self._single, np.int64)[place::3]
