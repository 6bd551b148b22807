"""When messages of a subscription expire: a time to live after they are due (P10).

This module has the time to live and the time of the next *sweep*, in which the subscription looks
for expired messages. It has no messages. Dispatch checks the age of every message that it delivers,
so sweeps serve a backlog that no consumer takes. The subscription is woken for a sweep when its
oldest message expires, and at most once in ``REST_MS``.

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
        """Return whether a new time to live was set since the last call.

        Messages in retry may then have to be retried earlier, because they must not wait longer.
        """
        shortened, self._shortened = self._shortened, False
        return shortened

    def until_ms(self, now_ms: int) -> int:
        """Return the latest due time of expired messages; -1 without a time to live."""
        return now_ms - self.ttl_ms if self.ttl_ms else _NEVER_MS

    def keeps(self, due_ms: int) -> None:
        """Note that a message due at ``due_ms`` is pending, and plan a sweep for its expiry."""
        if self.ttl_ms and (self._at_ms is None or due_ms + self.ttl_ms < self._at_ms):
            self._at_ms = due_ms + self.ttl_ms

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``; return whether a sweep is needed now."""
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
        """Begin a sweep if one is needed; return whether it is.

        The caller must then look for expired messages, call ``keeps`` for the oldest of all other
        messages, and call ``end_sweep``.
        """
        if not self._sweep:
            return False
        self._sweep = False
        self._at_ms = None
        return True

    def end_sweep(self, now_ms: int) -> None:
        """End a sweep; the next one is at least ``REST_MS`` later."""
        if self._at_ms is not None:
            self._at_ms = max(self._at_ms, now_ms + REST_MS)

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` has something to do; None if never."""
        return self._at_ms
