"""The soak fails if a figure exceeds its limit, or still grows at its end."""

from __future__ import annotations

from stress.watched import LEAST_SAMPLES, LIMITS, Sample, exceeded, growing


def samples(memory_mib: list[float]) -> list[Sample]:
    return [{("a", "memory_mib"): one, ("", "late_p99_ms"): 12} for one in memory_mib]


def test_figure_above_its_limit_is_named() -> None:
    most = LIMITS["memory_mib"].most
    assert list(exceeded({("a", "memory_mib"): most})) == []
    (line,) = exceeded({("a", "memory_mib"): most + 1, ("a", "descriptors"): 7})
    assert line.startswith("exceeded: a memory_mib is 401")


def test_figure_that_grows_in_the_last_third_is_named() -> None:
    (line,) = growing(samples([100.0 + number for number in range(120)]))
    assert line == "growing: a memory_mib rose from 179 to 219"


def test_figure_that_grows_first_and_then_stays_is_no_leak() -> None:
    warm = [min(100.0 + 5 * number, 200) for number in range(60)]
    assert list(growing(samples(warm))) == []
    steep = [100.0 * number for number in range(LEAST_SAMPLES - 1)]
    assert list(growing(samples(steep))) == [], "too short a run to tell"
