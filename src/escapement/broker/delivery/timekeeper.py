"""The one task that waits for time to pass, for all topics together.

``schedule`` sets the time at which a topic next has work. All recurring schedules together have one
such time, under an id that no topic has. The task sleeps until the first of these times. The wall
clock (broker/delivery/wall_clock.py) wakes it after a jump. A topic without work to come has no
entry and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from sortedcontainers import SortedList

from escapement.broker.delivery.wall_clock import WallClock
from escapement.clock import Clock


class Timekeeper:
    """The timers of all topics. Scheduling costs O(log topics).

    Args:
      on_wake: called with a topic id and the current time when the topic has work.
      on_step_back: called with the current time when the wall clock was set back.
      wall_clock: tells of jumps of the clock.
      max_sleep_s: the longest sleep before a wake-up. A longer wait is measured again in between,
        because the speed of the wall clock changes.
    """

    def __init__(
        self,
        clock: Clock,
        on_wake: Callable[[int, int], None],
        on_step_back: Callable[[int], None],
        wall_clock: WallClock,
        max_sleep_s: float,
    ) -> None:
        self._clock = clock
        self._on_wake = on_wake
        self._on_step_back = on_step_back
        self._wall_clock = wall_clock
        self._max_sleep_ms = int(max_sleep_s * 1000)
        self._seen_ms = clock.now_ms()
        self._wakes: dict[int, int] = {}  # the time to wake each topic, by topic id
        self._order = SortedList()  # the same times, as pairs (time, topic id)
        self._sleeps_until_ms: float = 0
        self._earlier = trio.Event()  # set to end the sleep for an earlier time

    def schedule(self, topic_id: int, wake_ms: int | None) -> None:
        """Set the time to wake a topic, in place of any time set before; None for never."""
        known = self._wakes.get(topic_id)
        if known == wake_ms:
            return
        if known is not None:
            self._order.remove((known, topic_id))
        if wake_ms is None:
            del self._wakes[topic_id]
            return
        self._wakes[topic_id] = wake_ms
        self._order.add((wake_ms, topic_id))
        if wake_ms < self._sleeps_until_ms:
            self._earlier.set()

    def hasten(self, topic_id: int, wake_ms: int | None) -> None:
        """Wake a topic by ``wake_ms``, or earlier if an earlier time is set; None to do nothing."""
        known = self._wakes.get(topic_id)
        if wake_ms is not None and (known is None or wake_ms < known):
            self.schedule(topic_id, wake_ms)

    def next_wake_ms(self) -> int | None:
        """Return the time of the next wake-up, for test clocks that jump there; None for never."""
        return int(self._order[0][0]) if self._order else None

    async def run(self) -> None:
        """Wake topics forever."""
        with self._wall_clock.telling(self._jumped):
            while True:
                self._wall_clock.look()
                self._wake_topics()
                await self._sleep()

    def _jumped(self, before_ms: int) -> None:
        """Look at the clock again: a clock has jumped since the time ``before_ms``."""
        self._seen_ms = max(self._seen_ms, before_ms)
        self._earlier.set()

    def _wake_topics(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms < self._seen_ms:
            self._on_step_back(now_ms)
        self._seen_ms = now_ms
        # Wake each topic only once per round. A topic that waits for another task may schedule its
        # next wake-up for the present time. In a round without end, it would keep that task from
        # running.
        for topic_id in [id for _, id in self._order.irange(maximum=(now_ms + 1,))]:
            self.schedule(topic_id, None)
            self._on_wake(topic_id, now_ms)

    async def _sleep(self) -> None:
        now_ms, next_ms = self._clock.now_ms(), self.next_wake_ms()
        wait_ms = math.inf if next_ms is None else max(next_ms - now_ms, 0)
        if wait_ms > self._max_sleep_ms:
            wait_ms -= self._max_sleep_ms
        self._sleeps_until_ms = now_ms + wait_ms
        self._earlier = trio.Event()
        with trio.move_on_after(wait_ms / 1000):
            await self._earlier.wait()
        self._sleeps_until_ms = 0
