"""A common limit on the keys in the timing wheels of all topics.

A topic loads the keys that fall due next from the index into its wheel, one *window* at a time, and
reports how many keys its wheel has. When all wheels together reach the limit, windows become small,
and the other messages stay in the index until they are due. Pure.
"""

from __future__ import annotations

from typing import Final

# Any topic may load this many keys, even if the wheels are full. Fewer keys are not worth a read.
LEAST_MESSAGES: Final = 1024


class WindowBudget:
    """The number of keys in all wheels together, and the limit on it."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def window(self) -> int:
        """Return how many keys the next window may have."""
        return max(min(LEAST_MESSAGES, self.limit), self.limit - self.used)

    def allows_window(self, own: int) -> bool:
        """Return whether a topic with ``own`` keys in its wheel may load another window."""
        if self.used * 2 <= self.limit:
            return True
        return own * 2 <= min(LEAST_MESSAGES, self.limit)

    def asks_to_shrink(self, own: int) -> bool:
        """Return whether a topic with ``own`` keys in its wheel must remove some of them.

        It must if all wheels together have more than twice the limit, and its own wheel is not
        small. The wheels may have more keys than the limit, because messages that are published to
        fall due within a loaded window enter the wheel at once.
        """
        return self.used > 2 * self.limit and own > 2 * LEAST_MESSAGES
