"""The staging area of a timing wheel: entries that are not in the slots of the wheel yet.

The area keeps the arrays of arriving entries without a copy, unless they are views. The wheel moves
all entries to its slots when the earliest falls due, or when the area is full.
"""

from __future__ import annotations

from typing import Final

from escapement.timewheel.entries import Entries

# Later than every time.
NEVER: Final = 1 << 63
# The area is full when it has this many arrays, because a small array costs more than its entries.
MAX_ARRAYS: Final = 1024


class Staging:
    """The staging area of one wheel, with its entries in order of arrival.

    ``earliest_ms`` is the earliest time of an entry, or ``NEVER`` if there are none.
    """

    __slots__ = ("_count", "_parts", "earliest_ms")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all entries."""
        self.earliest_ms = NEVER
        self._parts: list[Entries] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """The size of the entries in bytes."""
        return sum(part.size_bytes for part in self._parts)

    def is_full(self, portion: int) -> bool:
        """Return whether there are ``portion`` entries or more, or ``MAX_ARRAYS`` arrays."""
        return self._count >= portion or len(self._parts) >= MAX_ARRAYS

    def put(self, entries: Entries, earliest_ms: int) -> None:
        """Add entries, of which ``earliest_ms`` is the earliest time. O(1), or O(n) for views."""
        self.earliest_ms = min(self.earliest_ms, earliest_ms)
        self._parts.append(entries.owned())
        self._count += len(entries)

    def parts(self) -> list[Entries]:
        """Return all entries, in the parts in which they arrived."""
        return [*self._parts]

    def take(self) -> list[Entries]:
        """Remove and return all entries, in the parts in which they arrived."""
        parts = self._parts
        self.clear()
        return parts

    def _check(self) -> None:
        """Assert that the count and the earliest time are those of the entries; O(size)."""
        assert self._count == sum(map(len, self._parts))
        found = [int(part.when_ms.min()) for part in self._parts]
        assert self.earliest_ms == min(found, default=NEVER)
