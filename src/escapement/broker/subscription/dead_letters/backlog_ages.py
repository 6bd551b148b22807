"""Lower bounds on the due times of pending messages in a log, to find expired ones.

An exclusive or failover subscription uses this, because the log is not in the order of due times.
The part of the log that was examined ends at the offset ``known_to``. It is divided into *spans*,
each with a lower bound on the due times of its pending messages. Ranges without pending messages
have no span. The rest of the log, the *tail*, has one lower bound, because no message is due before
it was accepted.

A span covers up to ``SPAN_MESSAGES`` messages. So memory is a few bytes per span, and a search for
one expired message reads at most one span. Pure: it holds no messages and reads no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

import numpy as np

from escapement.message import Int64s

SPAN_MESSAGES: Final = 4_096


class Ages:
    """Spans and tail of one log, with a lower bound on due times for each.

    Ranges of offsets are ``[low, high)``.
    """

    __slots__ = ("_highs", "_lows", "_since_ms", "_tail_ms", "known_to")

    def __init__(self) -> None:
        self.known_to = 0
        self._tail_ms = 0
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._since_ms: list[int] = []

    def oldest(self, end: int) -> tuple[int, int, int] | None:
        """Return the range of the log below ``end`` that may have the oldest pending message.

        O(spans).

        Returns:
          ``(low, high, since_ms)``, where no pending message of the range is due before
            ``since_ms``. None if no message is pending.
        """
        found = None
        if self.known_to < end:
            found = (self.known_to, end, self._tail_ms)
        if self._since_ms:
            since_ms = min(self._since_ms)
            if found is None or since_ms < found[2]:
                at = self._since_ms.index(since_ms)
                found = (self._lows[at], self._highs[at], since_ms)
        return found

    def looked(self, low: int, high: int, since_ms: int | None) -> None:
        """Record that the pending messages of an examined range are due at ``since_ms`` or later.

        The range lies inside one span, or begins where the tail begins.

        Args:
          since_ms: the lowest due time; None if no message of the range is pending.
        """
        if low >= self.known_to:
            self.known_to = max(self.known_to, high)
        else:
            self._cut(low, high)
        if since_ms is None:
            return
        at = bisect_left(self._lows, low)
        if at and self._highs[at - 1] == low and high - self._lows[at - 1] <= SPAN_MESSAGES:
            self._highs[at - 1] = high
            self._since_ms[at - 1] = min(self._since_ms[at - 1], since_ms)
            return
        self._lows.insert(at, low)
        self._highs.insert(at, high)
        self._since_ms.insert(at, since_ms)

    def tail_since(self, since_ms: int) -> None:
        """Record that no message of the tail is due before ``since_ms``."""
        self._tail_ms = since_ms

    def again(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Record the due times of messages that are pending again or were moved."""
        for offset in np.unique(offsets[offsets < self.known_to] // SPAN_MESSAGES).tolist():
            mine = (offsets // SPAN_MESSAGES == offset) & (offsets < self.known_to)
            since_ms = int(due_ms[mine].min())
            low, high = int(offsets[mine].min()), int(offsets[mine].max()) + 1
            # All spans that the range from ``low`` to ``high`` touches become one span with it.
            first = bisect_right(self._highs, low)
            last = bisect_left(self._lows, high)
            if first < last:
                since_ms = min(since_ms, *self._since_ms[first:last])
                low, high = min(low, self._lows[first]), max(high, self._highs[last - 1])
            self._lows[first:last] = [low]
            self._highs[first:last] = [high]
            self._since_ms[first:last] = [since_ms]
        if (offsets >= self.known_to).any():
            self._tail_ms = min(self._tail_ms, int(due_ms[offsets >= self.known_to].min()))

    def _cut(self, low: int, high: int) -> None:
        """Remove a range from the spans."""
        first, last = bisect_right(self._highs, low), bisect_left(self._lows, high)
        left: list[tuple[int, int, int]] = []
        for at in range(first, last):
            since_ms = self._since_ms[at]
            left += [(self._lows[at], low, since_ms)] if self._lows[at] < low else []
            left += [(high, self._highs[at], since_ms)] if self._highs[at] > high else []
        self._lows[first:last] = [one[0] for one in left]
        self._highs[first:last] = [one[1] for one in left]
        self._since_ms[first:last] = [one[2] for one in left]

    def _check(self) -> None:
        """Assert every invariant."""
        assert all(low < high for low, high in zip(self._lows, self._highs, strict=True))
        borders = zip(self._highs, self._lows[1:], strict=False)
        assert all(high <= low for high, low in borders), "spans overlap"
        assert not self._highs or self._highs[-1] <= self.known_to
