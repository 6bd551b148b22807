"""When messages of a subscription expire: so long after they were due (P10).

Knows the time to live, and when something may next have expired; not the messages. What is
handed out is asked for its age anyhow, so this is for a backlog that nobody takes: its
subscription is woken at the first moment at which something of it expires, and at most once
in ``REST_MS``.

Pure: the time arrives as an argument.
"""

from __future__ import annotations

from typing import Final

# What expires within this time is swept up together.
REST_MS: Final = 1_000
# Nothing was due so long ago.
_NEVER_MS: Final = -1


class Expiry:
    """See the module's docstring."""

    __slots__ = ("_at_ms", "_shortened", "_sweep", "ttl_ms")

    def __init__(self) -> None:
        self.ttl_ms = 0  # without end
        self._at_ms: int | None = None
        self._shortened = False
        self._sweep = False

    def set_ttl(self, ttl_ms: int) -> None:
        """Another time to live from now on; 0 is without end."""
        if ttl_ms != self.ttl_ms:
            self._shortened = bool(ttl_ms)
            self.ttl_ms = ttl_ms
            self._at_ms = 0 if ttl_ms else None
            self._sweep = False

    def takes_effect(self) -> bool:
        """Whether it is another since this was asked, by which waits may be too long."""
        shortened, self._shortened = self._shortened, False
        return shortened

    def until_ms(self, now_ms: int) -> int:
        """What was due at this moment or before has expired; -1 for nothing."""
        return now_ms - self.ttl_ms if self.ttl_ms else _NEVER_MS

    def keeps(self, due_ms: int) -> None:
        """Something that was due then is kept."""
        if self.ttl_ms and (self._at_ms is None or due_ms + self.ttl_ms < self._at_ms):
            self._at_ms = due_ms + self.ttl_ms

    def advance(self, now_ms: int) -> bool:
        """Time has passed; returns whether something may have expired."""
        if self._at_ms is None or now_ms < self._at_ms:
            return False
        self._sweep = True
        self._at_ms = now_ms + REST_MS
        return True

    @property
    def wants_sweep(self) -> bool:
        """Whether ``begin_sweep`` would say so."""
        return self._sweep

    def begin_sweep(self) -> bool:
        """Whether to look now; if so, all that is kept must be told of again."""
        if not self._sweep:
            return False
        self._sweep = False
        self._at_ms = None
        return True

    def end_sweep(self, now_ms: int) -> None:
        """Everything that is kept has been told of."""
        if self._at_ms is not None:
            self._at_ms = max(self._at_ms, now_ms + REST_MS)

    def next_wake_ms(self) -> int | None:
        """When ``advance`` has something to do; None while there is nothing."""
        return self._at_ms
