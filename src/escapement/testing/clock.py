"""A virtual wall clock for the broker in a test, which stands still until the test advances it.

The broker reads two clocks: the wall clock decides when messages are due, and trio's clock how long
tasks sleep. In a test, trio's clock is a ``trio.testing.MockClock``, and the virtual wall clock
follows it. ``advance`` moves both. It stops at each time at which the broker has work to do, and
waits until the broker has done it. ``set_back`` moves only the wall clock, as an operator or a bad
time server does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio
import trio.testing

from escapement.errors import InvalidRequest

# The time at which a test starts unless it chooses another: 24 December 2026, 12:00 UTC.
START_MS: Final = 1_798_113_600_000
# trio's clock counts seconds as floats. Adding this before truncating to milliseconds makes up for
# their rounding errors.
_ROUNDING_MS: Final = 0.001


class VirtualClock:
    """The broker's wall clock in a test, created by ``escapement.testing.start``."""

    def __init__(self, start_ms: int = START_MS) -> None:
        clock = trio.lowlevel.current_clock()
        if not isinstance(clock, trio.testing.MockClock):
            raise InvalidRequest(
                "escapement.testing needs virtual time: use pytest-trio's mock_clock fixture, "
                "or escapement.testing.run"
            )
        self._trio_clock = clock
        self._began_s = trio.current_time()
        self._start_ms = start_ms
        self.next_wake_ms: Callable[[], int | None] = lambda: None

    def now_ms(self) -> int:
        """Return the time of the virtual wall clock in Unix milliseconds."""
        return self._start_ms + self.lease_ms()

    def lease_ms(self) -> int:
        """Return the milliseconds since the start of the test, which ``set_back`` does not change.

        The broker uses this clock for the lease of its database.
        """
        return int(self.elapsed_s() * 1000 + _ROUNDING_MS)

    def elapsed_s(self) -> float:
        """Return the seconds since the start of the test, which ``set_back`` does not change.

        The clients of the test use this clock.
        """
        # Threads may read this clock, and trio.current_time() works in no thread but its own.
        return self._trio_clock.current_time() - self._began_s

    def set_back(self, ms: int) -> None:
        """Set the wall clock back by ``ms`` milliseconds, or ahead if ``ms`` is negative."""
        self._start_ms -= ms

    async def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
    ) -> None:
        """Advance the time by the sum of the arguments, and let the broker do all work due by then.

        The call returns when all tasks wait for a later time or for the test. The consumers have
        then received all messages that the broker has sent.

        Raises:
          InvalidRequest: if the sum is negative.
        """
        amount_ms = round(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000 + ms)
        if amount_ms < 0:
            raise InvalidRequest("time cannot go back: use set_back to change the wall clock")
        end_ms = self.lease_ms() + amount_ms
        await self.settle()
        while (left_ms := end_ms - self.lease_ms()) > 0:
            wake_ms = self.next_wake_ms()
            step_ms = left_ms if wake_ms is None else min(max(wake_ms - self.now_ms(), 1), left_ms)
            self._trio_clock.jump(step_ms / 1000)
            await self.settle()

    async def settle(self) -> None:
        """Wait until all tasks wait for a later time or for the test. The time stands still."""
        await trio.testing.wait_all_tasks_blocked()
