"""A comparison of messages sent and arrived: which are lost, early or duplicate, and how late.

The tally stores the columns of each batch as it arrives, and evaluates them at the end. So it costs
the measured consumer almost nothing. The lateness of a message is the time by this machine's wall
clock at which the consumer had it, minus its due time.
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
    """The messages that one run sent and received, on a topic that nothing else writes to."""

    def __init__(self) -> None:
        self.received_count = 0
        self.failed_count = 0  # attempts that were nacked; not part of ``received_count``
        self._offsets: list[Int64s] = []
        self._due_ms: list[Int64s] = []
        self._arrived_ms: list[tuple[int, int]] = []
        self._wanted: list[tuple[Int64s, Int64s]] = []
        self._single = array("q")

    def sent(self, offsets: Int64s, at_ms: Int64s) -> None:
        """Record messages that were scheduled for the times ``at_ms`` and confirmed as durable."""
        self._wanted.append((offsets, at_ms))

    def add(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Record a batch of messages that has just arrived."""
        self._arrived_ms.append((time.time_ns() // 1_000_000, len(offsets)))
        self._offsets.append(offsets)
        self._due_ms.append(due_ms)
        self.received_count += len(offsets)

    def add_one(self, offset: int, due_ms: int, payload: bytes) -> None:
        """Record a message that has just arrived. Passing ``payload`` makes the caller read it."""
        del payload
        self._single.extend((offset, due_ms, time.time_ns() // 1_000_000))
        self.received_count += 1

    def lateness(self) -> Lateness:
        """Return percentiles of the lateness of all arrivals."""
        late = self._arrivals() - self._column(self._due_ms, 1)
        p50, p99, most = np.percentile(late, [50, 99, 100]).tolist() if len(late) else [0.0] * 3
        return Lateness(p50, p99, most)

    def early(self) -> int:
        """Return how many messages arrived before their due time or before their scheduled time."""
        return int(self._early().sum())

    def lost(self) -> int:
        """Return how many of the messages sent did not arrive."""
        sent, _ = self._sent()
        return int((~np.isin(sent, self._column(self._offsets, 0))).sum())

    def duplicates(self) -> int:
        """Return the number of arrivals after the first one of each message.

        The first arrival of a message that was not sent in this run is a duplicate too: it arrived
        in an earlier run. If it is early, it counts as early instead.
        """
        offsets = self._column(self._offsets, 0)
        sent, _ = self._sent()
        expected = offsets[np.isin(offsets, sent) | self._early()]
        return len(offsets) - len(np.unique(expected))

    def arrived(self, since_ms: int, until_ms: int) -> int:
        """Return how many messages arrived at or after ``since_ms`` and before ``until_ms``."""
        arrivals = self._arrivals()
        return int(((arrivals >= since_ms) & (arrivals < until_ms)).sum())

    def _early(self) -> npt.NDArray[np.bool_]:
        arrived = self._arrivals()
        early = arrived < self._column(self._due_ms, 1)
        offsets = self._column(self._offsets, 0)
        sent, at_ms = self._sent()
        index, there = find_sorted(sent, offsets)
        early[there] |= arrived[there] < at_ms[index[there]]
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

    def _column(self, columns: list[Int64s], field: int) -> Int64s:
        return np.concatenate([*columns, self._singles(field)])

    def _singles(self, field: int) -> Int64s:
        return np.array(self._single, np.int64)[field::3]
