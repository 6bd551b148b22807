"""How long to wait before trying again: longer each time, and never all at once."""

from __future__ import annotations

from collections.abc import Callable
from random import random
from typing import Final

# For what a broker that is there refuses for now: asking is cheap, and what is refused
# holds up all that comes after it. (For making connections see ``Settings``.)
FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 1.0


class Retry:
    """Waits that double from first to longest, each cut at random to its upper half."""

    __slots__ = ("_chance", "_first_s", "_longest_s", "_wait_s")

    def __init__(
        self,
        first_s: float = FIRST_WAIT_S,
        longest_s: float = LONGEST_WAIT_S,
        chance: Callable[[], float] = random,
    ) -> None:
        assert 0 < first_s <= longest_s
        self._first_s = self._wait_s = first_s
        self._longest_s = longest_s
        self._chance = chance

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        wait_s = self._wait_s
        self._wait_s = min(2 * wait_s, self._longest_s)
        return wait_s * (0.5 + 0.5 * self._chance())

    def succeeded(self) -> None:
        """Begin again from the shortest."""
        self._wait_s = self._first_s
