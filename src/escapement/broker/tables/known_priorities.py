"""The priorities of a message table that polls look for.

A poll looks for at most 256 priorities. If more are known, polls take turns over them. If more are
in use than can be known at a time, the polls after the last known one find those that follow. So
the messages of each priority are found after some polls.

Pure.
"""

from __future__ import annotations

from typing import Final

from escapement.message import DEFAULT_PRIORITY
from escapement.tables.poll import MOST_PRIORITIES
from escapement.tables.priorities import InUse

# Priorities that are not in use any more are removed after this time.
_FRESH_MS: Final = 30_000


class KnownPriorities:
    """The known priorities of one table; None stands for NULL."""

    def __init__(self) -> None:
        self._values: tuple[int | None, ...] = (DEFAULT_PRIORITY,)
        self._at = 0  # where the next turn begins
        self._found_ms: int | None = None  # when the priorities were found
        self._has_all = True  # whether no others were in use then
        # If not, the priority after which those of the next turns begin; None for the lowest.
        self.after: int | None = None
        self._is_over = False  # whether all known ones had their turn, and others are to be found

    @property
    def turn(self) -> tuple[int | None, ...]:
        """The priorities that the next poll is to look for."""
        return self._values[self._at : self._at + MOST_PRIORITIES]

    @property
    def turns(self) -> int:
        """The number of polls that look for all known priorities."""
        return max(-(-len(self._values) // MOST_PRIORITIES), 1)

    @property
    def all(self) -> tuple[int | None, ...] | None:
        """All priorities that were in use; None if more were in use than are known."""
        return self._values if self._has_all else None

    def wants_new(self, now_ms: int) -> bool:
        """Return whether the next poll is to ask for the priorities in use, above ``after``."""
        return self.are_stale(now_ms) if self._has_all else self._is_over

    def are_stale(self, now_ms: int) -> bool:
        """Return whether some priorities may not be in use any more."""
        if not self.are_several:
            return False
        return self._found_ms is None or abs(now_ms - self._found_ms) >= _FRESH_MS

    @property
    def are_several(self) -> bool:
        """Whether more than one priority was in use, and not more than can be known."""
        return self._has_all and len(self._values) > 1

    def expire(self) -> None:
        """Let the next poll ask for the priorities in use, if several are known."""
        self._found_ms = None

    def polled(self, in_use: InUse | None, now_ms: int) -> None:
        """Note the end of a poll.

        Args:
          in_use: the priorities in use, if the poll has asked. It has looked for the first ones.
        """
        if in_use is not None:
            self._values, self._at, self._found_ms = in_use.values, 0, now_ms
            self._has_all = in_use.ends and self.after is None
            self.after = None if in_use.ends else in_use.values[-1]
        self._at += MOST_PRIORITIES
        self._is_over = self._at >= len(self._values)
        if self._is_over:
            self._at = 0
