"""How many keys the wheels of all topics hold together.

Each topic says how many are in its wheel; when all of them have reached the limit, windows
become small, and what does not fit stays in the index until it is due. Pure.
"""

from __future__ import annotations

from typing import Final

# What any topic may load, however full the others are: less is not worth a read.
LEAST_MESSAGES: Final = 1024


class WindowBudget:
    """See the module's docstring; all counts are messages."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def window(self) -> int:
        """How large the next window may be."""
        return max(min(LEAST_MESSAGES, self.limit), self.limit - self.used)

    def allows_window(self, own: int) -> bool:
        """Whether a topic that has ``own`` keys in its wheel may load more."""
        if self.used * 2 <= self.limit:
            return True
        return own * 2 <= min(LEAST_MESSAGES, self.limit)

    def asks_to_shrink(self, own: int) -> bool:
        """Whether a topic with ``own`` keys must give some up: too many came live."""
        return self.used > 2 * self.limit and own > 2 * LEAST_MESSAGES
