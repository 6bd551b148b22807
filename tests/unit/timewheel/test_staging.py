"""Entries that are not in the slots of the wheel yet: their arrays are not kept for long."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from escapement.timewheel import TimingWheel

DAY_MS = 86_400_000
START_MS = 1_800_000_000_000


def test_inserted_arrays_are_released_at_the_next_turn() -> None:
    parent = np.full(100_000, START_MS + DAY_MS)
    gone = weakref.ref(parent)
    wheel = TimingWheel(10, START_MS)
    wheel.insert(parent[:10], parent[10:20])
    wheel.advance(START_MS + 10)
    del parent
    gc.collect()
    assert gone() is None


def test_many_small_arrays_are_copied_before_the_next_turn() -> None:
    parents = [np.full(1000, START_MS + DAY_MS + n) for n in range(2000)]
    alive = [weakref.ref(parent) for parent in parents]
    wheel = TimingWheel(10, START_MS)
    for parent in parents:
        wheel.insert(parent[:2], parent[2:4])
    parents.clear()
    del parent
    gc.collect()
    assert sum(ref() is not None for ref in alive) < 1100
    assert len(wheel) == 4000
