"""Back-off with full jitter: how long a client waits before it tries something again.

Each wait is random between zero and a bound, which doubles with each failure ("full jitter"). So
clients that lost their broker at the same moment come back at different times. In the first minute
of an outage the bound stays below a second, because most outages are restarts of the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import random
from typing import Final

# The first and the highest bound of the wait after a retryable refusal by a connected broker. They
# are low, because a request is cheap, and a refused publish delays all publishes behind it.
# (``Settings`` has the bounds for reconnecting.)
FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 1.0
# The highest bound in the first EARLY_S of an outage. It is below a second, because connecting and
# opening a producer take time as well.
LONGEST_EARLY_WAIT_S: Final = 0.75
EARLY_S: Final = 60.0


class Retry:
    """A back-off with full jitter, whose bound doubles from ``first_s`` to ``longest_s``.

    ``at_s`` is the earliest time of the next attempt, on the clock of the event loop. ``chance``
    returns a random number from 0 to 1.
    """

    __slots__ = ("_bound_s", "_chance", "_failing_since_s", "_first_s", "_longest_s", "at_s")

    def __init__(
        self,
        first_s: float = FIRST_WAIT_S,
        longest_s: float = LONGEST_WAIT_S,
        chance: Callable[[], float] = random,
    ) -> None:
        assert 0 < first_s <= longest_s
        self._first_s = self._bound_s = first_s
        self._longest_s = longest_s
        self._chance = chance
        self._failing_since_s: float | None = None
        self.at_s = -inf

    def failed(self, now_s: float) -> None:
        """Postpone the next attempt after a failure. Further failures before it are ignored."""
        if now_s >= self.at_s:
            self.at_s = now_s + self.next_s(now_s)

    def next_s(self, now_s: float) -> float:
        """Count one more failure, and return the seconds to wait before the next attempt.

        Args:
          now_s: the time of the failure on the clock of the event loop.
        """
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        longest_s = self._longest_s
        if now_s - self._failing_since_s < EARLY_S:
            longest_s = min(longest_s, LONGEST_EARLY_WAIT_S)
        bound_s = min(self._bound_s, longest_s)
        self._bound_s = min(2 * bound_s, self._longest_s)
        return bound_s * self._chance()

    def succeeded(self) -> None:
        """Reset the bound to ``first_s``, because an attempt succeeded."""
        self._bound_s = self._first_s
        self._failing_since_s = None
