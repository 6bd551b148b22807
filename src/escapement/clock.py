"""The two clocks: what time it is, and how long a lease has run.

The wall clock says *when*; trio's own clock says how long to sleep. Nothing
below the broker reads a clock: the time arrives as an argument. This module is
the one place where it comes from, so that a test can put another in its place.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the broker asks for the time."""

    def now_ms(self) -> int:
        """Wall-clock time, integer milliseconds since the Unix epoch."""
        ...

    def lease_ms(self) -> int:
        """A clock for leases: monotone, and it counts while the machine is suspended."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def lease_ms(self) -> int:
        return time.clock_gettime_ns(_SUSPEND_AWARE) // 1_000_000


# CLOCK_BOOTTIME is Linux's; elsewhere CLOCK_MONOTONIC is the nearest there is.
_SUSPEND_AWARE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
