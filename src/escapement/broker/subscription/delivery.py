"""A delivery: one frame handed to one consumer, with a deadline for each row.

Consumers mostly acknowledge what they were sent in the order in which they were sent it, a frame
at a time or message by message. So a delivery remembers up to where it has been followed in that
order: what comes next is recognised by comparing columns, without a search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from escapement.broker.subscription.keytable import Placed
from escapement.broker.subscription.ready import Rows
from escapement.message import Int64s
from escapement.storage.lag import Handed


class Delivery:
    """One frame in one consumer's hands.

    Args:
      rows: what was handed over; ``attempts`` counts this delivery.
      deadline_ms: when each row is taken back if nothing is heard; int64[n].
      wanted_ms: since when each could have been handed over; int64[n].
      placed: where their keys are, if there is an order.
    """

    __slots__ = (
        "_by_offset",
        "_order",
        "alive",
        "consumer_id",
        "deadline_ms",
        "followed",
        "placed",
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
        since_ms: int,
        wanted_ms: Int64s,
        placed: Placed | None = None,
    ) -> None:
        self.consumer_id = consumer_id
        self.since_ms = since_ms
        self.rows = rows
        self.deadline_ms = deadline_ms
        self.wanted_ms = wanted_ms
        self.placed = placed
        self.alive = np.ones(rows.height, bool)
        self.sent = False  # it was decided on; whether it has left
        self.recorded = False  # that it was sent, for after a restart
        self.followed = 0  # rows that were acknowledged in their order, from the first on
        self._order: Int64s | None = None
        self._by_offset: Int64s | None = None

    def find(self, offsets: Int64s) -> Int64s:
        """Positions of the live rows among these offsets."""
        if self._order is None or self._by_offset is None:
            self._order = np.argsort(self.rows.offsets)
            self._by_offset = self.rows.offsets[self._order]
        at = np.minimum(np.searchsorted(self._by_offset, offsets), len(self._by_offset) - 1)
        found = np.zeros(len(self._order), bool)
        found[self._order[at[self._by_offset[at] == offsets]]] = True
        return np.flatnonzero(found & self.alive)

    def kill(self, positions: slice | Int64s) -> Rows:
        """These are in that hand no more; returns their rows."""
        self.alive[positions] = False
        return self.rows.pick(positions)

    @property
    def next_offset(self) -> int | None:
        """What is acknowledged next if that goes on in the order of the rows; None: nothing."""
        while self.followed < len(self.alive):
            if self.alive[self.followed]:
                return int(self.rows.offsets[self.followed])
            rest = self.alive[self.followed :]
            self.followed += int(rest.argmax()) if rest.any() else len(rest)
        return None

    def follow(self, offsets: Int64s) -> Share:
        """Of these, which begin with ``next_offset``, as many as are the next live rows."""
        at = slice(self.followed, self.followed + len(offsets))
        alive = self.alive[at]
        if alive.all():
            count = _same(self.rows.offsets[at], offsets)
            at = slice(self.followed, self.followed + count)
            self.followed += count
            return Share(self, at)
        rows = self.followed + np.flatnonzero(self.alive[self.followed :])[: len(offsets)]
        rows = rows[: _same(self.rows.offsets[rows], offsets)]
        self.followed = int(rows[-1]) + 1
        return Share(self, rows)

    def of(self, positions: Int64s) -> Share:
        """The live ones among these rows."""
        return Share(self, positions[self.alive[positions]])


class Share(NamedTuple):
    """Some rows of a delivery."""

    delivery: Delivery
    at: slice | Int64s

    @property
    def height(self) -> int:
        """How many."""
        at = self.at
        return at.stop - at.start if isinstance(at, slice) else len(at)

    @property
    def rows(self) -> Rows:
        """What was handed over."""
        return self.delivery.rows.pick(self.at)

    @property
    def offsets(self) -> Int64s:
        """Of which messages."""
        return self.delivery.rows.offsets[self.at]

    @property
    def placed(self) -> Placed | None:
        """Where their keys were, if there was an order."""
        placed = self.delivery.placed
        return None if placed is None else placed.pick(self.at)

    @property
    def handed(self) -> Handed:
        """When, and when it was wanted."""
        delivery, at = self
        return Handed(delivery.since_ms, delivery.wanted_ms[at], delivery.rows.attempts[at])


def _same(one: Int64s, other: Int64s) -> int:
    """How many values two columns begin with alike."""
    count = min(len(one), len(other))
    same = one[:count] == other[:count]
    return count if same.all() else int(same.argmin())
