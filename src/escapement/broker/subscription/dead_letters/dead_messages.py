"""Dead messages: they failed their last attempt, expired or were dropped.

They wait here, held by their subscription, until the dead-letter writer writes their dead letters.
Their rows stay here until the commit with the dead letters is durable, because a checkpoint must
keep their attempts until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from escapement.broker.subscription.dead_letters.dead_letter import Dead
from escapement.broker.subscription.priorities.ready import Rows
from escapement.storage.offsets import OffsetSet


class DeadMessages:
    """A queue of dead messages.

    Its length excludes messages whose dead letters are being committed.
    """

    __slots__ = ("_parts", "_pending_dead_letters")

    def __init__(self) -> None:
        self._parts: deque[Dead] = deque()
        self._pending_dead_letters: list[Rows] = []  # rows whose dead letters are being committed

    def __len__(self) -> int:
        return sum(part.rows.height for part in self._parts)

    @property
    def rows(self) -> Rows:
        """All dead messages whose dead letters are not durable, in no order; O(n)."""
        return Rows.concat([part.rows for part in self._parts] + self._pending_dead_letters)

    def add(self, dead: Dead) -> None:
        """Add dead messages."""
        self._parts.append(dead)

    def next(self, most: int, acked: OffsetSet) -> Dead:
        """Return up to ``most`` messages to dead-letter next, sorted by offset.

        They stay in the queue until ``take_next`` removes them. Messages in ``acked`` are removed
        at once.
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
        """Remove and return the messages that ``next`` returned.

        The caller must then call ``dead_lettering`` with the rows to be committed.
        """
        return self._parts.popleft()

    def dead_lettering(self, rows: Rows) -> Callable[[], None]:
        """Keep rows whose dead letters are being committed; the returned function forgets them.

        Call that function when the dead letters are durable.
        """
        self._pending_dead_letters.append(rows)

        def durable() -> None:
            self._pending_dead_letters = [
                one for one in self._pending_dead_letters if one is not rows
            ]

        return durable

    def clear(self) -> None:
        """Remove all messages without dead-lettering them."""
        self._parts.clear()
