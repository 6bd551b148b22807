"""The levels of a wheel, which decide the slot of an entry relative to the current tick.

``Level`` holds up to 64 slots and a bitmap of the occupied ones. ``Levels`` is a stack of them
around the current tick: it lays out entries, turns to a later tick, and finds the next slot. It
works with ticks and slots; the wheel handles staging, clocks and the order of entries.

Invariants (``_check``): every entry lies in the slot that its tick and the current tick
determine; a slot exists exactly while it holds entries; the highest level is not empty;
the count is the number of entries.
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

# 64 slots a level: six bits of the tick number a slot, one machine word is the bitmap of
# occupied slots, and eleven levels hold every tick of an int64.
SLOT_BITS: Final = 6
SLOTS: Final = 1 << SLOT_BITS

_SLOT_MASK: Final = SLOTS - 1


class Level:
    """Slots by number, 0 to 63."""

    __slots__ = ("_occupied", "_slots")

    def __init__(self) -> None:
        self._occupied = 0  # bit s: slot s holds something
        self._slots: dict[int, Slot] = {}

    def __bool__(self) -> bool:
        return self._occupied != 0

    def __iter__(self) -> Iterator[tuple[int, Slot]]:
        """Iterate over the occupied slots."""
        return iter(self._slots.items())

    def put(self, number: int, entries: Entries) -> None:
        """Copy entries into a slot."""
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = Slot(entries)
            self._occupied |= 1 << number
        else:
            slot.put(entries)

    def first(self) -> tuple[int, Slot]:
        """Return the lowest occupied slot; there must be one. O(1)."""
        assert self._occupied, "an empty level has no first slot"
        number = (self._occupied & -self._occupied).bit_length() - 1
        return number, self._slots[number]

    def take(self, number: int) -> Slot | None:
        """Remove and return a slot, or None."""
        self._occupied &= ~(1 << number)
        return self._slots.pop(number, None)

    def take_below(self, end: int) -> list[Slot]:
        """Remove and return every slot with a number below ``end``, lowest first."""
        if not self._occupied & ((1 << end) - 1):
            return []
        numbers = sorted(number for number in self._slots if number < end)
        self._occupied &= -1 << end
        return [self._slots.pop(number) for number in numbers]

    def _check(self) -> None:
        assert self._occupied == sum(1 << number for number in self._slots)
        assert all(0 <= number < SLOTS and len(slot) for number, slot in self._slots.items())


class Levels:
    """Entries laid out around a tick. None of them is earlier than the tick."""

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
            for _, slot in level:
                yield slot

    def lay_out(self, entries: Entries) -> None:
        """Copy entries into their slots; O(n)."""
        count = len(entries)
        if not count:
            return
        if self._earliest_ms is not None:
            self._earliest_ms = min(self._earliest_ms, int(entries.when_ms.min()))
        ticks = -(-entries.when_ms // self.tick_ms)
        ahead = ticks ^ self.tick
        highest = _level_of(int(ahead.max()))
        while len(self._levels) <= highest:
            self._levels.append(Level())
        places = self._places(ticks, ahead, highest)
        if bool((places[1:] < places[:-1]).any()):
            order = np.argsort(places, kind="stable")
            places, entries = places[order], entries.take(order)
        bounds = [0, *(np.flatnonzero(places[1:] != places[:-1]) + 1).tolist(), count]
        for low, high in pairwise(bounds):
            level, number = divmod(int(places[low]), SLOTS)
            self._levels[level].put(number, entries.slice(low, high))
        self._count += count

    @staticmethod
    def _places(ticks: Int64s, ahead: Int64s, highest: int) -> npt.NDArray[np.uint16]:
        """Return level and slot in one number, small enough to be sorted by radix."""
        levels = np.zeros(len(ticks), np.uint8)
        for level in range(1, highest + 1):
            levels += ahead >= 1 << (SLOT_BITS * level)
        numbers = ticks >> (levels * np.uint8(SLOT_BITS))
        numbers &= _SLOT_MASK
        places: npt.NDArray[np.uint16] = numbers.astype(np.uint16)
        places += levels * np.uint16(SLOTS)
        return places

    def turn(self, tick: int) -> tuple[list[Slot], list[Slot]]:
        """Turn to a later tick; remove and return the slots passed, in order, and the slot entered.

        The slot of the current tick itself counts as passed. Only levels that were laid out ahead
        of their time have one. O(levels + slots removed).
        """
        assert tick >= self.tick, (tick, self.tick)
        top = _level_of(tick ^ self.tick)
        self.tick = tick
        passed: list[Slot] = []
        entered: list[Slot] = []
        for level in self._levels[:top]:
            passed += level.take_below(SLOTS)
        if top < len(self._levels):
            number = tick >> (SLOT_BITS * top) & _SLOT_MASK
            passed += self._levels[top].take_below(number)
            slot = self._levels[top].take(number)
            if slot is not None:
                # On the lowest level a slot is one tick, and that tick has come.
                (entered if top else passed).append(slot)
        self._took_out(sum(map(len, passed)) + sum(map(len, entered)))
        return passed, entered

    def adopt(self, lower: Levels) -> None:
        """Take over levels laid out ahead and turned to this tick, as the lowest levels."""
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
        """Return the first tick and the size of the next slot that spans more than a tick."""
        for number, level in enumerate(self._levels):
            if number and level:
                slot_number, slot = level.first()
                shift = SLOT_BITS * number
                round_began = self.tick >> (shift + SLOT_BITS) << SLOT_BITS
                return (round_began | slot_number) << shift, len(slot)
        return None

    def take_from_next(self, count: int) -> Entries:
        """Remove and return the first ``count`` entries of the slot of ``next_to_enter``."""
        level = next(level for level in self._levels[1:] if level)
        number, slot = level.first()
        taken = slot.take_first(count)
        if not len(slot):
            level.take(number)
        self._took_out(len(taken))
        return taken

    @property
    def earliest_ms(self) -> int:
        """The earliest time of all entries; ``NEVER`` if there are none.

        O(1), or O(entries of one slot) after a removal.
        """
        if self._earliest_ms is None:
            lowest = next((level for level in self._levels if level), None)
            self._earliest_ms = NEVER if lowest is None else lowest.first()[1].earliest_ms
        return self._earliest_ms

    def _took_out(self, count: int) -> None:
        if count:
            self._count -= count
            self._earliest_ms = None
            while self._levels and not self._levels[-1]:
                self._levels.pop()

    def _check(self) -> None:
        """Assert every invariant; O(size)."""
        for number, level in enumerate(self._levels):
            level._check()
            shift = SLOT_BITS * number
            for slot_number, slot in level:
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


def _level_of(ahead: int) -> int:
    """Return the highest level on which two ticks differ, given their exclusive or; else 0."""
    return max(ahead.bit_length() - 1, 0) // SLOT_BITS
