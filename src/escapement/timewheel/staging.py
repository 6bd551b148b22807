"""The staging area of a timing wheel: entries that are not laid out over the slots yet.

Arrays are kept without a copy, unless they are views of larger ones. Entries inserted one at a
time gather in lists, so that none needs an array of its own. The wheel lays out all of them when
the earliest falls due, or when their number reaches a portion.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.timewheel.entries import Entries

# Later than every time.
NEVER: Final = 1 << 63
# Staging is full at this many arrays: each small array costs more than its entries.
MAX_ARRAYS: Final = 1024
# The memory of an entry inserted alone: two list items and two integers.
_SINGLE_BYTES: Final = 80


class Staging:
    """Staged entries in order of arrival: first the arrays, then the entries inserted alone."""

    __slots__ = ("_array_entries", "_arrays", "_ids", "_tags", "_when_ms", "earliest_ms")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove everything."""
        self.earliest_ms = NEVER
        self._arrays: list[Entries] = []
        self._array_entries = 0
        self._when_ms: list[int] = []
        self._ids: list[int] = []
        self._tags: list[int] | None = None

    def __len__(self) -> int:
        return self._array_entries + len(self._when_ms)

    @property
    def size_bytes(self) -> int:
        """The memory of the entries."""
        return sum(part.size_bytes for part in self._arrays) + len(self._when_ms) * _SINGLE_BYTES

    def is_full(self, portion: int) -> bool:
        """Whether the staged entries make up a portion."""
        return len(self) >= portion or len(self._arrays) >= MAX_ARRAYS

    def put(self, entries: Entries, earliest_ms: int) -> None:
        """Stage arrays; ``earliest_ms`` is the earliest time in them. O(1), O(n) for views."""
        if earliest_ms < self.earliest_ms:
            self.earliest_ms = earliest_ms
        self._arrays.append(entries.owned())
        self._array_entries += len(entries)

    def put_one(self, when_ms: int, id: int, tag: int) -> None:
        """Stage one entry. O(1)."""
        if when_ms < self.earliest_ms:
            self.earliest_ms = when_ms
        if tag and self._tags is None:
            self._tags = [0] * len(self._ids)
        if self._tags is not None:
            self._tags.append(tag)
        self._when_ms.append(when_ms)
        self._ids.append(id)

    def parts(self) -> list[Entries]:
        """Return everything staged, the arrays first."""
        if not self._ids:
            return [*self._arrays]
        alone = Entries(
            np.array(self._when_ms, np.int64),
            np.array(self._ids, np.int64),
            None if self._tags is None else np.array(self._tags, np.int64),
        )
        return [*self._arrays, alone]

    def take(self) -> list[Entries]:
        """Return everything staged and clear the staging area."""
        parts = self.parts()
        if parts:
            self.clear()
        return parts

    def _check(self) -> None:
        assert self._array_entries == sum(map(len, self._arrays))
        assert len(self._when_ms) == len(self._ids)
        assert self._tags is None or len(self._tags) == len(self._ids)
        found = [int(part.when_ms.min()) for part in self.parts()]
        assert self.earliest_ms == min(found, default=NEVER)
