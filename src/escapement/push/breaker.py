"""The circuit breaker of a target: it stops posts to an endpoint that fails. Pure.

    closed ── FAILURES in a row ──► open ── the pause is over ──► half open: one post, the probe
      ▲                              ▲                                │
      └──────── a success ───────────┼──────────── a success ─────────┤
                                     └── a failure; twice the pause ──┘

While the breaker is open, messages stay in their subscription and use up no attempts. Each process
has breakers for itself, so a process that cannot reach an endpoint does not stop the others
(docs/guides/push.md compares this with a pause of the subscription). Times are milliseconds of any
clock that is never set back.
"""

from __future__ import annotations

from typing import Final

# The failures in a row that open the breaker.
FAILURES: Final = 5
FIRST_PAUSE_MS: Final = 5_000
LONGEST_PAUSE_MS: Final = 300_000


class Breaker:
    """The breaker of one target."""

    __slots__ = ("_failures", "_pause_ms", "_until_ms")

    def __init__(self) -> None:
        self._failures = 0  # in a row
        self._pause_ms = 0  # the present or last pause; 0: closed
        self._until_ms = 0  # nothing is posted before

    @property
    def is_closed(self) -> bool:
        """Whether the last posts did not all fail."""
        return not self._pause_ms

    def most(self, now_ms: int) -> int | None:
        """Return how many posts may be in progress; None for no limit."""
        if now_ms < self._until_ms:
            return 0
        return None if self.is_closed else 1

    def wake_ms(self, now_ms: int) -> int | None:
        """Return when ``most`` changes by itself; None if it does not."""
        return self._until_ms if now_ms < self._until_ms else None

    def hold(self, until_ms: int) -> None:
        """Post nothing before ``until_ms``, because the endpoint asks for that."""
        self._until_ms = max(self._until_ms, until_ms)

    def succeeded(self) -> None:
        """Note that the endpoint has answered a post. A wait that it asked for stays."""
        if not self.is_closed:
            self._until_ms = 0
        self._failures = self._pause_ms = 0

    def failed(self, now_ms: int) -> None:
        """Note that a post has failed. Posts that began before the breaker opened do not count."""
        if not self.is_closed and now_ms < self._until_ms:
            return
        self._failures += 1
        if self.is_closed and self._failures < FAILURES:
            return
        self._pause_ms = min(max(2 * self._pause_ms, FIRST_PAUSE_MS), LONGEST_PAUSE_MS)
        self.hold(now_ms + self._pause_ms)
