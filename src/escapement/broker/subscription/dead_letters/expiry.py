"""Expiry of a subscription's messages, a time to live after they are due (P10).

Knows the time to live and when a message may next expire, but not the messages. Dispatch checks the
age of every message it delivers, so this module serves a backlog that no consumer takes. It wakes
the subscription when the first message expires, and at most once in ``REST_MS``.

Pure: the time arrives as an argument.
"""

from __future__ import annotations

from typing import Final

# Messages that expire within this time are swept together.
REST_MS: Final = 1_000
# Earlier than any due time.
_NEVER_MS: Final = -1


class Expiry:
    """The time to live, and the time of the next sweep."""

    __slots__ = ("_at_ms", "_shortened", "_sweep", "ttl_ms")

    def __init__(self) -> None:
        self.ttl_ms = 0  # 0: no time to live
        self._at_ms: int | None = None
        self._shortened = False
        self._sweep = False

    def set_ttl(self, ttl_ms: int) -> None:
        """Set the time to live from now on; 0 for none."""
        if ttl_ms != self.ttl_ms:
            self._shortened = bool(ttl_ms)
            self.ttl_ms = ttl_ms
            self._at_ms = 0 if ttl_ms else None
            self._sweep = False

    def takes_effect(self) -> bool:
        """Return whether a new time to live was set since the last call; waits may exceed it."""
        shortened, self._shortened = self._shortened, False
        return shortened

    def until_ms(self, now_ms: int) -> int:
        """Return the due time up to which messages have expired; -1 for none."""
        return now_ms - self.ttl_ms if self.ttl_ms else _NEVER_MS

    def keeps(self, due_ms: int) -> None:
        """Note that a message due at ``due_ms`` is kept."""
        if self.ttl_ms and (self._at_ms is None or due_ms + self.ttl_ms < self._at_ms):
            self._at_ms = due_ms + self.ttl_ms

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether messages may have expired."""
        if self._at_ms is None or now_ms < self._at_ms:
            return False
        self._sweep = True
        self._at_ms = now_ms + REST_MS
        return True

    @property
    def wants_sweep(self) -> bool:
        """Whether ``begin_sweep`` would return True."""
        return self._sweep

    def begin_sweep(self) -> bool:
        """Return whether to sweep now; then ``keeps`` must be called for all kept messages."""
        if not self._sweep:
            return False
        self._sweep = False
        self._at_ms = None
        return True

    def end_sweep(self, now_ms: int) -> None:
        """End a sweep; ``keeps`` was called for all kept messages."""
        if self._at_ms is not None:
            self._at_ms = max(self._at_ms, now_ms + REST_MS)

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` has something to do; None if never."""
        return self._at_ms
