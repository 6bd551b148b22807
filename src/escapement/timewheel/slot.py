"""One slot of a wheel: a bag of entries that grows.

The columns lie in one matrix, a row for each, with room at the end. What is put in is
copied, so that a slot never keeps a caller's larger array alive. The rows of tags and
labels exist only once an entry has brought one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.timewheel.entries import Entries

_WHEN, _ID, _TAG, _LABEL = 0, 1, 2, 3
# A full slot grows by half: entries are copied twice on average, and a third of the
# room at most lies idle.
_GROWTH: Final = 1.5


class Slot:
    """Entries in order of arrival."""

    __slots__ = ("_columns", "_end", "_first")

    def __init__(self, entries: Entries) -> None:
        self._columns = np.empty((_height(entries), len(entries)), np.int64)
        self._first = 0  # entries before it have been taken
        self._end = 0
        self.put(entries)

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def size_bytes(self) -> int:
        """What its columns take, idle room included."""
        return int(self._columns.nbytes)

    @property
    def earliest_ms(self) -> int:
        """The earliest time of an entry; O(n)."""
        return int(self._columns[_WHEN, self._first : self._end].min())

    def entries(self) -> Entries:
        """What is in it, as views: valid until the slot changes; O(1)."""
        columns = self._columns[:, self._first : self._end]
        return Entries(*columns)

    def put(self, entries: Entries) -> None:
        """Copy entries in; amortised O(n)."""
        end = self._end + len(entries)
        height = max(_height(entries), len(self._columns))
        if end > self._columns.shape[1] or height > len(self._columns):
            self._grow(len(self) + len(entries), height)
            end = self._end + len(entries)
        self._columns[_WHEN, self._end : end] = entries.when_ms
        self._columns[_ID, self._end : end] = entries.ids
        if height > _TAG:
            self._columns[_TAG, self._end : end] = 0 if entries.tags is None else entries.tags
        if height > _LABEL:
            labels = entries.labels
            self._columns[_LABEL, self._end : end] = 0 if labels is None else labels
        self._end = end

    def take_first(self, count: int) -> Entries:
        """Take out the ``count`` entries that came first, or all; amortised O(count)."""
        taken = self.entries().slice(0, count).copy()
        self._first += len(taken)
        if self._first > len(self):
            self._move(len(self), len(self._columns))
        return taken

    def keep(self, rows: npt.NDArray[np.bool_]) -> int:
        """Keep the entries marked; returns how many went. O(n)."""
        before = len(self)
        if not rows.all():
            self._columns = np.ascontiguousarray(self._columns[:, self._first : self._end][:, rows])
            self._first, self._end = 0, self._columns.shape[1]
        return before - len(self)

    def _grow(self, needed: int, height: int) -> None:
        self._move(max(needed, int(len(self) * _GROWTH)), height)

    def _move(self, capacity: int, height: int) -> None:
        """Copy what is in it into new columns."""
        columns = np.empty((height, capacity), np.int64)
        count = len(self)
        columns[: len(self._columns), :count] = self._columns[:, self._first : self._end]
        columns[len(self._columns) :, :count] = 0
        self._columns, self._first, self._end = columns, 0, count


def _height(entries: Entries) -> int:
    """How many rows the entries need."""
    return 4 if entries.labels is not None else 2 if entries.tags is None else 3
