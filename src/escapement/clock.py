"""The two clocks of the broker, the wall clock and the lease clock, and Unix milliseconds.

Due times use the wall clock; sleeping uses trio's own clock. Modules below the broker
never read a clock: they get the time as an argument. The broker takes the time only from
this module, so that a test can use a virtual clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Clock(Protocol):
    """The interface of a clock."""

    def now_ms(self) -> int:
        """Return the wall-clock time in integer milliseconds since the Unix epoch."""
        ...

    def lease_ms(self) -> int:
        """Return a monotonic time in milliseconds that also counts while the machine sleeps."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def lease_ms(self) -> int:
        return time.clock_gettime_ns(_SUSPEND_AWARE) // 1_000_000


def unix_ms(at: datetime) -> int:
    """Return an aware datetime in Unix milliseconds, rounded up."""
    return -((_EPOCH - at) // _MILLISECOND)


def moment(at_ms: int) -> datetime:
    """Return the aware datetime, in UTC, of a Unix time in milliseconds."""
    return _EPOCH + at_ms * _MILLISECOND


# Only Linux has CLOCK_BOOTTIME. CLOCK_MONOTONIC is the closest clock elsewhere.
_SUSPEND_AWARE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
