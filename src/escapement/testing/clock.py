"""A virtual wall clock that stands still until a test advances it.

The clock follows trio's ``MockClock``, so that the wall clock and sleeps agree. ``advance``
moves both. It stops at each time when the broker has work to do, and waits until the broker
has done it. ``set_back`` moves only the wall clock, as an operator or a bad time server does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio
import trio.testing

from escapement.errors import InvalidRequest

# 24 December 2026, 12:00 UTC.
START_MS: Final = 1_798_113_600_000
# trio's clock counts float seconds. Adding this keeps a whole number of milliseconds whole.
_ROUNDING_MS: Final = 0.001


class VirtualClock:
    """The broker's clock in a test, created by ``escapement.testing.start``."""

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
        """Return the virtual wall-clock time in Unix milliseconds."""
        return self._start_ms + self.lease_ms()

    def lease_ms(self) -> int:
        """Return the virtual time since the start in milliseconds; it never goes back."""
        return int((trio.current_time() - self._began_s) * 1000 + _ROUNDING_MS)

    def set_back(self, ms: int) -> None:
        """Set the wall clock back (or, with a negative number, ahead) by ``ms``."""
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
        """Advance the time, and let the broker do all work that becomes due.

        The call returns when all tasks wait for more time or for the test. The consumers then
        have all delivered messages in their buffers.

        Raises:
          InvalidRequest: if the time is negative.
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
        """Wait until every task waits for more time or for the test."""
        await trio.testing.wait_all_tasks_blocked()
