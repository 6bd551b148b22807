"""The soak fails if a figure exceeds its limit, or still grows at its end."""

from __future__ import annotations

import os

import pytest

from stress import other_work
from stress.other_work import OtherWork
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


def test_figure_without_samples_in_the_second_third_does_not_grow() -> None:
    crowded: list[Sample] = [{("a", "memory_mib"): 100.0}] * (2 * LEAST_SAMPLES)
    assert list(growing([*crowded, {("", "late_p99_ms"): 999}])) == []


def test_other_work_is_the_busy_time_without_that_of_the_soak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = os.cpu_count() or 1
    # The time, busy seconds, own seconds.
    readings = iter(
        [(10.0, 100.0, 5.0), (20.0, 100.0 + 4 * cores, 5.0 + 3 * cores), (30.0, 200.0, 300.0)]
    )
    monkeypatch.setattr(other_work, "_readings", lambda: next(readings))
    work = OtherWork()
    assert work.share() == pytest.approx(0.1)
    assert work.share() == 0.0, "own time is counted a little later than that of the machine"


def test_own_work_is_not_other_work() -> None:
    before = other_work._readings()
    sum(range(5_000_000))
    after = other_work._readings()
    _, busy_s, own_s = (late - early for early, late in zip(before, after, strict=True))
    assert 0 < own_s <= busy_s + 0.05
