"""The staging area of a timing wheel: entries that are not laid out over the slots yet.

Arrays are kept without a copy, unless they are views of larger ones. The wheel lays out all of them
when the earliest falls due, or when their number reaches a portion.
"""

from __future__ import annotations

from typing import Final

from escapement.timewheel.entries import Entries

# Later than every time.
NEVER: Final = 1 << 63
# Staging is full at this many arrays: each small array costs more than its entries.
MAX_ARRAYS: Final = 1024


class Staging:
    """Staged entries in order of arrival."""

    __slots__ = ("_count", "_parts", "earliest_ms")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove everything."""
        self.earliest_ms = NEVER
        self._parts: list[Entries] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """The memory of the entries."""
        return sum(part.size_bytes for part in self._parts)

    def is_full(self, portion: int) -> bool:
        """Whether the staged entries make up a portion."""
        return self._count >= portion or len(self._parts) >= MAX_ARRAYS

    def put(self, entries: Entries, earliest_ms: int) -> None:
        """Stage entries; ``earliest_ms`` is the earliest time in them. O(1), O(n) for views."""
        self.earliest_ms = min(self.earliest_ms, earliest_ms)
        self._parts.append(entries.owned())
        self._count += len(entries)

    def parts(self) -> list[Entries]:
        """Return everything staged."""
        return [*self._parts]

    def take(self) -> list[Entries]:
        """Return everything staged and clear the staging area."""
        parts = self._parts
        self.clear()
        return parts

    def _check(self) -> None:
        assert self._count == sum(map(len, self._parts))
        found = [int(part.when_ms.min()) for part in self._parts]
        assert self.earliest_ms == min(found, default=NEVER)
