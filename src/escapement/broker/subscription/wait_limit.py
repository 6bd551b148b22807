"""A wait of fixed length, which a clock that is set back does not prolong.

Pure: times arrive as arguments.
"""

from __future__ import annotations


class WaitLimit:
    """A wait that begins with the first call of ``is_out``, and can be reset by ``end``."""

    __slots__ = ("_is_out", "_span_ms", "until_ms")

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._is_out = False
        self.until_ms: int | None = None  # when the wait ends; None if it is not running

    def is_out(self, now_ms: int) -> bool:
        """Begin the wait, or continue it; return whether it has ended."""
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
        """Whether the wait is running or has ended."""
        return self._is_out or self.until_ms is not None

    def end(self) -> None:
        """Reset the wait; the next call of ``is_out`` begins it again."""
        self.until_ms, self._is_out = None, False
