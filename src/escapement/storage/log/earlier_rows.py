"""The log rows that earlier owners of a bundle wrote: what a broker without an index must read.

Each log row has the epoch of the lease under which it was written. A broker adds the rows that it
writes itself to its index when they are committed. So an index that was lost lacks only rows with
lower epochs. They are read in one of two orders: by their lowest due time, for those that are
needed first, or table by table in the order of the primary key, which is the fastest way to read
all. These queries read heads, and no messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

from escapement.storage.engine.base import Connection
from escapement.storage.engine.paging import pages
from escapement.storage.log.generation import Generation
from escapement.storage.log.log_table import KEYS_AT_ONCE, NO_END, RowHead, RowKey

_KEY: Final = ("topic_id", "base_offset")
_OTHERS: Final = "message_count, size_bytes, max_due_ms, accepted_at_ms"


class Place(NamedTuple):
    """A place in the tables of the log: the key of a row in the ``table``-th of them."""

    table: int
    topic_id: int
    base_offset: int


BEGINNING: Final = Place(0, -1, -NO_END)


class EarlierRows:
    """The rows of some generations that were written before the lease with a given epoch."""

    def __init__(self, generations: tuple[Generation, ...], epoch: int) -> None:
        self._tables = [(each, name) for each in generations for name in each.tables]
        self._epoch = epoch

    def due_between(self, connection: Connection, low_ms: int, until_ms: int) -> Iterator[RowHead]:
        """Yield the heads of the rows whose lowest due time is in ``[low_ms, until_ms)``.

        They ascend by their lowest due time.
        """
        return heapq.merge(
            *(
                self._due_in(connection, generation, table, low_ms, until_ms)
                for generation, table in self._tables
            ),
            key=lambda head: head.min_due_ms,
        )

    def _due_in(
        self, connection: Connection, generation: Generation, table: str, low_ms: int, until_ms: int
    ) -> Iterator[RowHead]:
        for min_due_ms, topic_id, base_offset, *others in pages(
            connection,
            table,
            ("min_due_ms", *_KEY),
            f"min_due_ms, topic_id, base_offset, {_OTHERS}",
            KEYS_AT_ONCE,
            (low_ms - 1,),
            f"min_due_ms < ? AND owner_epoch < ?{generation.guard}",
            (until_ms, self._epoch),
        ):
            yield _head(generation, topic_id, base_offset, min_due_ms, *others)

    def after(self, connection: Connection, place: Place) -> Iterator[tuple[Place, RowHead]]:
        """Yield all rows behind a place, table by table: the place and the head of each."""
        for number, (generation, table) in enumerate(self._tables):
            if number < place.table:
                continue
            _, *after = place if number == place.table else BEGINNING
            for topic_id, base_offset, min_due_ms, *others in pages(
                connection,
                table,
                _KEY,
                f"topic_id, base_offset, min_due_ms, {_OTHERS}",
                KEYS_AT_ONCE,
                after,
                f"owner_epoch < ?{generation.guard}",
                (self._epoch,),
            ):
                head = _head(generation, topic_id, base_offset, min_due_ms, *others)
                yield Place(number, topic_id, base_offset), head


def _head(
    generation: Generation,
    topic_id: int,
    base_offset: int,
    min_due_ms: int,
    message_count: int,
    size_bytes: int,
    max_due_ms: int,
    accepted_at_ms: int,
) -> RowHead:
    key = RowKey(generation.id, topic_id, base_offset, message_count, size_bytes)
    return RowHead(key, min_due_ms, max_due_ms, accepted_at_ms)
