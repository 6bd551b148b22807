"""How long the messages of one frame may stay unacknowledged, as their consumer is told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from escapement.broker.subscription.start_position import NEVER_MS
from escapement.message import Int64s


class AckWaits(NamedTuple):
    """The times until the ack deadlines of messages.

    ``first_ms`` is the time until the first deadline. It is 0 if the messages have no deadline.
    ``each_ms`` has the time of each message, and is None if all are equal.
    """

    first_ms: int = 0
    each_ms: Int64s | None = None

    @classmethod
    def until(cls, deadline_ms: int, now_ms: int) -> AckWaits:
        """Return the waits of messages that have the same deadline, or NEVER_MS."""
        return cls() if deadline_ms >= NEVER_MS else cls(max(deadline_ms - now_ms, 1))

    @classmethod
    def until_each(cls, deadlines_ms: Int64s, now_ms: int) -> AckWaits:
        """Return the waits of messages with these deadlines, or with NEVER_MS for all of them."""
        first_ms = int(deadlines_ms.min())
        if first_ms >= NEVER_MS:
            return cls()
        each_ms = np.maximum(deadlines_ms - now_ms, 1)
        return cls(max(first_ms - now_ms, 1), each_ms)
