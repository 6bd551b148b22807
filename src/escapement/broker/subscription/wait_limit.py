"""A wait of fixed length that survives a clock set back.

Pure: times arrive as arguments.
"""

from __future__ import annotations


class WaitLimit:
    """A wait that begins with the first call of ``is_out``."""

    __slots__ = ("_is_out", "_span_ms", "until_ms")

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._is_out = False
        self.until_ms: int | None = None  # when to wake up

    def is_out(self, now_ms: int) -> bool:
        """Begin or continue the wait; return whether it has ended."""
        latest_ms = now_ms + self._span_ms
        if not self._is_out and (self.until_ms is None or self.until_ms > latest_ms):
            self.until_ms = latest_ms
        self.advance(now_ms)
        return self._is_out

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether the wait has just ended."""
        if self.until_ms is None or now_ms < self.until_ms:
            return False
        self.until_ms, self._is_out = None, True
        return True

    @property
    def has_begun(self) -> bool:
        """Whether the wait has begun, ended or not."""
        return self._is_out or self.until_ms is not None

    def end(self) -> None:
        """Reset the wait."""
        self.until_ms, self._is_out = None, False
