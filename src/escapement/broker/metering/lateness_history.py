"""How late the subscriptions of a broker have delivered messages in each of the last minutes.

The *lateness* of a message is the time from its due time to its first delivery. For each minute the
history has *cells*. A cell is the number of messages of one subscription whose lateness is in one
bucket (storage/encoding/buckets.py). So figures below 32 ms are exact. A larger p50, p99 or maximum
differs from the exact one by at most 1/32.

``add`` only notes a batch, as ``Histogram`` does. The noted batches become cells together. The
cells of a minute are two columns in the order of their *keys*, in which the id of the subscription
is above the bucket::

    add ──► noted batches ──► parts ──► keys and counts of the minute
               of all            sorted together when they are as many
            subscriptions        as the cells of the minute

The cells of all subscriptions share one bound. If they reach it, the oldest minutes of all
subscriptions are forgotten, so the history gets shorter. If one minute alone has that many cells,
its further deliveries are not counted.

The history is kept by subscription ids, beside the runtimes of subscriptions. So it stays if a
topic becomes passive, and ends with the process. Pure: no I/O and no clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from escapement.message import Int64s
from escapement.storage.encoding.buckets import BUCKETS, bucket_of, value_of

MINUTE_MS: Final = 60_000
# How many minutes are kept, if the bound on cells leaves room.
KEPT_MINUTES: Final = 120
# The default of the bound on cells, of 16 bytes each.
MOST_CELLS: Final = 2_000_000
# A key is an id and below it a bucket of this many bits.
_BITS: Final = BUCKETS.bit_length() - 1
_BUCKET: Final = BUCKETS - 1
# Bounds on the noted messages and batches, which then become cells together.
_NOTED_MESSAGES: Final = 8_192
_NOTED_BATCHES: Final = 256
# The parts of a minute are sorted together if they have at least this many cells.
_SORTED_CELLS: Final = 8_192


class Lateness(NamedTuple):
    """Figures as columns, with a row for each subscription or minute. No deliveries: all are 0."""

    delivered: Int64s
    p50_ms: Int64s
    p99_ms: Int64s
    max_ms: Int64s


class LatenessHistory:
    """The lateness of first deliveries of all subscriptions, by minute.

    Subscriptions are named by their origin ids, which a seek does not change.

    Args:
      most_cells: the bound on cells.
    """

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most_cells = most_cells
        self._minutes: dict[int, _Minute] = {}  # by number, in the order in which they began
        self._minute = 0  # the minute of the noted batches
        # The topic of each subscription, and the last minute in which it delivered.
        self._seen: dict[int, tuple[int, int]] = {}
        self._ids: list[tuple[int, int]] = []  # the topic and subscription of each noted batch
        self._batches: list[Int64s] = []
        self._noted = 0

    def add(self, now_ms: int, topic_id: int, subscription_id: int, late_ms: Int64s) -> None:
        """Count first deliveries of a subscription. The array must not change afterwards.

        Complexity: amortized O(1) for each message and, by a sort, O(log cells) for each cell.

        Args:
          now_ms: the time of the delivery.
          late_ms: the lateness of each message; int64[n]. Negative ones count as 0.
        """
        if not len(late_ms):
            return
        minute = now_ms // MINUTE_MS
        if minute != self._minute:
            self._roll(minute)
        self._ids.append((topic_id, subscription_id))
        self._batches.append(late_ms)
        self._noted += len(late_ms)
        if self._noted >= _NOTED_MESSAGES or len(self._batches) >= _NOTED_BATCHES:
            self._count()

    @property
    def cells(self) -> int:
        """The number of cells, without the noted batches."""
        return sum(minute.cells for minute in self._minutes.values())

    # -- reading -----------------------------------------------------------------

    def subscriptions(self, since_minute: int) -> dict[int, int]:
        """Return the topic id of each subscription that has delivered in a minute or later."""
        self._count()
        return {id: topic_id for id, (topic_id, last) in self._seen.items() if last >= since_minute}

    def minutes(self, subscription_id: int, first: int, last: int) -> tuple[Int64s, Lateness]:
        """Return the minutes in which a subscription delivered, ascending, and their figures.

        Args:
          first: the number of the first minute; a minute's number is its time over ``MINUTE_MS``.
          last: the number of the last minute.
        """
        self._count()
        numbers: list[int] = []
        parts: list[tuple[Int64s, Int64s]] = []
        ids = np.array([subscription_id], np.int64)
        for number in sorted(self._minutes):
            if first <= number <= last:
                keys, counts = self._minutes[number].of(ids)
                if len(keys):
                    keys += len(parts) << _BITS
                    numbers.append(number)
                    parts.append((keys, counts))
        return np.array(numbers, np.int64), _summed(*_joined(parts), len(parts))

    def over(self, subscription_ids: Int64s, first: int, last: int) -> Lateness:
        """Return the figures of some subscriptions over all minutes of a range.

        Takes memory for each of them. So ask for at most some thousand at a time.

        Args:
          subscription_ids: in any order.
          first, last: as for ``minutes``.
        """
        self._count()
        keys, counts = _joined(
            [
                minute.of(subscription_ids)
                for number, minute in self._minutes.items()
                if first <= number <= last
            ]
        )
        return _summed(keys, counts, len(subscription_ids))

    # -- counting ----------------------------------------------------------------

    def _roll(self, minute: int) -> None:
        """Begin another minute, and forget those that are too far from it.

        After the clock was set back, some of them may be later ones.
        """
        self._count()
        if self._minute in self._minutes:
            self._minutes[self._minute].sort()  # so that a reader need not sort many minutes
        self._minute = minute
        far = [number for number in self._minutes if abs(number - minute) >= KEPT_MINUTES]
        for number in far:
            del self._minutes[number]
        self._seen = {id: seen for id, seen in self._seen.items() if seen[1] in self._minutes}

    def _count(self) -> None:
        """Turn the noted batches into cells."""
        if not self._batches:
            return
        ids, batches = self._ids, self._batches
        self._ids, self._batches, self._noted = [], [], 0
        minute = self._minutes.setdefault(self._minute, _Minute())
        if self._make_room(minute):
            for topic_id, id in ids:
                self._seen[id] = topic_id, self._minute
            minute.add(*_cells([id for _, id in ids], batches))

    def _make_room(self, minute: _Minute) -> bool:
        """Return whether the minute may get more cells; forget the oldest other ones for it."""
        cells = self.cells
        if cells < self._most_cells:
            return True
        minute.sort()
        cells = self.cells
        for number in list(self._minutes):
            if cells < self._most_cells:
                break
            if self._minutes[number] is not minute:
                cells -= self._minutes.pop(number).cells
        return cells < self._most_cells


class _Minute:
    """The cells of one minute.

    ``_keys`` ascend. ``_parts`` have further cells, which may have the same keys.
    """

    __slots__ = ("_counts", "_keys", "_parts", "cells")

    def __init__(self) -> None:
        self._keys = self._counts = np.empty(0, np.int64)
        self._parts: list[tuple[Int64s, Int64s]] = []
        self.cells = 0

    def add(self, keys: Int64s, counts: Int64s) -> None:
        self._parts.append((keys, counts))
        self.cells += len(keys)
        if self.cells - len(self._keys) >= max(len(self._keys), _SORTED_CELLS):
            self.sort()

    def of(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """Return the keys and counts of some subscriptions, with their rows in ``ids`` as ids.

        Complexity: O(ids * log(cells) + cells of these subscriptions).
        """
        self.sort()
        begins = self._keys.searchsorted(ids << _BITS)
        heights = self._keys.searchsorted(ids + 1 << _BITS) - begins
        before = heights.cumsum() - heights
        at = np.repeat(begins - before, heights) + np.arange(heights.sum())
        rows = np.repeat(np.arange(len(ids)), heights)
        return (rows << _BITS) + (self._keys[at] & _BUCKET), self._counts[at]

    def sort(self) -> None:
        """Add the parts to the sorted cells."""
        if not self._parts:
            return
        keys, counts = _joined([(self._keys, self._counts), *self._parts])
        self._parts = []
        order = np.argsort(keys, kind="stable")  # fast on sorted runs
        keys = keys[order]
        begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
        self._keys, self._counts = keys[begins], np.add.reduceat(counts[order], begins)
        self.cells = len(self._keys)


def _cells(ids: list[int], batches: list[Int64s]) -> tuple[Int64s, Int64s]:
    """Return the cells of some batches as keys, in any order, and counts.

    Args:
      ids: the subscription of each batch.
    """
    row_of: dict[int, int] = {}
    rows = [row_of.setdefault(id, len(row_of)) for id in ids]
    buckets = bucket_of(np.concatenate(batches))
    width = int(buckets.max(initial=0)) + 1
    found = np.bincount(np.repeat(rows, [len(one) for one in batches]) * width + buckets)
    at = np.flatnonzero(found)
    keys = (np.array(list(row_of), np.int64)[at // width] << _BITS) + at % width
    return keys, found[at]


def _joined(parts: list[tuple[Int64s, Int64s]]) -> tuple[Int64s, Int64s]:
    """Return the columns of all parts, one part after the other."""
    none = np.empty(0, np.int64)
    return (
        np.concatenate([none, *(keys for keys, _ in parts)]),
        np.concatenate([none, *(counts for _, counts in parts)]),
    )


def _summed(keys: Int64s, counts: Int64s, height: int) -> Lateness:
    """Return the figures of each row.

    Args:
      keys: the row of each cell above its bucket; changed in place.
    """
    buckets = keys & _BUCKET
    width = int(buckets.max(initial=0)) + 1
    keys >>= _BITS
    keys *= width
    keys += buckets
    found = np.bincount(keys, counts, height * width)
    upto = found.astype(np.int64).reshape(height, width).cumsum(axis=1)
    total = upto[:, -1]

    def at_percent(percent: int) -> Int64s:
        rank = -(-total * percent // 100)
        return value_of((upto < rank[:, None]).sum(axis=1))

    return Lateness(total, at_percent(50), at_percent(99), at_percent(100))
