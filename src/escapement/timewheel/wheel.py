"""A hierarchical timing wheel over columns.

It holds entries (a time, an id, optionally a tag and a label) and returns them when they are
due, sorted by time, then id. Time is divided into *ticks* of a fixed length. The wheel reads no
clock: it turns when the caller gives it the time. It depends on numpy alone.

Ticks are counted from the Unix epoch. A level is 64 slots; a slot of one level spans
all the slots of the level below:

    =====  ==================  ==========================  ==========================
    level  a slot spans        reach, ticks of 10 ms       reach, ticks of 1 s
    =====  ==================  ==========================  ==========================
    0      1 tick              640 ms                      64 s
    1      64 ticks            41 s                        68 min
    2      4,096 ticks         44 min                      3 days
    3      262,144 ticks       46 hours                    194 days
    4      16,777,216 ticks    124 days                    34 years
    =====  ==================  ==========================  ==========================

and so on; the eleventh level reaches the end of an int64. Levels exist only while they are
needed, and slots only while they hold entries.

**Where an entry goes.** Write the current tick T and the entry's tick t (the first at or
after its time) as digits to the base 64. The highest digit in which they differ gives the
level, and t's digit there gives the slot. As t lies ahead of T and all higher digits agree,
that slot lies ahead of T's own on its level. So a slot never holds two different rounds, every
entry on a lower level is earlier than every entry on a higher one, and the lowest occupied
slot of the lowest occupied level is due next.

**A worked example**, with ticks of 1 s, at T = 130, in digits (2, 2). An entry for t = 135,
(2, 7), differs in the last digit: level 0, slot 7. An entry for t = 200, (3, 8), differs in
the first: level 1, slot 3. At T = 135 the wheel returns slot 7 of level 0. At T = 192, (3, 0),
the wheel enters slot 3 of level 1: it takes the entries out and lays them out again relative to
192, where t = 200 differs only in its last digit: level 0, slot 8. Eight ticks later the wheel
returns it. If the wheel goes from 130 to T = 10,000 at once, it takes out everything between
slot by slot, without a visit to any of the 9,870 ticks.

**Staging.** The wheel keeps arriving arrays as they are, and lays them out over the slots when
the earliest of them falls due, or when many have gathered. So an arriving batch costs one
comparison, small batches are laid out together, and entries that fall due with the earliest
one never enter a slot.

**Preparing.** Moving a slot with a million entries to lower levels takes tens of milliseconds,
and everything that falls due meanwhile would be late. So the wheel empties the next such slot
ahead of its time, one portion at each turn, into separate levels that are laid out as if the
slot's first tick had come. When it comes, they become the lower levels. ``next_wake_ms`` asks
for the turns that this takes.

Invariants (``_check``): every entry lies in the slot that its tick and T determine; all entries
that are staged or laid out lie ahead of T; the length is the number of entries.
"""

from __future__ import annotations

from typing import Final

from escapement.timewheel.entries import NONE, Entries, Int64s
from escapement.timewheel.levels import Levels
from escapement.timewheel.staging import NEVER, Staging

# Entries to lay out, or to move down ahead of time, in one step: about 0.3 ms of work, in
# columns that fit a second-level cache. A slot of level 1 is entered 64 turns after the one
# before it, so a million entries are moved down in time.
PORTION_ENTRIES: Final = 16_384


class TimingWheel:
    """A timing wheel: entries by the time at which they are due.

    An entry for ``when_ms`` falls due at the first tick at or after it: at
    ``ceil(when_ms / tick_ms) * tick_ms``. ``advance(now_ms)`` returns it if, and only if,
    that is no later than ``now_ms``; hence never before its time. Ids need not be unique:
    an entry inserted twice is returned twice.

    The wheel keeps arrays that the caller passes in, for a while. Do not change them afterwards.
    """

    __slots__ = ("_levels", "_now_ms", "_portion", "_prepared", "_staging", "tick_ms")

    def __init__(
        self, tick_ms: int, now_ms: int, *, portion_entries: int = PORTION_ENTRIES
    ) -> None:
        assert tick_ms > 0, tick_ms
        assert now_ms >= 0, now_ms
        assert portion_entries > 0, portion_entries
        self.tick_ms = tick_ms
        self._now_ms = now_ms
        self._portion = portion_entries
        self._staging = Staging()
        self._levels = Levels(tick_ms, now_ms // tick_ms)
        self._prepared: Levels | None = None  # the levels of a slot that is not entered yet

    def __len__(self) -> int:
        prepared = 0 if self._prepared is None else len(self._prepared)
        return len(self._staging) + len(self._levels) + prepared

    @property
    def now_ms(self) -> int:
        """The time given to the wheel last."""
        return self._now_ms

    @property
    def turned_to_ms(self) -> int:
        """The last tick passed: everything due up to here has been returned."""
        return self._levels.tick * self.tick_ms

    @property
    def earliest_ms(self) -> int:
        """The earliest time of all entries; ``NEVER`` if there are none.

        O(1); O(entries of one slot) after a turn.
        """
        earliest_ms = min(self._staging.earliest_ms, self._levels.earliest_ms)
        if self._prepared is not None:
            earliest_ms = min(earliest_ms, self._prepared.earliest_ms)
        return earliest_ms

    @property
    def size_bytes(self) -> int:
        """The memory of the entries, unused capacity of slots included."""
        slots = sum(slot.size_bytes for levels in self._laid_out() for slot in levels)
        return slots + self._staging.size_bytes

    # -- inserting ---------------------------------------------------------------

    def insert(
        self,
        when_ms: Int64s,
        ids: Int64s,
        tags: Int64s | None = None,
        labels: Int64s | None = None,
    ) -> Entries | None:
        """Insert entries; return those due already (``when_ms <= now_ms``), sorted, or None.

        The wheel does not keep the returned entries. O(n) comparisons now, O(n) copies at the next
        turn.
        """
        assert len(when_ms) == len(ids) == (len(ids) if tags is None else len(tags))
        assert labels is None or len(labels) == len(ids)
        if not len(ids):
            return None
        entries, elapsed = Entries(when_ms, ids, tags, labels), None
        earliest_ms = int(when_ms.min())
        if earliest_ms <= self._now_ms:
            due = when_ms <= self._now_ms
            elapsed = entries.take(due).sorted()
            if len(elapsed) == len(entries):
                return elapsed
            entries = entries.take(~due)
            earliest_ms = int(entries.when_ms.min())
        self._staging.put(entries, earliest_ms)
        if self._staging.is_full(self._portion):
            self._lay_out_staged()
        return elapsed

    # -- removing ------------------------------------------------------------------

    def advance(self, now_ms: int) -> Entries:
        """Turn to ``now_ms`` and return what fell due, sorted by time, then id.

        The cost depends on the entries returned and moved to a lower level, not on the time that
        has passed. The time must not go back: drain the wheel into another one.
        """
        assert now_ms >= self._now_ms, f"time went back from {self._now_ms} to {now_ms}"
        self._now_ms = now_ms
        tick = now_ms // self.tick_ms
        if tick == self._levels.tick:
            return NONE
        if not len(self):
            self._levels.tick = tick
            return NONE
        passed, entered = self._levels.turn(tick)
        if self._prepared is not None and self._prepared.tick <= tick:
            more_passed, more_entered = self._prepared.turn(tick)
            passed, entered = passed + more_passed, entered + more_entered
            self._levels.adopt(self._prepared)
            self._prepared = None
        due = [slot.entries() for slot in passed]
        moving = [slot.entries() for slot in entered]
        if self._staging.earliest_ms <= self.turned_to_ms:
            moving += self._staging.take()
        if moving:
            elapsed = self._move(Entries.concat(moving))
            if len(elapsed):
                due.append(elapsed)
        self._prepare()
        return Entries.concat(due).sorted()

    def next_wake_ms(self) -> int | None:
        """Return the time at which to call ``advance`` next, or None if the wheel is empty.

        It is the tick at which the earliest entry falls due. If a slot with many entries is to be
        entered, it is a tick early enough to prepare that slot portion by portion. O(1); O(entries
        of one slot) after a turn.
        """
        earliest_ms = self.earliest_ms
        if earliest_ms == NEVER:
            return None
        tick = -(-earliest_ms // self.tick_ms)
        if len(self._levels) <= self._portion and self._prepared is None:
            return tick * self.tick_ms
        prepared, large = self._prepared, self._next_large_of(self._levels)
        if large is not None and (prepared is None or prepared.tick == large[0]):
            first_tick, count = large
            begin_tick = first_tick - -(-count // self._portion)
            tick = min(tick, max(begin_tick, self._levels.tick + 1))
        if prepared is not None and self._next_large_of(prepared) is not None:
            # That slot is prepared after these levels are entered.
            tick = min(tick, prepared.tick)
        return tick * self.tick_ms

    def drain(self) -> Entries:
        """Remove and return all entries, in no particular order. O(size).

        They go into a wheel of another tick or time, or some of them back into this one.
        """
        everything = self.entries()
        self._staging.clear()
        self._levels = Levels(self.tick_ms, self._levels.tick)
        self._prepared = None
        return everything

    def entries(self) -> Entries:
        """Return a copy of all entries, in no particular order. O(size)."""
        parts = [slot.entries() for levels in self._laid_out() for slot in levels]
        parts += self._staging.parts()
        whole = Entries.concat(parts)
        return whole if len(parts) > 1 else whole.copy()

    # -- internals ---------------------------------------------------------------

    def _laid_out(self) -> list[Levels]:
        return [self._levels] if self._prepared is None else [self._levels, self._prepared]

    def _lay_out_staged(self) -> None:
        self._levels.lay_out(Entries.concat(self._staging.take()))

    def _move(self, entries: Entries) -> Entries:
        """Lay out the entries that lie ahead and return the others."""
        ahead = entries.when_ms > self.turned_to_ms
        if ahead.all():
            self._levels.lay_out(entries)
            return NONE
        self._levels.lay_out(entries.take(ahead))
        return entries.take(~ahead)

    def _prepare(self) -> None:
        """Move a portion of the next large slot into the levels that it will become.

        If an earlier large slot turns up while one is prepared, the prepared one stays, and the
        earlier one is moved down at once when it is entered.
        """
        large = self._next_large_of(self._levels)
        if large is None:
            return
        first_tick, count = large
        if self._prepared is None:
            self._prepared = Levels(self.tick_ms, first_tick)
        if self._prepared.tick == first_tick:
            turns_left = first_tick - self._levels.tick
            portion = max(self._portion, -(-count // turns_left))
            self._prepared.lay_out(self._levels.take_from_next(portion))

    def _next_large_of(self, levels: Levels) -> tuple[int, int] | None:
        """Return first tick and size of the next slot to enter, if it is worth preparing."""
        upcoming = levels.next_to_enter()
        return upcoming if upcoming is not None and upcoming[1] > self._portion else None

    def _check(self) -> None:
        """Assert every invariant; O(size)."""
        self._staging._check()
        for levels in self._laid_out():
            levels._check()
        assert self._prepared is None or len(self._prepared)
        assert self._prepared is None or self._prepared.tick > self._levels.tick
        everything = self.entries()
        assert len(everything) == len(self)
        assert (everything.when_ms > self.turned_to_ms).all()
