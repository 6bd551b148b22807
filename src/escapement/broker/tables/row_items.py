"""What the row writer writes: rows to acknowledge, and rows that get a new time.

The functions that write run in a thread, in a transaction of the caller. They note the result in
the items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from escapement.broker.tables.served_table import ServedTable
from escapement.message import Int64s
from escapement.storage.engine.base import Connection
from escapement.tables.row_ids import RowId
from escapement.tables.row_statements import Versions, values_of


@dataclass(slots=True, eq=False)
class RowAck:
    """Rows to acknowledge. ``offsets`` is None for rows that are not in memory.

    Like a retry, it is a suspect from the time that it has failed until it is written.
    """

    table: ServedTable
    ids: list[RowId]
    done: Callable[[int], None] | None
    at_ns: int
    offsets: Int64s | None = None
    acked: int = 0  # how many rows were acknowledged
    found: set[RowId] = field(default_factory=set)
    locked: set[RowId] = field(default_factory=set)
    is_suspect: bool = False


@dataclass(slots=True, eq=False)
class RowRetry:
    """Rows that get a new time, and maybe another epoch."""

    table: ServedTable
    ids: list[RowId]
    offsets: Int64s
    epochs: Int64s
    times_ns: Int64s
    known: Versions | None = None  # the versions of the rows when they are written
    written: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    locked: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    is_suspect: bool = False


RowItem = RowAck | RowRetry


def joined(retries: Sequence[RowRetry]) -> RowRetry:
    """Return one retry for all rows of retries of the same table."""
    return RowRetry(
        retries[0].table,
        [id for item in retries for id in item.ids],
        np.concatenate([item.offsets for item in retries]),
        np.concatenate([item.epochs for item in retries]),
        np.concatenate([item.times_ns for item in retries]),
    )


def halves(item: RowItem) -> list[RowItem]:
    """Divide an item into two, which together have its effect."""
    middle = len(item.ids) // 2
    parts = slice(0, middle), slice(middle, None)
    if isinstance(item, RowRetry):
        return [
            RowRetry(item.table, item.ids[at], item.offsets[at], item.epochs[at], item.times_ns[at])
            for at in parts
        ]
    total, waiting = item.acked, len(parts)

    def done(count: int) -> None:
        nonlocal total, waiting
        total, waiting = total + count, waiting - 1
        if not waiting and item.done is not None:
            item.done(total)

    offsets = item.offsets
    return [
        RowAck(item.table, item.ids[at], done, item.at_ns, None if offsets is None else offsets[at])
        for at in parts
    ]


def write_all(items: Sequence[RowItem], tried: list[RowItem], connection: Connection) -> None:
    """Write items in a transaction, and note the result in each. Runs in a thread.

    Args:
      tried: gets the items that were tried, so that the last one is known after an error.
    """
    for item in items:
        tried.append(item)
        with values_of(item.table.table.name):
            _write_one(connection, item)


def write_joined(items: Sequence[RowItem], tried: list[RowItem], connection: Connection) -> None:
    """Like ``write_all``, for items of one table, with the same statements for all acks.

    Their rows get the time of the last acknowledgement.
    """
    tried.extend(items)
    table = items[0].table
    acks = [item for item in items if isinstance(item, RowAck)]
    with values_of(table.table.name):
        if acks:
            ids = list(dict.fromkeys(id for item in acks for id in item.ids))
            whole = RowAck(table, ids, None, max(item.at_ns for item in acks))
            _write_one(connection, whole)
            for item in acks:
                item.locked = whole.locked.intersection(item.ids)
                item.found = whole.found.intersection(item.ids)
                whole.found -= item.found  # the first of two acknowledgements took effect
        for retry in items:
            if isinstance(retry, RowRetry):
                _write_one(connection, retry)


def _write_one(connection: Connection, item: RowItem) -> None:
    statements = item.table.statements
    if item.table.is_gone:
        if isinstance(item, RowAck):
            item.found, item.locked = set(), set()
        return
    if isinstance(item, RowAck):
        item.found, item.locked = statements.acknowledge(connection, item.ids, item.at_ns)
    else:
        assert item.known is not None
        item.written, item.locked = statements.reschedule(
            connection, item.ids, item.known, item.epochs, item.times_ns
        )
