"""When the broker polls a message table, and how far ahead a poll looks.

After a poll that found new messages, the next one follows soon. While polls find none, the
interval doubles, up to the ``poller_interval`` of the table or ``IDLE_S``, if that is longer. Polls
take at most a part of the time, however short the interval is.

A poll looks ahead until after the next one. So a message that was inserted before a poll, and is
due before the next, is in memory when it is due. Only a message that is inserted to be due sooner
than the next poll waits for it.

A poll takes other tables too, from the time when half of their interval has passed. So tables that
are idle come to share their polls, whatever their intervals are and whenever they began.

Pure. ``now_s`` is a time of the event loop's clock.
"""

from __future__ import annotations

from typing import Final

# The shortest interval between two polls of a table.
SHORTEST_S: Final = 0.005
# The shortest interval while no messages come, for each statement of a poll. So idle tables cost a
# database two statements a second.
IDLE_S: Final = 0.5
# Tables that are to be polled within this time are polled together, however short their intervals
# are.
_TOGETHER_S: Final = 0.1
# The shortest and the longest time until a table that cannot be polled is tried again.
_FIRST_RETRY_S: Final = 0.25
_LAST_RETRY_S: Final = 5.0
# The interval is at least this many times as long as the last poll took.
_REST: Final = 3.0
# A poll looks this much further ahead than the next poll, for delays of all kinds.
_MARGIN_S: Final = 0.1


class Pace:
    """The pace of the polls of one table.

    Args:
      longest_s: the ``poller_interval`` of the table.
    """

    def __init__(self, longest_s: float) -> None:
        self.longest_s = longest_s
        self.next_s = 0.0  # when to poll next
        self._rests_until_s = 0.0  # before this time, no hint causes a poll
        self._interval_s = SHORTEST_S
        self._took_s = 0.0
        self._statements = 1  # of the last poll
        self._retry_s = 0.0  # the last pause after a failure; 0 after a success

    @property
    def is_failing(self) -> bool:
        """Whether the table could not be polled the last time. Then it is polled alone."""
        return self._retry_s > 0

    @property
    def joins_s(self) -> float:
        """From when on a poll of other tables takes this one too."""
        return self.next_s - max(self._interval_s / 2, _TOGETHER_S)

    @property
    def ahead_s(self) -> float:
        """How far ahead a poll must look now."""
        return self._following_s(False) + _MARGIN_S + 4 * self._took_s

    def polled(
        self, now_s: float, took_s: float, found: bool, overflows: bool, statements: int = 1
    ) -> None:
        """Note the end of a poll.

        Args:
          took_s: how long the poll took.
          found: whether it found new messages.
          overflows: whether it left messages in the table that may be due before the next poll.
          statements: how many statements it needed, for all tables that it polled.
        """
        self._retry_s = 0.0
        self._took_s = took_s
        self._interval_s = self._following_s(found)  # no longer than this poll has looked ahead
        self._statements = statements
        if overflows:
            self._interval_s = min(self._interval_s, IDLE_S)
        rest_s = _REST * took_s
        self.next_s = now_s + max(self._interval_s, rest_s)
        self._rests_until_s = now_s + max(SHORTEST_S, rest_s)

    def failed(self, now_s: float) -> None:
        """Note that the table cannot be polled. A later poll tries again, whatever hints come."""
        self._retry_s = min(max(2 * self._retry_s, _FIRST_RETRY_S), _LAST_RETRY_S)
        self.next_s = now_s + self._retry_s

    def altered(self) -> None:
        """Note that the table was altered, so it may be polled again."""
        self._retry_s = 0.0

    def _following_s(self, found: bool) -> float:
        if found:
            return SHORTEST_S
        doubled = 2 * self._interval_s
        return min(doubled, max(self.longest_s, IDLE_S * self._statements))

    def hasten(self, now_s: float) -> None:
        """Poll now, because there is room for messages, or a consumer for them."""
        if not self.is_failing:
            self.next_s = min(self.next_s, now_s)
        self._interval_s = SHORTEST_S

    def hint(self, now_s: float) -> None:
        """Poll soon, because messages have come. However many hints come, polls keep their rests.

        A hint may come a moment before its rows can be read. So further polls follow soon.
        """
        if not self.is_failing:
            self.next_s = min(self.next_s, max(now_s, self._rests_until_s))
        self._interval_s = SHORTEST_S
