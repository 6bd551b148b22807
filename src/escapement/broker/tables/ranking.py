"""Which of the rows that a poll has found are kept if memory has room for some of them only.

These are the rows that are sent first: by their time, moved by one ageing step for each step of
their priority (``Rows.ranks``). So an old row of a low priority is kept before new ones of higher
priorities.

A row without a time does not get older by itself. If such rows are left out, those of their
priority count as due since then, until some of them are kept.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.tables.claim import NANOSECONDS
from escapement.message import DEFAULT_PRIORITY, MAX_PRIORITY, Int64s, UInt32s
from escapement.tables.poll import FoundRow
from escapement.traits import PRIORITY_SHIFT


class Ranking:
    """The ranking of the rows of one table."""

    def __init__(self) -> None:
        # Since when rows without a time wait for room, by priority, in milliseconds.
        self._since_ms: dict[int, int] = {}

    def due_ms(self, rows: Sequence[FoundRow], now_ms: int) -> Int64s:
        """Return when rows are due; int64[n]."""
        since = self._since_ms
        due = [
            since.get(priority, now_ms)
            if time_ns is None or time_ns <= 0
            else -(-time_ns // NANOSECONDS)
            for _, priority, _, time_ns, _ in rows
        ]
        return np.array(due, np.int64)

    def first(
        self, rows: Sequence[FoundRow], most: int, ageing_ms: int, now_ms: int
    ) -> Sequence[FoundRow]:
        """Return the rows that are sent before the others, at most ``most``."""
        count = len(rows)
        if count <= most:
            return rows
        due_ms, none = self.due_ms(rows, now_ms), np.zeros(count, np.int64)
        ranked = Rows(due_ms, np.arange(count), none, priority_traits(rows)).in_order(ageing_ms)
        return [rows[at] for at in ranked.offsets[: max(most, 0)].tolist()]

    def kept(self, some: Sequence[FoundRow], of: Sequence[FoundRow], now_ms: int) -> None:
        """Note that some of these due rows were kept, and the others left out."""
        if len(some) == len(of) and not self._since_ms:
            return
        found = Counter(row.priority for row in of if _is_untimed(row))
        kept = Counter(row.priority for row in some if _is_untimed(row))
        for priority, count in found.items():
            if kept[priority] == count:
                self._since_ms.pop(priority, None)
            elif kept[priority] or priority not in self._since_ms:
                self._since_ms[priority] = now_ms

    def forget_others(self, priorities: Collection[int | None]) -> None:
        """Forget priorities that are not in use any more."""
        self._since_ms = {one: ms for one, ms in self._since_ms.items() if one in priorities}


def priority_traits(rows: Sequence[FoundRow]) -> UInt32s:
    """Return traits with the priorities of rows, and without keys."""
    priorities = np.array([row.priority for row in rows], np.int64)
    steps = (np.clip(priorities, 0, MAX_PRIORITY) ^ DEFAULT_PRIORITY).astype(np.uint32)
    return steps << np.uint32(PRIORITY_SHIFT)


def _is_untimed(row: FoundRow) -> bool:
    """Return whether a row has no time, or the default of 0, so it is due now."""
    return row.time_ns is None or row.time_ns <= 0
