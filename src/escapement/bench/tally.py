"""A comparison of messages sent and arrived: lost, early, duplicate, and how late.

Columns are stored as they arrive and evaluated at the end, so that counting costs the measured
consumer almost nothing. Lateness is the time by this machine's wall clock at which the consumer
had the message, minus its due time.
"""

from __future__ import annotations

import time
from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s
from escapement.sorting import find_sorted


class Lateness(NamedTuple):
    """Percentiles of the lateness, in milliseconds."""

    p50: float
    p99: float
    max: float


class Tally:
    """The messages of one run, with their offsets in a topic that nothing else writes to."""

    def __init__(self) -> None:
        self.received = 0
        self.failed = 0  # nacked; counted as received once acknowledged
        self._offsets: list[Int64s] = []
        self._due_ms: list[Int64s] = []
        self._arrived_ms: list[tuple[int, int]] = []
        self._wanted: list[tuple[Int64s, Int64s]] = []
        self._single = array("q")

    def sent(self, offsets: Int64s, at_ms: Int64s) -> None:
        """Record messages that are durable and were scheduled for ``at_ms``."""
        self._wanted.append((offsets, at_ms))

    def add(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Record a batch that has just arrived."""
        self._arrived_ms.append((time.time_ns() // 1_000_000, len(offsets)))
        self._offsets.append(offsets)
        self._due_ms.append(due_ms)
        self.received += len(offsets)

    def add_one(self, offset: int, due_ms: int, payload: bytes) -> None:
        """Record a message that has just arrived and whose payload was read."""
        del payload
        self._single.extend((offset, due_ms, time.time_ns() // 1_000_000))
        self.received += 1

    def lateness(self) -> Lateness:
        """Return the lateness over all arrivals."""
        late = self._arrivals() - self._column(self._due_ms, 1)
        p50, p99, most = np.percentile(late, [50, 99, 100]).tolist() if len(late) else [0.0] * 3
        return Lateness(p50, p99, most)

    def early(self) -> int:
        """Return how many arrived before their due time or before their scheduled time."""
        return int(self._early().sum())

    def lost(self) -> int:
        """Return how many of the messages sent did not arrive."""
        sent, _ = self._sent()
        return int((~np.isin(sent, self._column(self._offsets, 0))).sum())

    def duplicates(self) -> int:
        """Return how many arrivals were not the first of a message that was sent or was early."""
        offsets = self._column(self._offsets, 0)
        sent, _ = self._sent()
        expected = offsets[np.isin(offsets, sent) | self._early()]
        return len(offsets) - len(np.unique(expected))

    def arrived(self, since_ms: int, until_ms: int) -> int:
        """Return how many arrived from ``since_ms`` until before ``until_ms``."""
        arrivals = self._arrivals()
        return int(((arrivals >= since_ms) & (arrivals < until_ms)).sum())

    def _early(self) -> npt.NDArray[np.bool_]:
        arrived = self._arrivals()
        early = arrived < self._column(self._due_ms, 1)
        offsets = self._column(self._offsets, 0)
        sent, at_ms = self._sent()
        place, there = find_sorted(sent, offsets)
        early[there] |= arrived[there] < at_ms[place[there]]
        return early

    def _sent(self) -> tuple[Int64s, Int64s]:
        """Return the offsets of the messages sent, sorted, and their scheduled times."""
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
