"""The ack deadlines of delivered messages: when the broker takes them back.

The broker tells with each delivery how long it waits for the acknowledgements. The client counts
this time from the arrival of the delivery, which is later than its start at the broker. So a
message whose deadline has passed here has been taken back by the broker, which may have delivered
it to another consumer.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s


class AckDeadlines(NamedTuple):
    """The ack deadlines of the messages of one delivery, in seconds on the client's clock.

    ``first_s`` is the earliest deadline, infinity if the messages have none. ``each_s`` has the
    deadline of each message; it is None if all have the same.
    """

    first_s: float = inf
    each_s: npt.NDArray[np.float64] | None = None

    @classmethod
    def after(cls, now_s: float, wait_ms: int, waits_ms: Int64s | None) -> AckDeadlines:
        """Return the deadlines of a delivery that arrives now.

        Args:
          wait_ms: the shortest time that the broker waits; 0 means that it waits without limit.
          waits_ms: the time that it waits for each message; None if it is the same for all.
        """
        if not wait_ms:
            return cls()
        return cls(now_s + wait_ms / 1000, None if waits_ms is None else now_s + waits_ms / 1000)

    def left(self, rows: Int64s | slice) -> AckDeadlines:
        """Return the deadlines of some of the messages, at least one."""
        if self.each_s is None:
            return self
        each_s = self.each_s[rows]
        return AckDeadlines(float(each_s.min()), each_s)
