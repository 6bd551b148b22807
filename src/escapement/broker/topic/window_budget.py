"""A common limit on the keys in the wheels of all topics.

Each topic reports how many keys its wheel holds. When all wheels together reach the limit, windows
become small, and the other messages stay in the index until they are due. Pure.
"""

from __future__ import annotations

from typing import Final

# Any topic may load this many keys, however full the other wheels are: fewer are not worth a read.
LEAST_MESSAGES: Final = 1024


class WindowBudget:
    """The budget of keys in wheels; all counts are messages."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def window(self) -> int:
        """Return the size of the next window."""
        return max(min(LEAST_MESSAGES, self.limit), self.limit - self.used)

    def allows_window(self, own: int) -> bool:
        """Return whether a topic with ``own`` keys in its wheel may load more."""
        if self.used * 2 <= self.limit:
            return True
        return own * 2 <= min(LEAST_MESSAGES, self.limit)

    def asks_to_shrink(self, own: int) -> bool:
        """Return whether a topic with ``own`` keys must give some up.

        This happens when too many messages are published below the horizon.
        """
        return self.used > 2 * self.limit and own > 2 * LEAST_MESSAGES
