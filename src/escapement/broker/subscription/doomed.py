"""What a subscription is over with, but for its burial: tried too often, expired, or dropped.

It waits here, held, until the undertaker has made dead letters of it. While the commit of these
is under way, the rows stay here too: a checkpoint keeps their attempts until the commit is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from escapement.broker.subscription.deadletter import Dead
from escapement.broker.subscription.ready import Rows
from escapement.storage.offsets import OffsetSet


class Doomed:
    """A queue of messages that are dead; its length is how many there are."""

    __slots__ = ("_burials", "_parts")

    def __init__(self) -> None:
        self._parts: deque[Dead] = deque()
        self._burials: list[Rows] = []  # whose commit is under way

    def __len__(self) -> int:
        return sum(part.rows.height for part in self._parts)

    @property
    def rows(self) -> Rows:
        """All of them, and those whose burial is not durable, in no order; O(n)."""
        return Rows.concat([part.rows for part in self._parts] + self._burials)

    def add(self, dead: Dead) -> None:
        """These have died."""
        self._parts.append(dead)

    def next(self, most: int, acked: OffsetSet) -> Dead:
        """Up to ``most`` of those to be buried next, by offset; ``take_next`` takes them out.

        What was acknowledged meanwhile is not among them, and waits no more.
        """
        parts: list[Dead] = []
        while self._parts and sum(part.rows.height for part in parts) < most:
            parts.append(self._parts.popleft())
        dead = Dead.concat(parts)
        order = np.argsort(dead.rows.offsets)
        order = order[~acked.contains(dead.rows.offsets[order])]
        if len(order) > most:
            self._parts.appendleft(dead.pick(order[most:]))
        found = dead.pick(order[:most])
        if len(order):
            self._parts.appendleft(found)
        return found

    def take_next(self) -> Dead:
        """Remove the messages that ``next`` returned; ``burying`` follows."""
        return self._parts.popleft()

    def burying(self, rows: Rows) -> Callable[[], None]:
        """Keep these rows until the caller calls the returned function: their burial is durable."""
        self._burials.append(rows)

        def durable() -> None:
            self._burials = [one for one in self._burials if one is not rows]

        return durable

    def clear(self) -> None:
        """Nobody is to bury any of them."""
        self._parts.clear()
