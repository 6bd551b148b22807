"""A hash map from integers to integers, on arrays.

It uses open addressing. A key's first slot is the upper bits of its product with the golden ratio.
If that slot is taken, the key is in the next free slot behind it. The product spreads consecutive
keys, so nearly all keys are in their first slot. The others are sought together, one slot further
in each step. A key takes 32 to 64 bytes, however far apart the keys are.

Invariants (``_check``): each key is in the map once; no slot between a key's first slot and the
slot that has it is free; at most half of the slots are taken.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.message import Int64s

# The number that ``get`` returns for a missing key, and the key of a free slot.
NOWHERE: Final = -1

_GOLDEN: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_LEAST_BITS: Final = 4
_SLOTS_PER_KEY: Final = 2  # the fewest


class NumberMap:
    """A map of non-negative keys to non-negative numbers."""

    __slots__ = ("_bits", "_count", "_keys", "_numbers")

    def __init__(self) -> None:
        self._count = 0
        self._make(_LEAST_BITS)

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """The memory of the map in bytes."""
        return self._keys.nbytes + self._numbers.nbytes

    def get(self, keys: Int64s) -> Int64s:
        """Return the number of each key, ``NOWHERE`` if it is missing; int64[n]."""
        return self._numbers[self._find(keys)]

    def put(self, keys: Int64s, numbers: Int64s) -> None:
        """Set the number of each key; a key occurs once in ``keys``."""
        at = self._find(keys)
        self._count += int(np.count_nonzero(self._keys[at] == NOWHERE))
        if _SLOTS_PER_KEY * self._count > len(self._keys):
            taken = np.flatnonzero(self._keys != NOWHERE)
            old, old_numbers = self._keys[taken], self._numbers[taken]
            self._make((_SLOTS_PER_KEY * self._count - 1).bit_length())
            self._fill(self._slots(old), old, old_numbers)
            at = self._slots(keys)
        self._fill(at, keys, numbers)

    def _make(self, bits: int) -> None:
        """Replace the contents by 2**bits free slots."""
        self._bits = bits
        self._keys: Int64s = np.full(1 << bits, NOWHERE)
        self._numbers: Int64s = np.full(1 << bits, NOWHERE)

    def _fill(self, at: Int64s, keys: Int64s, numbers: Int64s) -> None:
        """Store keys and their numbers, each in the first slot from ``at`` on that fits.

        A slot fits if it is free or has the same key.
        """
        while len(keys):
            free = self._keys[at] == NOWHERE
            # If several keys claim the same slot, the last wins.
            self._keys[at[free]] = keys[free]
            placed = self._keys[at] == keys
            self._numbers[at[placed]] = numbers[placed]
            left = ~placed
            keys, numbers, at = keys[left], numbers[left], self._next(at[left])

    def _find(self, keys: Int64s) -> Int64s:
        """Return the slot that has each key, or for a missing key the free slot to put it in."""
        at = self._slots(keys)
        there = self._keys[at]
        far = np.flatnonzero((there != keys) & (there != NOWHERE))
        while len(far):
            at[far] = self._next(at[far])
            there = self._keys[at[far]]
            far = far[(there != keys[far]) & (there != NOWHERE)]
        return at

    def _slots(self, keys: Int64s) -> Int64s:
        """Return the first slot of each key, where the search for it begins."""
        products = keys.view(np.uint64) * _GOLDEN
        slots: Int64s = (products >> np.uint64(64 - self._bits)).view(np.int64)
        return slots

    def _next(self, slots: Int64s) -> Int64s:
        following: Int64s = (slots + 1) & (len(self._keys) - 1)
        return following

    def _check(self) -> None:
        """Assert every invariant."""
        taken = np.flatnonzero(self._keys != NOWHERE)
        assert len(taken) == self._count, "the count is wrong"
        assert _SLOTS_PER_KEY * self._count <= len(self._keys), "the map is too full"
        keys = self._keys[taken]
        assert len(np.unique(keys)) == len(keys), "a key is in the map twice"
        assert np.array_equal(self.get(keys), self._numbers[taken]), "a key is not found"
