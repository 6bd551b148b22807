"""The delivery order of message tables, as the pump and the timing wheels read it.

It stands in for the delayed index: keys come from the rows in memory, and a fetch is a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from escapement.broker.tables.cached_rows import CachedRows
from escapement.broker.tables.claim import Claim
from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.storage.index import IndexLimits, Key
from escapement.storage.index.columns import Pick
from escapement.storage.index.keys import Keys


class TablePlan:
    """A read of the keys of one table in a range, up to but without the key ``stop``."""

    in_memory = True
    files = 0
    can_locate = False

    def __init__(self, rows: CachedRows, start: Key, until: Key, most: int) -> None:
        due_ms, offsets, traits = rows.between(start, until)
        self.stop = until
        if len(offsets) > most:
            self.stop = Key(int(due_ms[most]), int(offsets[most]))
        self._found = due_ms[:most], offsets[:most], traits[:most]

    def locate(self, keys: Keys, size_bytes: int) -> Iterator[tuple[Int64s, list[Pick]]]:
        raise AssertionError("rows of tables are not read ahead")

    def read_traits(self) -> tuple[Int64s, Int64s, UInt32s | None]:
        """Return the due times, offsets and traits of the rows, sorted."""
        return self._found


class TableIndex:
    """The delivery order of the tables of one database.

    Args:
      rows: returns the rows in memory of the table with a topic id.
      claim: returns a claim of rows, given the topic id and the offsets.
    """

    limits = IndexLimits()

    def __init__(
        self,
        rows: Callable[[int], CachedRows],
        claim: Callable[[int, Int64s], Claim],
    ) -> None:
        self._rows = rows
        self._claim = claim

    def plan(self, topic_id: int, start: Key, until: Key, max_messages: int) -> TablePlan:
        return TablePlan(self._rows(topic_id), start, until, max_messages)

    def fetch(self, topic_id: int, due_ms: Int64s, offsets: Int64s, staged: object = None) -> Claim:
        return self._claim(topic_id, offsets)

    def add(
        self, topic_id: int, offsets: Int64s | int, due_ms: Int64s, batch: MessageBatch
    ) -> UInt32s | None:
        raise AssertionError("messages are added to a table by INSERT")

    def next_due(self, topic_id: int, after: Key) -> int | None:
        return self._rows(topic_id).next_due(after)

    def has_priorities(self, topic_id: int) -> bool:
        return True
