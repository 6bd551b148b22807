"""The timing wheel, compared with a sorted list."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from escapement.timewheel import Entries, TimingWheel

DAY_MS = 86_400_000
# Short delays, delays at the borders of levels, and long delays.
delays = st.one_of(
    st.integers(-5, 5),
    st.integers(0, 300),
    st.builds(lambda level, shift: 64**level + shift, st.integers(1, 5), st.integers(-3, 3)),
    st.integers(0, 400 * DAY_MS),
)
ids = st.integers(-20, 60) | st.integers(-(2**62), 2**62)
tags = st.integers(-3, 3)
rows = st.lists(st.tuples(delays, ids, tags), max_size=30)


def triples(entries: Entries | None) -> list[tuple[int, int, int]]:
    if entries is None:
        return []
    columns = [entries.when_ms, entries.ids]
    columns.append(np.zeros(len(entries), np.int64) if entries.tags is None else entries.tags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def int64s(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


class TimingWheelMachine(RuleBasedStateMachine):
    """Every operation of the wheel, repeated on a plain list."""

    @initialize(
        tick_ms=st.sampled_from([1, 2, 10, 1000]),
        now_ms=st.integers(0, 5000),
        portion=st.sampled_from([1, 4, 10, 16_384]),
    )
    def begin(self, tick_ms: int, now_ms: int, portion: int) -> None:
        self.tick_ms, self.now_ms, self.portion = tick_ms, now_ms, portion
        self.wheel = TimingWheel(tick_ms, now_ms, portion_entries=portion)
        self.model: list[tuple[int, int, int]] = []

    @rule(rows=rows, tagged=st.booleans())
    def insert(self, rows: list[tuple[int, int, int]], tagged: bool) -> None:
        rows = [
            (max(self.now_ms + delay * self.scale(delay), 0), id, tag if tagged else 0)
            for delay, id, tag in rows
        ]
        elapsed = self.wheel.insert(
            int64s([row[0] for row in rows]),
            int64s([row[1] for row in rows]),
            int64s([row[2] for row in rows]) if tagged else None,
        )
        due = [row for row in rows if row[0] <= self.now_ms]
        assert sorted(triples(elapsed)) == sorted(due)
        self.assert_order(triples(elapsed))
        self.model += [row for row in rows if row[0] > self.now_ms]

    def scale(self, delay: int) -> int:
        """Return the unit of a delay: delays at the borders of levels count in ticks."""
        return self.tick_ms if abs(delay) < 64**5 else 1

    @rule(delay=delays)
    def advance(self, delay: int) -> None:
        self.advance_to(self.now_ms + max(delay, 0))

    @rule(early_ms=st.integers(0, 3))
    def advance_to_the_next_wake(self, early_ms: int) -> None:
        """Invariants 2 and 4: entries return at their tick, not before it, without any traffic."""
        wake_ms = self.wheel.next_wake_ms()
        if wake_ms is not None and wake_ms - early_ms >= self.now_ms:
            count, is_fire_time = len(self.model), wake_ms == self.fire_ms()
            self.advance_to(wake_ms - early_ms)
            assert (len(self.model) < count) == (is_fire_time and early_ms == 0)

    def fire_ms(self) -> int:
        return -(-min(self.model)[0] // self.tick_ms) * self.tick_ms

    def advance_to(self, now_ms: int) -> None:
        self.now_ms = now_ms
        turned_to_ms = now_ms // self.tick_ms * self.tick_ms
        due = [row for row in self.model if row[0] <= turned_to_ms]
        self.model = [row for row in self.model if row[0] > turned_to_ms]
        returned = triples(self.wheel.advance(now_ms))
        assert sorted(returned) == sorted(due)
        self.assert_order(returned)

    def assert_order(self, returned: list[tuple[int, int, int]]) -> None:
        keys = [(when_ms, id) for when_ms, id, _ in returned]
        assert keys == sorted(keys)

    @rule(tick_ms=st.sampled_from([1, 3, 10, 1000]), now_ms=st.integers(0, 10**6))
    def drain_into_another_tick_and_time(self, tick_ms: int, now_ms: int) -> None:
        everything = self.wheel.drain()
        assert sorted(triples(everything)) == sorted(self.model)
        assert len(self.wheel) == 0
        assert self.wheel.next_wake_ms() is None
        self.wheel._check()
        self.wheel = TimingWheel(tick_ms, now_ms, portion_entries=self.portion)
        self.tick_ms, self.now_ms = tick_ms, now_ms
        due = triples(self.wheel.insert(everything.when_ms, everything.ids, everything.tags))
        assert sorted(due) == sorted(row for row in self.model if row[0] <= now_ms)
        self.model = [row for row in self.model if row[0] > now_ms]

    @invariant()
    def it_is_sound(self) -> None:
        if not hasattr(self, "wheel"):
            return
        self.wheel._check()
        assert len(self.wheel) == len(self.model)
        assert sorted(triples(self.wheel.entries())) == sorted(self.model)
        wake_ms = self.wheel.next_wake_ms()
        if not self.model:
            assert wake_ms is None
        elif self.portion > 1000:
            assert wake_ms == self.fire_ms(), "no slot is large enough to be prepared"
        else:
            assert wake_ms is not None
            assert self.now_ms < wake_ms <= self.fire_ms()


TestTimingWheel = TimingWheelMachine.TestCase
TestTimingWheel.settings = settings(max_examples=60, stateful_step_count=25)
