"""A delivery: one frame sent to one consumer, with a deadline for each row.

A row is *alive* until it is killed, because its message was acknowledged or taken back. Most
consumers acknowledge messages in the order of the frame, all at once or one by one. So a delivery
remembers how far the acknowledgements have followed that order. It recognises the next ones by
comparing columns, without a search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Bools, Int64s
from escapement.storage.encoding.lag import Handed


class Delivery:
    """One frame of messages in flight.

    Args:
      rows: the delivered rows; ``attempts`` counts this delivery.
      deadline_ms: when each message is taken back unless it is acknowledged; int64[n].
      alive: True for each row; bool[n].
      since_ms: the time of the delivery.
      wanted_ms: the earliest time at which each message could have been delivered; int64[n].
    """

    __slots__ = (
        "alive",
        "consumer_id",
        "deadline_ms",
        "followed",
        "recorded",
        "rows",
        "sent",
        "since_ms",
        "wanted_ms",
    )

    def __init__(
        self,
        consumer_id: int,
        rows: Rows,
        deadline_ms: Int64s,
        alive: Bools,
        since_ms: int,
        wanted_ms: Int64s,
    ) -> None:
        self.consumer_id = consumer_id
        self.since_ms = since_ms
        self.rows = rows
        self.deadline_ms = deadline_ms
        self.wanted_ms = wanted_ms
        self.alive = alive
        self.sent = False  # whether the frame has left the broker
        self.recorded = False  # whether the delivery was recorded to survive a restart
        self.followed = 0  # no row before this position is alive

    @property
    def next_offset(self) -> int | None:
        """The offset of the first live row, which is expected to be acknowledged next.

        None if no row is alive.
        """
        while self.followed < len(self.alive):
            if self.alive[self.followed]:
                return int(self.rows.offsets[self.followed])
            rest = self.alive[self.followed :]
            self.followed += int(rest.argmax()) if rest.any() else len(rest)
        return None

    def follow(self, offsets: Int64s) -> DeliveryPart:
        """Advance past the live rows that were acknowledged in the order of the frame; return them.

        Args:
          offsets: the acknowledged messages. The first is ``next_offset``. The rows returned are
            the longest beginning of ``offsets`` that matches the live rows in order.
        """
        at = slice(self.followed, self.followed + len(offsets))
        if len(offsets) == 1:
            self.followed += 1
            return DeliveryPart(self, at)
        alive = self.alive[at]
        if alive.all():
            count = _same(self.rows.offsets[at], offsets)
            at = slice(self.followed, self.followed + count)
            self.followed += count
            return DeliveryPart(self, at)
        rows = self.followed + np.flatnonzero(self.alive[self.followed :])[: len(offsets)]
        rows = rows[: _same(self.rows.offsets[rows], offsets)]
        self.followed = int(rows[-1]) + 1
        return DeliveryPart(self, rows)

    def of(self, positions: Int64s) -> DeliveryPart:
        """Return the live rows among these positions."""
        return DeliveryPart(self, positions[self.alive[positions]])


class DeliveryPart(NamedTuple):
    """Some rows of a delivery."""

    delivery: Delivery
    at: slice | Int64s

    @property
    def height(self) -> int:
        """The number of rows."""
        at = self.at
        return at.stop - at.start if isinstance(at, slice) else len(at)

    @property
    def rows(self) -> Rows:
        """The delivered rows."""
        return self.delivery.rows.pick(self.at)

    @property
    def handed(self) -> Handed:
        """For the lag: the time of the delivery, and each row's earliest time and attempts."""
        delivery, at = self
        return Handed(delivery.since_ms, delivery.wanted_ms[at], delivery.rows.attempts[at])


def _same(one: Int64s, other: Int64s) -> int:
    """Return how many values at the beginning of two columns are equal."""
    count = min(len(one), len(other))
    same = one[:count] == other[:count]
    return count if same.all() else int(same.argmin())
