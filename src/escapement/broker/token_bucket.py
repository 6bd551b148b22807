"""A token bucket: how many events a rate allows by now.

Each event costs a token. The bucket gains ``rate`` tokens a second, and holds at most the tokens of
``BURST_MS``, but at least one. A caller that spends only available tokens spends at most
``rate * (t + BURST_MS / 1000) + 1`` of them in any span of t seconds. A caller that is slightly
late, because of a timer or a busy machine, still reaches the full rate. Spending more tokens than
the bucket holds leaves a debt, which new tokens pay first.

The bucket calculates with integers: a token is a million parts, and ``rate`` has steps of a
thousandth. So a millisecond adds a whole number of parts, and no rounding errors add up. Pure: the
caller passes the time. When the time goes back, the bucket gains nothing.
"""

from __future__ import annotations

from typing import Final

BURST_MS: Final = 100
_PARTS: Final = 1_000_000
_RATE_PARTS: Final = 1_000


class TokenBucket:
    """A token bucket that starts full. All methods cost O(1)."""

    __slots__ = ("_at_ms", "_capacity", "_level", "_parts_per_ms")

    def __init__(self, rate: float, now_ms: int) -> None:
        """Make a full bucket that gains ``rate`` tokens a second; ``rate`` is at least 0.001."""
        self._at_ms = now_ms
        self._fit(rate)
        self._level = self._capacity

    def _fit(self, rate: float) -> None:
        self._parts_per_ms = round(rate * _RATE_PARTS)
        assert self._parts_per_ms > 0, "the rate is less than 0.001"
        self._capacity = max(_PARTS, self._parts_per_ms * BURST_MS)

    def set_rate(self, rate: float, now_ms: int) -> None:
        """Change the rate from now on. A debt stays, and so do the tokens that still fit."""
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
        """Return the number of whole tokens; 0 while there is a debt."""
        self._fill(now_ms)
        return max(self._level, 0) // _PARTS

    def spend(self, count: int, now_ms: int) -> None:
        """Take ``count`` tokens, even if that leaves a debt."""
        self._fill(now_ms)
        self._level -= count * _PARTS

    def wait_ms(self, count: int, now_ms: int) -> int:
        """Return how long it takes until the bucket holds ``count`` tokens, or is full."""
        self._fill(now_ms)
        missing = min(count * _PARTS, self._capacity) - self._level
        return max(-(-missing // self._parts_per_ms), 0)
