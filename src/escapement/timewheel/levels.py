"""The levels of a timing wheel, which determine the slot of each entry.

``wheel.py`` explains ticks, levels and slots, with an example. To *lay out* entries is to put them
into their slots. To *turn* to a later tick is to take out the entries whose slots have come: the
wheel has *passed* the slots before that tick, and has *entered* a slot that contains it.

A ``Level`` has up to 64 slots. ``Levels`` is a stack of levels relative to the current tick: it
lays out entries, turns to a later tick, and finds the next slot. The wheel handles staging, time
and the order of entries.

Invariants (``_check``): every entry lies in the slot that its tick and the current tick determine.
A slot exists exactly while it has entries. The highest level is not empty. The count is the number
of entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.timewheel.entries import Entries, Int64s
from escapement.timewheel.slot import Slot
from escapement.timewheel.staging import NEVER

# Each level has 64 slots: a slot number is six bits of the tick. Eleven levels reach every tick of
# an int64.
SLOT_BITS: Final = 6
SLOTS: Final = 1 << SLOT_BITS

_SLOT_MASK: Final = SLOTS - 1


Level = dict[int, Slot]  # the slots that have entries, by number from 0 to 63


class Levels:
    """The levels relative to the current tick, with their entries. No entry is before that tick.

    Iterating yields all slots, from the lowest level to the highest.
    """

    __slots__ = ("_count", "_earliest_ms", "_levels", "tick", "tick_ms")

    def __init__(self, tick_ms: int, tick: int) -> None:
        self.tick_ms = tick_ms
        self.tick = tick
        self._levels: list[Level] = []
        self._count = 0
        self._earliest_ms: int | None = None  # None: unknown, computed when needed

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Slot]:
        for level in self._levels:
            yield from level.values()

    def lay_out(self, entries: Entries) -> None:
        """Copy entries into their slots, adding levels as needed; O(n)."""
        count = len(entries)
        if not count:
            return
        if self._earliest_ms is not None:
            self._earliest_ms = min(self._earliest_ms, int(entries.when_ms.min()))
        ticks = -(-entries.when_ms // self.tick_ms)
        ahead = ticks ^ self.tick
        highest = _level_of(int(ahead.max()))
        while len(self._levels) <= highest:
            self._levels.append({})
        slot_numbers = self._slot_numbers(ticks, ahead, highest)
        if bool((slot_numbers[1:] < slot_numbers[:-1]).any()):
            order = np.argsort(slot_numbers, kind="stable")
            slot_numbers, entries = slot_numbers[order], entries.take(order)
        bounds = [0, *(np.flatnonzero(slot_numbers[1:] != slot_numbers[:-1]) + 1).tolist(), count]
        for low, high in pairwise(bounds):
            at, number = divmod(int(slot_numbers[low]), SLOTS)
            level, part = self._levels[at], entries.slice(low, high)
            if number in level:
                level[number].put(part)
            else:
                level[number] = Slot(part)
        self._count += count

    @staticmethod
    def _slot_numbers(ticks: Int64s, ahead: Int64s, highest: int) -> npt.NDArray[np.uint16]:
        """Return the level and slot of each entry as ``64 * level + slot``.

        The numbers have 16 bits, because numpy sorts these by radix.

        Args:
          ticks: the tick of each entry.
          ahead: that tick exclusive-or the current tick.
          highest: the highest level of an entry.
        """
        levels = np.zeros(len(ticks), np.uint8)
        for level in range(1, highest + 1):
            levels += ahead >= 1 << (SLOT_BITS * level)
        numbers = ticks >> (levels * np.uint8(SLOT_BITS))
        numbers &= _SLOT_MASK
        slot_numbers: npt.NDArray[np.uint16] = numbers.astype(np.uint16)
        slot_numbers += levels * np.uint16(SLOTS)
        return slot_numbers

    def turn(self, tick: int) -> tuple[list[Slot], list[Slot]]:
        """Turn to a later tick, and remove the slots whose time has come.

        Returns:
          The slots passed, in order of time: all their entries are due. Then a list with the slot
          entered, if any. It spans ``tick``, so only some of its entries are due, and the others
          must be laid out again.

        A slot of the tick before the turn is among the slots passed. It exists only if the levels
        were laid out ahead of their time. O(levels + slots removed).
        """
        assert tick >= self.tick, (tick, self.tick)
        top = _level_of(tick ^ self.tick)
        self.tick = tick
        passed: list[Slot] = []
        entered: list[Slot] = []
        for level in self._levels[:top]:
            passed += _take_below(level, SLOTS)
        if top < len(self._levels):
            number = tick >> (SLOT_BITS * top) & _SLOT_MASK
            passed += _take_below(self._levels[top], number)
            slot = self._levels[top].pop(number, None)
            if slot is not None:
                # On the lowest level, a slot is one tick, so all its entries are due.
                (entered if top else passed).append(slot)
        self._took_out(sum(map(len, passed)) + sum(map(len, entered)))
        return passed, entered

    def adopt(self, lower: Levels) -> None:
        """Take over the levels ``lower``, which were laid out ahead of time for the same tick.

        They become the lowest levels, which must be empty.
        """
        assert lower.tick == self.tick
        for number, level in enumerate(lower._levels):
            if number == len(self._levels):
                self._levels.append(level)
            elif level:
                assert not self._levels[number], "the levels below were passed"
                self._levels[number] = level
        self._count += lower._count
        self._earliest_ms = None

    def next_to_enter(self) -> tuple[int, int] | None:
        """Find the slot that is entered next: the first one above the lowest level.

        Returns:
          The first tick of the slot and its number of entries, or None if there is no such slot.
        """
        for number, level in enumerate(self._levels):
            if number and level:
                slot_number = min(level)
                shift = SLOT_BITS * number
                round_began = self.tick >> (shift + SLOT_BITS) << SLOT_BITS
                return (round_began | slot_number) << shift, len(level[slot_number])
        return None

    def take_from_next(self, count: int) -> Entries:
        """Remove and return the first ``count`` entries of the slot that is entered next.

        This is the slot of ``next_to_enter``, which must exist.
        """
        level = next(level for level in self._levels[1:] if level)
        number = min(level)
        taken = level[number].take_first(count)
        if not len(level[number]):
            del level[number]
        self._took_out(len(taken))
        return taken

    @property
    def earliest_ms(self) -> int:
        """The earliest time of all entries, or ``NEVER`` if there are none.

        O(1), or O(entries of one slot) after a removal.
        """
        if self._earliest_ms is None:
            lowest = next((level for level in self._levels if level), None)
            self._earliest_ms = NEVER if lowest is None else lowest[min(lowest)].earliest_ms
        return self._earliest_ms

    def _took_out(self, count: int) -> None:
        """Update the count and drop empty levels, after ``count`` entries were removed."""
        if count:
            self._count -= count
            self._earliest_ms = None
            while self._levels and not self._levels[-1]:
                self._levels.pop()

    def _check(self) -> None:
        """Assert every invariant; O(size)."""
        for number, level in enumerate(self._levels):
            assert all(0 <= at < SLOTS and len(slot) for at, slot in level.items())
            shift = SLOT_BITS * number
            for slot_number, slot in level.items():
                ticks = -(-slot.entries().when_ms // self.tick_ms)
                ahead = ticks ^ self.tick
                assert (ticks >= self.tick).all()
                assert (ahead >> (shift + SLOT_BITS) == 0).all()
                assert number == 0 or (ahead >> shift != 0).all()
                assert (ticks >> shift & _SLOT_MASK == slot_number).all()
        assert not self._levels or self._levels[-1]
        assert self._count == sum(map(len, self))
        earliest = min((slot.earliest_ms for slot in self), default=NEVER)
        assert self.earliest_ms == earliest


def _take_below(level: Level, end: int) -> list[Slot]:
    """Remove and return the slots of a level with numbers below ``end``, lowest first."""
    return [level.pop(number) for number in sorted(level) if number < end]


def _level_of(ahead: int) -> int:
    """Return the highest level on which two ticks differ, given their exclusive-or.

    Returns 0 if they are equal.
    """
    return max(ahead.bit_length() - 1, 0) // SLOT_BITS
