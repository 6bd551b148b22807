"""The speed and memory of the timing wheel alone, as a table.

    python benchmarks/bench_timewheel.py

Every figure is the median of five runs on new wheels. Entries are inserted in arrays of 1000, with
ids that count upward like offsets, and with random times within the window that the row names. The
speed of numpy's sort decides the "expire" rows: on AMD Zen 4 its AVX-512 sort is several times
slower than its AVX2 sort, which ``NPY_DISABLE_CPU_FEATURES="AVX512_SKX X86_V4"`` selects.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable

import numpy as np

from escapement.timewheel import Entries, TimingWheel

RUNS = 5
ENTRIES = 1_000_000
ARRAY = 1000
START_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def arrays(window_ms: int, seed: int = 1) -> list[Entries]:
    """Return a million entries due at random within a window, in arrays of a thousand."""
    when_ms = np.random.default_rng(seed).integers(1, window_ms + 1, ENTRIES) + START_MS
    ids = np.arange(ENTRIES)
    return [
        Entries(when_ms[low : low + ARRAY].copy(), ids[low : low + ARRAY].copy())
        for low in range(0, ENTRIES, ARRAY)
    ]


def filled(tick_ms: int, batches: Iterable[Entries]) -> TimingWheel:
    wheel = TimingWheel(tick_ms, START_MS)
    for batch in batches:
        wheel.insert(batch.when_ms, batch.ids, batch.tags)
    return wheel


def insert_one(wheel: TimingWheel, when_ms: int, id: int) -> None:
    wheel.insert(np.array([when_ms]), np.array([id]))


def turn(wheel: TimingWheel, until_ms: int) -> tuple[int, float]:
    """Advance the wheel tick by tick.

    Returns:
      The number of entries expired, and the longest call of ``advance`` in seconds.
    """
    count, longest = 0, 0.0
    for now_ms in range(wheel.now_ms, until_ms + wheel.tick_ms, wheel.tick_ms):
        began = time.perf_counter()
        count += len(wheel.advance(now_ms))
        longest = max(longest, time.perf_counter() - began)
    return count, longest


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def insert(window_ms: int, tick_ms: int) -> tuple[float, str]:
    batches = arrays(window_ms)
    return ENTRIES / timed(lambda: filled(tick_ms, batches)) / 1e6, "million/s"


def insert_alone() -> tuple[float, str]:
    wheel = TimingWheel(10, START_MS)
    count = 60_000

    def work() -> None:
        for id in range(count):
            insert_one(wheel, START_MS + 1 + id, id)

    return count / timed(work) / 1e6, "million/s"


def expire(window_ms: int, tick_ms: int) -> tuple[float, str]:
    wheel = filled(tick_ms, arrays(window_ms))
    began = time.perf_counter()
    count, _ = turn(wheel, START_MS + window_ms)
    seconds = time.perf_counter() - began
    assert count == ENTRIES, count
    return ENTRIES / seconds / 1e6, "million/s"


def steady(tick_ms: int, per_tick: int) -> tuple[float, str]:
    """Measure a tick that inserts ``per_tick`` entries and expires the entries that are due.

    The delays of the entries are random, up to a minute.
    """
    generator = np.random.default_rng(2)
    turns = 2000
    wheel = TimingWheel(tick_ms, START_MS)
    delays = generator.integers(1, 60_000, (turns, per_tick))
    ids = np.arange(turns * per_tick).reshape(turns, per_tick)

    def work() -> None:
        now_ms = START_MS
        for delay, id in zip(delays, ids, strict=True):
            now_ms += tick_ms
            wheel.insert(now_ms + delay, id)
            wheel.advance(now_ms)

    return timed(work) / turns * 1e6, "µs/tick"


def longest_turn(delay_ms: int) -> tuple[float, str]:
    """Measure the longest call of ``advance`` when a million entries are due within one second.

    Args:
      delay_ms: the time from the insertion until that second.
    """
    batches = [Entries(b.when_ms + delay_ms, b.ids) for b in arrays(1000)]
    wheel = filled(10, batches)
    now_ms = START_MS
    longest = 0.0
    while len(wheel):
        wake_ms = wheel.next_wake_ms()
        assert wake_ms is not None
        now_ms = max(wake_ms, now_ms + 10)
        longest = max(longest, timed(lambda now_ms=now_ms: wheel.advance(now_ms)))
    return longest * 1e3, "ms"


def jump() -> tuple[float, str]:
    wheel = filled(10, arrays(30 * DAY_MS))
    return timed(lambda: wheel.advance(START_MS + 30 * DAY_MS)) * 1e3, "ms"


def empty_jump() -> tuple[float, str]:
    wheel = TimingWheel(1, START_MS)
    insert_one(wheel, START_MS + 365 * DAY_MS, 1)
    wheel.advance(START_MS + 1)
    return timed(lambda: wheel.advance(START_MS + 30 * DAY_MS)) * 1e6, "µs"


def bytes_an_entry(window_ms: int, tick_ms: int) -> tuple[float, str]:
    wheel = filled(tick_ms, arrays(window_ms))
    wheel.advance(START_MS + tick_ms)
    return wheel.size_bytes / len(wheel), "bytes"


def bytes_a_wheel(far_entries: int) -> tuple[float, str]:
    """Measure the memory of a wheel with its Python objects, as the mean of 1000 wheels.

    Args:
      far_entries: the number of entries in the wheel, each due in a day or later.
    """
    tracemalloc.start()
    wheels = []
    for _ in range(1000):
        wheel = TimingWheel(1000, START_MS)
        for days in range(far_entries):
            insert_one(wheel, START_MS + (1 + days) * DAY_MS, days)
        wheel.advance(START_MS + 1000)
        wheels.append(wheel)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / len(wheels), "bytes"


ROWS: list[tuple[str, Callable[[], tuple[float, str]]]] = [
    ("insert, over 1 s, tick 10 ms", lambda: insert(1000, 10)),
    ("insert, over 5 min, tick 1 s", lambda: insert(300_000, 1000)),
    ("insert, over 30 days, tick 1 s", lambda: insert(30 * DAY_MS, 1000)),
    ("insert one at a time", insert_alone),
    ("expire, over 1 s, tick 10 ms", lambda: expire(1000, 10)),
    ("expire, over 10 s, tick 10 ms", lambda: expire(10_000, 10)),
    ("expire, over 60 s, tick 10 ms", lambda: expire(60_000, 10)),
    ("expire, over 5 min, tick 1 s", lambda: expire(300_000, 1000)),
    ("in and out, 100 a tick of 10 ms", lambda: steady(10, 100)),
    ("in and out, 1000 a tick of 10 ms", lambda: steady(10, 1000)),
    ("longest call, burst 5 s away", lambda: longest_turn(5_000)),
    ("longest call, burst 5 min away", lambda: longest_turn(300_000)),
    ("longest call, burst 3 h away", lambda: longest_turn(10_800_000)),
    ("jump over 30 days, a million due", jump),
    ("jump over 30 days, one not due", empty_jump),
    ("memory, over 60 s, tick 10 ms", lambda: bytes_an_entry(60_000, 10)),
    ("memory, over 30 days, tick 1 s", lambda: bytes_an_entry(30 * DAY_MS, 1000)),
    ("memory of a wheel, empty", lambda: bytes_a_wheel(0)),
    ("memory of a wheel, one entry", lambda: bytes_a_wheel(1)),
    ("memory of a wheel, 20 entries", lambda: bytes_a_wheel(20)),
]


def main() -> None:
    for name, work in ROWS:
        results = [work() for _ in range(RUNS)]
        print(f"{name:36}{statistics.median(r[0] for r in results):12.1f} {results[0][1]}")


if __name__ == "__main__":
    main()
