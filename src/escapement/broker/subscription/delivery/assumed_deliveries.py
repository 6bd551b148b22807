"""Pending messages that count as delivered and stay in the index until they are read again.

An earlier broker delivered them, or may have, or this broker delivered them while the past of the
subscription was being filled in. They are not made ready at once: a message that came before
earlier messages of its key would break the order. If a message is cancelled or moved for other
subscriptions, it stays here with its due time. The row of a message has the attempts that were
recorded. The index knows none, so the next delivery takes them from here.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import numpy as np

from escapement.broker.subscription.number_map import NOWHERE
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Bools, Int64s
from escapement.sorting import find_sorted


class AssumedDeliveries:
    """The assumed deliveries of one subscription.

    A message stays here for a while after its next delivery; ``rows`` has it until ``keep`` leaves
    it out.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = Rows.none()  # sorted by offset

    def __len__(self) -> int:
        return self.rows.height

    def add(self, rows: Rows) -> None:
        """Add messages. Their rows replace older rows of theirs. O(n) in all messages."""
        if rows.height:
            older = self.rows.pick(~np.isin(self.rows.offsets, rows.offsets))
            self.rows = Rows.concat([older, rows]).by_offset()

    def keep(self, which: Bools) -> None:
        """Keep only these rows."""
        self.rows = self.rows.pick(which)

    def contains(self, offsets: Int64s) -> Bools:
        """Return which messages are here; bool[n]."""
        return find_sorted(self.rows.offsets, offsets)[1]

    def due_ms(self, offsets: Int64s) -> Int64s:
        """Return the due time of each message, ``NOWHERE`` for messages not here; int64[n]."""
        return due_ms_of(self.rows, offsets)

    def with_attempts(self, rows: Rows) -> Rows:
        """Return rows that were read from the index, with the recorded attempts of each message."""
        if not len(self):
            return rows
        at, there = find_sorted(self.rows.offsets, rows.offsets)
        there &= rows.attempts == 0
        if not there.any():
            return rows
        attempts = rows.attempts.copy()
        attempts[there] = self.rows.attempts[at[there]]
        return rows._replace(attempts=attempts)


def due_ms_of(rows: Rows, offsets: Int64s) -> Int64s:
    """Return the due time of each message in ``rows``, ``NOWHERE`` for others; int64[n].

    Args:
      rows: sorted by offset.
    """
    if not rows.height:
        return np.full(len(offsets), NOWHERE)
    at, there = find_sorted(rows.offsets, offsets)
    return np.where(there, rows.due_ms[at], NOWHERE)
