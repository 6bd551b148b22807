"""How long something is waited for, where the clock may be set back meanwhile.

Pure: times arrive as arguments.
"""

from __future__ import annotations


class Patience:
    """See the module's docstring. Nothing is waited for until somebody asks ``is_out``."""

    __slots__ = ("_is_out", "_span_ms", "until_ms")

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._is_out = False
        self.until_ms: int | None = None  # a wake-up is wanted then

    def is_out(self, now_ms: int) -> bool:
        """Wait, or go on waiting; returns whether that was long enough."""
        latest_ms = now_ms + self._span_ms
        if not self._is_out and (self.until_ms is None or self.until_ms > latest_ms):
            self.until_ms = latest_ms
        self.advance(now_ms)
        return self._is_out

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether that was long enough just now."""
        if self.until_ms is None or now_ms < self.until_ms:
            return False
        self.until_ms, self._is_out = None, True
        return True

    @property
    def has_begun(self) -> bool:
        """Whether it is waited, or was long enough."""
        return self._is_out or self.until_ms is not None

    def end(self) -> None:
        """Wait no longer."""
        self.until_ms, self._is_out = None, False
