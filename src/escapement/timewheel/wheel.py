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
needed, and slots only while they have entries.

**Where an entry goes.** Write the current tick T and the entry's tick t (the first at or
after its time) as digits to the base 64. The highest digit in which they differ gives the
level, and t's digit there gives the slot. As t lies ahead of T and all higher digits agree,
that slot lies ahead of T's own slot on its level. So a slot never has entries of two different
rounds of its level. Every entry on a lower level is earlier than every entry on a higher one, and
the lowest occupied slot of the lowest occupied level is due next.

**A worked example**, with ticks of 1 s, at T = 130, in digits (2, 2). An entry for t = 135,
(2, 7), differs in the last digit: level 0, slot 7. An entry for t = 200, (3, 8), differs in
the first: level 1, slot 3. At T = 135 the wheel returns slot 7 of level 0. At T = 192, (3, 0),
the wheel enters slot 3 of level 1: it takes the entries out and lays them out again relative to
192, where t = 200 differs only in its last digit: level 0, slot 8. Eight ticks later the wheel
returns it. If the wheel goes from 130 to T = 10,000 at once, it takes out everything between
slot by slot, without a visit to any of the 9,870 ticks.

**Staging.** The wheel first keeps arriving arrays as they are, in its staging area. It *lays them
out*, that is, puts the entries into slots, when the earliest of them falls due, or when many have
gathered. So an arriving batch costs one search for its earliest time, small batches are laid out
together, and entries that fall due with the earliest one never enter a slot.

**Preparing.** When the wheel enters a slot, it moves the entries to lower levels. For a million
entries this takes tens of milliseconds, and everything that falls due meanwhile would be late. So
the wheel empties the next such slot ahead of its time, one portion at each turn, into separate
levels. These are laid out as if the slot's first tick had come. When that tick comes, they become
the lower levels. ``next_wake_ms`` makes sure that there are enough turns before.

Invariants (``_check``): every entry lies in the slot that its tick and T determine. All entries
are ahead of T. The length is the number of entries.
"""

from __future__ import annotations

from typing import Final

from escapement.timewheel.entries import NONE, Entries, Int64s
from escapement.timewheel.levels import Levels
from escapement.timewheel.staging import NEVER, Staging

# How many entries to lay out, or to move to lower levels ahead of time, in one step. This is about
# 0.3 ms of work, in columns that fit a second-level cache. The wheel enters a slot of level 1 every
# 64 ticks, which is time to prepare a million entries.
PORTION_ENTRIES: Final = 16_384


class TimingWheel:
    """A timing wheel, which returns entries when they are due.

    An entry with the time ``when_ms`` falls due at the first tick at or after that time:
    ``ceil(when_ms / tick_ms) * tick_ms``. ``advance(now_ms)`` returns the entry if this tick is not
    later than ``now_ms``, so never before its time. Ids need not be unique: an entry that is
    inserted twice is returned twice.

    The wheel keeps the arrays that the caller inserts for a while. Do not change them afterwards.

    Args:
      tick_ms: the length of a tick.
      now_ms: the current time.
      portion_entries: how many entries to move in one step.
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
        # The levels into which the next slot is emptied ahead of its time (see *Preparing*).
        self._prepared: Levels | None = None

    def __len__(self) -> int:
        prepared = 0 if self._prepared is None else len(self._prepared)
        return len(self._staging) + len(self._levels) + prepared

    @property
    def now_ms(self) -> int:
        """The latest time that the caller has given to the wheel."""
        return self._now_ms

    @property
    def turned_to_ms(self) -> int:
        """The time of the current tick. The wheel has returned all entries due up to this time."""
        return self._levels.tick * self.tick_ms

    @property
    def earliest_ms(self) -> int:
        """The earliest time of all entries, or ``NEVER`` if there are none.

        O(1), or O(entries of one slot) after a turn.
        """
        earliest_ms = min(self._staging.earliest_ms, self._levels.earliest_ms)
        if self._prepared is not None:
            earliest_ms = min(earliest_ms, self._prepared.earliest_ms)
        return earliest_ms

    @property
    def size_bytes(self) -> int:
        """The memory of all entries in bytes, including the unused capacity of slots."""
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
        """Insert entries, except those that are due already (``when_ms <= now_ms``).

        Returns:
          The entries that are due already, sorted, or None if there are none.

        O(n) comparisons now, and O(n) copies at a later turn.
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
        """Turn the wheel to ``now_ms``, and return the entries that fell due, sorted.

        The cost depends on the number of entries that are returned or moved to a lower level, not
        on the time that has passed. ``now_ms`` must not be earlier than before. If the clock was
        set back, drain the wheel and insert the entries into a new one.
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

        This is the tick at which the earliest entry falls due. If the next slot to enter has many
        entries, the result is a tick early enough to prepare the slot one portion at a time.

        O(1), or O(entries of one slot) after a turn.
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
            # The levels being prepared have a large slot, too. It can be prepared only after the
            # wheel has adopted these levels.
            tick = min(tick, prepared.tick)
        return tick * self.tick_ms

    def drain(self) -> Entries:
        """Remove and return all entries, in no particular order. O(size).

        Use it to move the entries to a wheel with another tick or time, or to remove some of them
        and insert the others again.
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
        """Put the entries that are not due yet into slots, and return those that are due."""
        ahead = entries.when_ms > self.turned_to_ms
        if ahead.all():
            self._levels.lay_out(entries)
            return NONE
        self._levels.lay_out(entries.take(ahead))
        return entries.take(~ahead)

    def _prepare(self) -> None:
        """Move one portion of the next large slot into levels that are laid out for its first tick.

        If entries of another large slot arrive that is earlier, the wheel goes on with the slot
        that it is preparing. It moves the entries of the earlier slot all at once when it enters
        that slot.
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
        """Return the first tick and the size of the next slot to enter, if that is a large one.

        A slot is large if it has more than a portion of entries. Returns None if it is not.
        """
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
