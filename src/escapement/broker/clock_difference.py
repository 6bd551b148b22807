"""A warning to operators if the wall clock of this process differs from that of the database.

A broker delivers by the clock of its machine. So if the clocks of two machines differ, messages
come too early or too late when a bundle moves from one to the other.
"""

from __future__ import annotations

from escapement.doctor.database import MOST_SKEW_S
from escapement.event_log import EventLog

_log = EventLog(__name__)


class ClockDifference:
    """The difference between two clocks, as it was logged last."""

    def __init__(self) -> None:
        self._differs = False

    def look(self, sent_ms: int, database_ms: int, received_ms: int) -> None:
        """Log the difference if it has become too large, or small again.

        Args:
          sent_ms, received_ms: the wall clock before and after the question.
          database_ms: the clock of the database in between.
        """
        ahead_ms = max(sent_ms - database_ms, 0) or min(received_ms - database_ms, 0)
        differs = abs(ahead_ms) > MOST_SKEW_S * 1000
        if differs and not self._differs:
            _log.warning(
                "node.clock_differs",
                "the clock of this machine is %.1f s %s that of the database. A broker delivers by"
                " the clock of its machine, so messages may come too %s. Synchronise the clocks of"
                " all machines, for example with chrony",
                abs(ahead_ms) / 1000,
                "ahead of" if ahead_ms > 0 else "behind",
                "early" if ahead_ms > 0 else "late",
                ahead_ms=ahead_ms,
            )
        elif self._differs and not differs:
            _log.info(
                "node.clock_agrees", "the clock of this machine agrees with that of the database"
            )
        self._differs = differs
