"""The promises of the timing wheel, case by case and at realistic sizes."""

from __future__ import annotations

import numpy as np
import pytest

from escapement.timewheel import Entries, TimingWheel

DAY_MS = 86_400_000
START_MS = 1_800_000_000_000


def random_entries(count: int, first_ms: int, span_ms: int, seed: int = 1) -> Entries:
    when_ms = np.random.default_rng(seed).integers(first_ms, first_ms + span_ms, count)
    return Entries(when_ms, np.arange(count))


def insert_alone(wheel: TimingWheel, when_ms: int, id: int) -> bool:
    """Insert one entry; return whether it is due already."""
    elapsed = wheel.insert(np.array([when_ms]), np.array([id]))
    return elapsed is not None and elapsed.ids.tolist() == [id]


def insert_in_arrays(wheel: TimingWheel, entries: Entries, height: int = 1000) -> None:
    for low in range(0, len(entries), height):
        part = entries.slice(low, low + height)
        assert wheel.insert(part.when_ms, part.ids) is None


def assert_equal(returned: list[Entries], expected: Entries) -> None:
    whole, expected = Entries.concat(returned), expected.sorted()
    assert np.array_equal(whole.when_ms, expected.when_ms)
    assert np.array_equal(whole.ids, expected.ids)


def test_worked_example_of_the_documentation() -> None:
    wheel = TimingWheel(1000, 130_000)
    insert_alone(wheel, 135_000, 1)
    insert_alone(wheel, 200_000, 2)
    assert wheel.next_wake_ms() == 135_000
    assert wheel.advance(135_000).ids.tolist() == [1]
    assert wheel.next_wake_ms() == 200_000
    assert len(wheel.advance(192_000)) == 0
    assert len(wheel.advance(199_999)) == 0
    assert wheel.advance(200_000).ids.tolist() == [2]
    assert wheel.next_wake_ms() is None


def test_an_entry_falls_due_at_the_first_tick_at_or_after_its_time() -> None:
    """Invariant 2: never early."""
    wheel = TimingWheel(1000, 0)
    wheel.insert(np.array([1000, 1001, 2000]), np.array([1, 2, 3]))
    assert len(wheel.advance(999)) == 0
    assert wheel.advance(1000).ids.tolist() == [1]
    assert len(wheel.advance(1999)) == 0, "it is due, but its tick has not been reached"
    assert wheel.advance(2000).ids.tolist() == [2, 3]


def test_entry_due_by_the_current_time_is_returned_at_insertion() -> None:
    wheel = TimingWheel(1000, 1500)
    elapsed = wheel.insert(np.array([1600, 1500, 3, 1500]), np.array([1, 9, 3, 4]))
    assert elapsed is not None
    assert elapsed.ids.tolist() == [3, 4, 9]
    assert insert_alone(wheel, 1500, 5)
    assert not insert_alone(wheel, 1501, 6)
    assert len(wheel) == 2
    assert wheel.turned_to_ms == 1000


def test_an_entry_inserted_twice_is_returned_twice() -> None:
    wheel = TimingWheel(1, 0)
    for _ in range(2):
        wheel.insert(np.array([5]), np.array([7]))
    assert wheel.advance(5).ids.tolist() == [7, 7]


def test_tags_are_returned_with_their_entries() -> None:
    wheel = TimingWheel(10, 0)
    wheel.insert(np.array([15, 25]), np.array([1, 2]))
    wheel.insert(np.array([16, 24]), np.array([3, 4]), np.array([30, 40]))
    insert_alone(wheel, 17, 5)
    wheel.insert(np.array([18]), np.array([6]), np.array([60]))
    first = wheel.advance(20)
    assert first.ids.tolist() == [1, 3, 5, 6]
    assert first.tags is not None
    assert first.tags.tolist() == [0, 30, 0, 60]


def test_cost_of_a_jump_depends_on_entries_and_not_on_ticks() -> None:
    """A jump over thirty years in milliseconds returns at once: no tick in between is visited."""
    wheel = TimingWheel(1, START_MS)
    insert_alone(wheel, START_MS + 40 * 365 * DAY_MS, 1)
    for years in range(1, 31):
        assert len(wheel.advance(START_MS + years * 365 * DAY_MS)) == 0
    assert wheel.next_wake_ms() == START_MS + 40 * 365 * DAY_MS
    wheel._check()


@pytest.mark.parametrize("tick_ms", [1, 10, 1000])
@pytest.mark.parametrize("span_ms", [1, 1000, 60_000, 30 * DAY_MS])
def test_a_hundred_thousand_entries_are_returned_complete_and_in_order(
    tick_ms: int, span_ms: int
) -> None:
    entries = random_entries(100_000, START_MS + 1, span_ms)
    wheel = TimingWheel(tick_ms, START_MS)
    insert_in_arrays(wheel, entries)
    returned = []
    now_ms = START_MS
    while len(wheel):
        wake_ms = wheel.next_wake_ms()
        assert wake_ms is not None
        now_ms = max(wake_ms, now_ms + span_ms // 50)
        part = wheel.advance(now_ms)
        assert not len(part) or int(part.when_ms[-1]) <= now_ms
        returned.append(part)
    assert_equal(returned, entries)


def test_a_large_slot_is_moved_down_a_portion_at_a_time_before_it_is_due() -> None:
    """P3: a large slot makes no tick late."""
    count, portion = 5000, 100
    entries = random_entries(count, START_MS + DAY_MS, 1000)
    wheel = TimingWheel(10, START_MS, portion_entries=portion)
    insert_in_arrays(wheel, entries)
    turns_before, returned = 0, []
    while len(wheel):
        wake_ms = wheel.next_wake_ms()
        assert wake_ms is not None
        assert wake_ms > wheel.now_ms
        returned.append(wheel.advance(wake_ms))
        wheel._check()
        turns_before += wake_ms < START_MS + DAY_MS
    assert turns_before >= count // portion
    assert_equal(returned, entries)


def test_entries_inserted_while_their_slot_is_prepared_are_not_lost() -> None:
    far_ms = START_MS + DAY_MS
    early = random_entries(1000, far_ms, 1000)
    wheel = TimingWheel(10, START_MS, portion_entries=100)
    insert_in_arrays(wheel, early)
    for _ in range(5):
        wake_ms = wheel.next_wake_ms()
        assert wake_ms is not None
        assert len(wheel.advance(wake_ms)) == 0
    late = Entries(early.when_ms + 3, early.ids + 1000)
    insert_in_arrays(wheel, late)
    assert not insert_alone(wheel, wheel.now_ms + 50, -1)
    assert wheel.advance(wheel.now_ms + 60).ids.tolist() == [-1]
    wheel._check()
    assert_equal([wheel.advance(far_ms + 2000)], Entries.concat([early, late]))


def partly_prepared() -> tuple[TimingWheel, Entries]:
    """Return a wheel that is moving a large slot down, and the entries of that wheel."""
    entries = random_entries(1000, START_MS + DAY_MS, 1000)
    wheel = TimingWheel(10, START_MS, portion_entries=100)
    insert_in_arrays(wheel, entries)
    for _ in range(5):
        wake_ms = wheel.next_wake_ms()
        assert wake_ms is not None
        assert len(wheel.advance(wake_ms)) == 0
    return wheel, entries


def test_jump_past_a_partly_prepared_slot_returns_its_entries_in_order() -> None:
    wheel, entries = partly_prepared()
    assert_equal([wheel.advance(START_MS + 99 * DAY_MS)], entries)


def test_drained_entries_can_be_inserted_again() -> None:
    """Invariant 4: due entries are returned without any traffic."""
    wheel, entries = partly_prepared()
    everything = wheel.drain()
    assert_equal([everything.sorted()], entries)
    assert len(wheel) == 0
    few = everything.take(everything.ids < 50)
    assert wheel.insert(few.when_ms, few.ids) is None
    returned = []
    while len(wheel):
        wake_ms = wheel.next_wake_ms()
        assert wake_ms is not None
        returned.append(wheel.advance(wake_ms))
        wheel._check()
    assert_equal(returned, few)


def test_a_snapshot_is_a_copy() -> None:
    for staged in (True, False):
        wheel = TimingWheel(10, START_MS)
        wheel.insert(np.array([START_MS + 50]), np.array([1]))
        if not staged:
            wheel.advance(START_MS + 10)
        wheel.entries().ids[0] = 99
        assert wheel.advance(START_MS + 50).ids.tolist() == [1]


def test_memory_is_a_few_bytes_for_each_entry() -> None:
    wheel = TimingWheel(10, START_MS)
    assert wheel.size_bytes == 0
    insert_in_arrays(wheel, random_entries(100_000, START_MS + 1000, 60_000))
    wheel.advance(START_MS + 10)
    assert 16 <= wheel.size_bytes / len(wheel) <= 24
    wheel.advance(START_MS + DAY_MS)
    assert wheel.size_bytes == 0


def test_time_goes_back_only_with_another_wheel() -> None:
    wheel = TimingWheel(10, 1000)
    insert_alone(wheel, 2000, 1)
    with pytest.raises(AssertionError):
        wheel.advance(999)
    drained = wheel.drain()
    wheel = TimingWheel(10, 500)
    assert wheel.insert(drained.when_ms, drained.ids) is None
    assert len(wheel.advance(1999)) == 0
    assert wheel.advance(2000).ids.tolist() == [1]
