"""Notices when the wall clock of the machine is set, for all brokers of a process.

A timekeeper sleeps until its next work is due. Work is due by the wall clock, and trio's clock
measures the sleep. So a timekeeper must wake up when one of them jumps: the wall clock is set, or
the machine was suspended, which stops trio's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from escapement.clock import Clock

# How far the two clocks may drift apart before sleeps are measured again. Time synchronisation
# changes the speed of the wall clock a little.
_DRIFT_MS: Final = 5


class WallClock:
    """The task that looks at the wall clock.

    Args:
      look_s: the time between two looks.
    """

    def __init__(self, clock: Clock, look_s: float) -> None:
        self._clock = clock
        self._look_s = look_s
        self._seen_ms = clock.now_ms()
        self._ahead_ms = self._ahead_of_trio(self._seen_ms)
        self._told: list[Callable[[int], None]] = []

    @contextmanager
    def telling(self, tell: Callable[[int], None]) -> Iterator[None]:
        """In the ``with`` block, call ``tell`` with the time before each jump of a clock."""
        self._told.append(tell)
        try:
            yield
        finally:
            self._told.remove(tell)

    def look(self) -> None:
        """Tell the others if a clock has jumped since the last look."""
        now_ms, seen_ms = self._clock.now_ms(), self._seen_ms
        ahead_ms = self._ahead_of_trio(now_ms)
        self._seen_ms = now_ms
        if now_ms < seen_ms or abs(ahead_ms - self._ahead_ms) > _DRIFT_MS:
            self._ahead_ms = ahead_ms
            for tell in self._told:
                tell(seen_ms)

    async def run(self) -> None:
        """Look at the wall clock forever."""
        while True:
            await trio.sleep(self._look_s)
            self.look()

    def _ahead_of_trio(self, now_ms: int) -> float:
        return now_ms - 1000 * trio.current_time()
