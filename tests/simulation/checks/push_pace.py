"""The pace of the posts of one process, as docs/guides/push.md gives it.

The first post goes alone. Each success allows one more at a time, and each failure halves the
number. After 5 failures in a row there is a pause, and then one post as a probe. If it fails, the
pause doubles. Nothing is posted before the time for which the endpoint asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simulation.checks.push_tries import NACK, RELEASE, Try

_FAILURES: Final = 5
_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 300.0
_ROUNDING_S: Final = 0.002


class _Pace:
    """How many posts may be in progress, after the ends of earlier ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 1
        self._failures = 0
        self._pause_s = 0.0
        self._until_s = 0.0

    def room(self, at_s: float) -> int:
        if at_s < self._until_s - _ROUNDING_S:
            return 0
        return 1 if self._pause_s else self._size

    def succeeded(self) -> None:
        self._size = min(self._size + 1, self._most)
        if self._pause_s:
            self._until_s = 0.0
        self._failures, self._pause_s = 0, 0.0

    def failed(self, at_s: float, wait_ms: int) -> None:
        self._size = max(self._size // 2, 1)
        if not self._pause_s or at_s >= self._until_s - _ROUNDING_S:
            self._failures += 1
            if self._pause_s or self._failures >= _FAILURES:
                self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                self._until_s = max(self._until_s, at_s + self._pause_s)
        self._until_s = max(self._until_s, at_s + max(wait_ms, 0) / 1000)


def wrong_pace(tries: Sequence[Try], concurrency: int) -> Iterator[str]:
    """Yield the posts that began although they had to wait.

    Args:
      tries: those of one consumer.
      concurrency: the most posts at a time.
    """
    begun = [one for one in tries if one.end != RELEASE]
    # The end of a post cannot let another one begin at once: its message must come first.
    steps = [(one.taken_s, 0, n) for n, one in enumerate(begun)]
    steps += [
        (one.ended_s, one.ended_number, n) for n, one in enumerate(begun) if one.ended_s is not None
    ]
    pace, now = _Pace(concurrency), 0
    for at_s, ended_number, n in sorted(steps):
        one = begun[n]
        if not ended_number:
            if now >= (room := pace.room(at_s)):
                yield f"push: {one.arrival} was posted beside {now} others, and {room} may be"
            now += 1
            continue
        now -= 1
        if one.end == NACK:
            pace.failed(at_s, one.delay_ms)
        else:
            pace.succeeded()
