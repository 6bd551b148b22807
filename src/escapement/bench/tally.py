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
import numpy.typing as npt

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
        self.failed = 0  # given back to be tried again; counted as received once acknowledged
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
        return int(self._early().sum())

    def lost(self) -> int:
        """How many that were sent did not arrive."""
        sent, _ = self._sent()
        return int((~np.isin(sent, self._column(self._offsets, 0))).sum())

    def duplicates(self) -> int:
        """How many arrivals were not the first of a message that was sent, and not early."""
        offsets = self._column(self._offsets, 0)
        sent, _ = self._sent()
        expected = offsets[np.isin(offsets, sent) | self._early()]
        return len(offsets) - len(np.unique(expected))

    def arrived(self, since_ms: int, until_ms: int) -> int:
        """How many arrived from the one moment until before the other."""
        arrivals = self._arrivals()
        return int(((arrivals >= since_ms) & (arrivals < until_ms)).sum())

    def _early(self) -> npt.NDArray[np.bool_]:
        arrived = self._arrivals()
        early = arrived < self._column(self._due_ms, 1)
        offsets = self._column(self._offsets, 0)
        sent, at_ms = self._sent()
        if len(sent):
            place = np.minimum(np.searchsorted(sent, offsets), len(sent) - 1)
            early |= (sent[place] == offsets) & (arrived < at_ms[place])
        return early

    def _sent(self) -> tuple[Int64s, Int64s]:
        """What was sent, by offset, and when it was wanted."""
        none = np.zeros(0, np.int64)
        offsets = np.concatenate([none, *(offsets for offsets, _ in self._wanted)])
        at_ms = np.concatenate([none, *(at_ms for _, at_ms in self._wanted)])
        order = np.argsort(offsets)
        return offsets[order], at_ms[order]

    def _arrivals(self) -> Int64s:
        moments = np.array([at_ms for at_ms, _ in self._arrived_ms], np.int64)
        counts = np.array([count for _, count in self._arrived_ms], np.int64)
        return np.concatenate([np.repeat(moments, counts), self._singles(2)])

    def _column(self, columns: list[Int64s], single: int) -> Int64s:
        return np.concatenate([*columns, self._singles(single)])

    def _singles(self, place: int) -> Int64s:
        return np.array(self._single, np.int64)[place::3]
