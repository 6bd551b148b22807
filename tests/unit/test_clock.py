"""The clocks of the machine."""

from __future__ import annotations

import time

import pytest

from escapement.clock import SystemClock, elapsed_s


def test_the_time_in_which_a_machine_sleeps_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """B8: otherwise a broker that wakes up would trust a lease that has expired."""
    slept_s = 3_600
    after = {
        time.CLOCK_MONOTONIC: 5_000_000_000,
        time.CLOCK_BOOTTIME: 5_000_000_000 + slept_s * 1_000_000_000,
    }
    monkeypatch.setattr(time, "clock_gettime_ns", after.__getitem__)
    assert SystemClock().lease_ms() == 5_000 + slept_s * 1_000
    assert elapsed_s.args == (time.CLOCK_BOOTTIME,)  # type: ignore[attr-defined]
