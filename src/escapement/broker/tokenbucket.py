"""A token bucket: how many of something may happen by now, at a rate.

It fills by ``rate`` tokens a second and holds what comes together in ``BURST_MS``, at least
one. So in any span of t seconds at most ``rate * (t + BURST_MS / 1000) + 1`` tokens are
spent, and what is asked a little late (a timer, a busy machine) lowers the rate by nothing.
Spending more than there is leaves a debt, which is paid before anything else.

Integers only: a token is a million parts, and ``rate`` counts in thousandths, so a
millisecond adds a whole number of parts and nothing drifts. Pure: time arrives as an
argument; when it goes back, nothing is added.
"""

from __future__ import annotations

from typing import Final

BURST_MS: Final = 100
_PARTS: Final = 1_000_000
_RATE_PARTS: Final = 1_000


class TokenBucket:
    """See the module's docstring. It begins full. All methods cost O(1)."""

    __slots__ = ("_at_ms", "_capacity", "_level", "_parts_per_ms")

    def __init__(self, rate: float, now_ms: int) -> None:
        """A bucket that ``rate`` tokens a second flow into; 0.001 is the least."""
        self._at_ms = now_ms
        self._fit(rate)
        self._level = self._capacity

    def _fit(self, rate: float) -> None:
        self._parts_per_ms = round(rate * _RATE_PARTS)
        assert self._parts_per_ms > 0, "a rate of nothing is no rate"
        self._capacity = max(_PARTS, self._parts_per_ms * BURST_MS)

    def set_rate(self, rate: float, now_ms: int) -> None:
        """Another rate from now on; what has flowed in stays, and so does a debt."""
        if round(rate * _RATE_PARTS) != self._parts_per_ms:
            self._fill(now_ms)
            self._fit(rate)
            self._level = min(self._level, self._capacity)

    def _fill(self, now_ms: int) -> None:
        if now_ms > self._at_ms:
            self._level += (now_ms - self._at_ms) * self._parts_per_ms
            self._level = min(self._level, self._capacity)
        self._at_ms = now_ms

    def available(self, now_ms: int) -> int:
        """How many whole tokens are there; 0 while there is a debt."""
        self._fill(now_ms)
        return max(self._level, 0) // _PARTS

    def spend(self, count: int, now_ms: int) -> None:
        """Take ``count`` tokens, whether they are there or not."""
        self._fill(now_ms)
        self._level -= count * _PARTS

    def wait_ms(self, count: int, now_ms: int) -> int:
        """How long until ``count`` tokens are there; more than fit are waited for as if full."""
        self._fill(now_ms)
        missing = min(count * _PARTS, self._capacity) - self._level
        return max(-(-missing // self._parts_per_ms), 0)
