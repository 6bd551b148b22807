"""The delivery order of message tables, as the pump and the timing wheels read it.

It stands in for the delayed index: keys come from the rows in memory, and a fetch is a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from escapement.broker.tables.claim import Claim
from escapement.message import Int64s, UInt32s
from escapement.storage.index import IndexLimits, Key

if TYPE_CHECKING:
    from escapement.broker.tables.served_table import ServedTable


class TablePlan:
    """A read of the keys of one table in a range, up to but without the key ``stop``."""

    in_memory = True
    files = 0
    can_locate = False

    def __init__(self, table: ServedTable, start: Key, until: Key, most: int) -> None:
        due_ms, offsets, traits = table.cached.between(start, until)
        self.stop = until
        if len(offsets) > most:
            self.stop = Key(int(due_ms[most]), int(offsets[most]))
        self._found = due_ms[:most], offsets[:most], traits[:most]

    def read_traits(self) -> tuple[Int64s, Int64s, UInt32s | None]:
        """Return the due times, offsets and traits of the rows, sorted."""
        return self._found


class TableIndex:
    """The delivery order of the tables of one database.

    Args:
      find: returns the table with a topic id.
      claim: returns the claim of some rows of a table.
    """

    limits = IndexLimits()

    def __init__(
        self,
        find: Callable[[int], ServedTable],
        claim: Callable[[ServedTable, Int64s], Claim],
    ) -> None:
        self._find = find
        self._claim = claim

    def plan(self, topic_id: int, start: Key, until: Key, max_messages: int) -> TablePlan:
        return TablePlan(self._find(topic_id), start, until, max_messages)

    def fetch(self, topic_id: int, due_ms: Int64s, offsets: Int64s, staged: object = None) -> Claim:
        return self._claim(self._find(topic_id), offsets)

    def next_due(self, topic_id: int, after: Key) -> int | None:
        return self._find(topic_id).cached.next_due(after)

    def has_priorities(self, topic_id: int) -> bool:
        return True
