"""One slot of a timing wheel: a growing collection of entries.

The columns of the entries are the rows of one matrix, which has spare capacity at its end. Entries
are copied into it, so a slot never keeps a caller's larger array alive. The matrix rows for tags
and labels exist only after an entry with a tag or a label has arrived.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.timewheel.entries import Entries

_WHEN, _ID, _TAG, _LABEL = 0, 1, 2, 3
# A full slot grows by half. So growth copies each entry two to three times, and leaves at most a
# third of the capacity unused.
_GROWTH: Final = 1.5


class Slot:
    """The entries of one slot, in order of arrival."""

    __slots__ = ("_columns", "_end", "_first")

    def __init__(self, entries: Entries) -> None:
        self._columns = np.empty((_height(entries), len(entries)), np.int64)
        self._first = 0  # the index of the first entry; those before it were taken out
        self._end = 0
        self.put(entries)

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def size_bytes(self) -> int:
        """The size of the matrix in bytes, including its unused capacity."""
        return int(self._columns.nbytes)

    @property
    def earliest_ms(self) -> int:
        """The earliest time of an entry; O(n)."""
        return int(self._columns[_WHEN, self._first : self._end].min())

    def entries(self) -> Entries:
        """Return all entries as views, which are valid until the slot changes; O(1)."""
        columns = self._columns[:, self._first : self._end]
        return Entries(*columns)

    def put(self, entries: Entries) -> None:
        """Add copies of entries; amortised O(n)."""
        end = self._end + len(entries)
        height = max(_height(entries), len(self._columns))
        if end > self._columns.shape[1] or height > len(self._columns):
            needed = len(self) + len(entries)
            self._move(max(needed, int(len(self) * _GROWTH)), height)
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
        """Remove and return the ``count`` entries that arrived first; amortised O(count).

        Returns all entries if there are fewer.
        """
        taken = self.entries().slice(0, count).copy()
        self._first += len(taken)
        if self._first > len(self):
            self._move(len(self), len(self._columns))
        return taken

    def _move(self, capacity: int, height: int) -> None:
        """Copy the entries into a new matrix of ``height`` rows and ``capacity`` columns."""
        columns = np.empty((height, capacity), np.int64)
        count = len(self)
        columns[: len(self._columns), :count] = self._columns[:, self._first : self._end]
        columns[len(self._columns) :, :count] = 0
        self._columns, self._first, self._end = columns, 0, count


def _height(entries: Entries) -> int:
    """Return how many matrix rows the entries need: 2, or 3 with tags, or 4 with labels."""
    return 4 if entries.labels is not None else 2 if entries.tags is None else 3
