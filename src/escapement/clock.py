"""The clocks of the broker: the wall clock for due times, and a monotonic clock for its lease.

The *lease* is the broker's right to its database, which expires if the broker does not renew
it. The broker reads the time only from this module, so that a test can use a virtual clock.
Modules in lower layers, such as the timing wheel, never read a clock: they get the time as an
argument. Sleeping uses the clock of trio. Consumers use ``elapsed_s`` to tell how long messages
have waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Clock(Protocol):
    """The interface of the broker's clock, which is virtual in tests."""

    def now_ms(self) -> int:
        """Return the wall-clock time in integer milliseconds since the Unix epoch."""
        ...

    def lease_ms(self) -> int:
        """Return a monotonic time in milliseconds that also counts while the machine sleeps."""
        ...


class SystemClock:
    """The clocks of the machine, which a broker uses outside of tests."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def lease_ms(self) -> int:
        return time.clock_gettime_ns(_SUSPEND_AWARE) // 1_000_000


def unix_ms(at: datetime) -> int:
    """Return a datetime that has a time zone as Unix milliseconds, rounded up."""
    return -((_EPOCH - at) // _MILLISECOND)


def moment(at_ms: int) -> datetime:
    """Return the aware datetime, in UTC, of a Unix time in milliseconds."""
    return _EPOCH + at_ms * _MILLISECOND


# CLOCK_BOOTTIME also counts while the machine sleeps, but only Linux has it. CLOCK_MONOTONIC is
# the closest clock elsewhere.
_SUSPEND_AWARE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# Returns a monotonic time in seconds that also counts while the machine sleeps. Consumers call it
# for each message, so it is a C function.
elapsed_s: Final[Callable[[], float]] = partial(time.clock_gettime, _SUSPEND_AWARE)
