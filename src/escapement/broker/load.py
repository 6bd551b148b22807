"""The load of this process: the messages per second that it publishes and delivers. Pure."""

from __future__ import annotations

from typing import Final

# The shortest time over which messages are counted. A renewal may follow another one at once.
_LEAST_MS: Final = 1000


class Load:
    """The messages per second between two measurements.

    Args:
      at_ms: the present time, by a clock that never goes back.

    Attributes:
      per_s: the load at the last measurement.
    """

    def __init__(self, at_ms: int) -> None:
        self.per_s = 0
        self._at_ms = at_ms
        self._count = 0

    def measure(self, at_ms: int, count: int) -> int:
        """Return the load since the last measurement, or ``per_s`` if that was a moment ago.

        Args:
          count: the messages that were published and delivered since the process started.
        """
        span_ms = at_ms - self._at_ms
        if span_ms >= _LEAST_MS:
            self.per_s = round((count - self._count) * 1000 / span_ms)
            self._at_ms, self._count = at_ms, count
        return self.per_s
