"""The priorities that are in use in message tables: those of messages that are not acknowledged.

They are found by halving ranges of priorities. A statement has a SELECT of MIN and MAX for each
range. A database reads both from the index ``(time_acked, priority, …)`` without looking at
other rows, however many messages have the same priority. Two halves lie between the two, and are
the ranges of the next statement. So some ten statements find 1,000 priorities of each table. Two
are enough while each table has only one.

A DISTINCT would be one statement. But the index has a descending column, and MariaDB then reads all
messages that are not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from escapement.identifier import quoted
from escapement.storage.engine.base import Connection, Row
from escapement.tables.discovery import MessageTable

# The most SELECTs of one statement, some hundred bytes each. 2,000 take a server some 90 ms.
MOST_BRANCHES: Final = 2_000
# Before a SELECT of several tables. On MariaDB it does not wait for the lock of a whole table,
# because the other tables would wait too. MySQL has no such statement, and waits for a second.
WITHOUT_WAIT: Final = "/*M! SET STATEMENT lock_wait_timeout = 0 FOR */ "
# The most priorities of a table that are found at a time. MySQL scans for a longer NOT IN.
MOST_KNOWN: Final = 1_000


class Wanted(NamedTuple):
    """The priorities to find: the lowest ones of a table above ``after``; of all if it is None."""

    table: MessageTable
    after: int | None


class InUse(NamedTuple):
    """Priorities that are in use.

    Attributes:
      values: at most ``MOST_KNOWN``, in order. None stands for NULL, and is the last one.
      ends: whether none follows these.
    """

    values: tuple[int | None, ...]
    ends: bool


def priorities_in_use(connection: Connection, wanted: Mapping[int, Wanted]) -> dict[int, InUse]:
    """Return the priorities that are in use in each table, by its number; blocking.

    Raises:
      StorageError: if a table does not exist any more, or the database cannot be reached.
    """
    found: dict[int, set[int]] = {number: set() for number in wanted}
    with_null = {
        number
        for (number,) in _union(
            connection,
            (
                f"SELECT {number} {open_messages(one.table)} AND priority IS NULL LIMIT 1"
                for number, one in wanted.items()
            ),
        )
    }
    # A server would scan for IS NOT NULL, or for a bound that the type of the column cannot hold.
    ranges = [
        (number, "" if one.after is None else f" AND priority > {one.after:d}")
        for number, one in wanted.items()
    ]
    while ranges:
        selects = (
            f"SELECT {number}, MIN(priority), MAX(priority) {open_messages(wanted[number].table)}"
            f"{condition}"
            for number, condition in ranges
        )
        halves: list[tuple[int, int, int]] = []
        for number, lowest, highest in _union(connection, selects):
            if lowest is None:
                continue
            # In a union with NULL, MariaDB returns unsigned integers as decimal numbers.
            low, high = int(lowest), int(highest)
            found[number] |= {low, high}
            middle = (low + high) // 2
            halves += [(number, low + 1, middle), (number, middle + 1, high - 1)]
        # Priorities above as many as are wanted need not be found.
        last = {
            number: sorted(values)[MOST_KNOWN]
            for number, values in found.items()
            if len(values) > MOST_KNOWN
        }
        ranges = [
            (number, f" AND priority BETWEEN {low:d} AND {high:d}")
            for number, low, high in halves
            if low <= high and (number not in last or low < last[number])
        ]
    return {number: _in_use(values, number in with_null) for number, values in found.items()}


def _in_use(found: set[int], has_null: bool) -> InUse:
    values = [*sorted(found), *([None] if has_null else [])]
    return InUse(tuple(values[:MOST_KNOWN]), len(values) <= MOST_KNOWN)


def open_messages(table: MessageTable) -> str:
    """Return the end of a SELECT of messages that are not acknowledged, by the best index."""
    index = table.layout.due_index
    hint = f" FORCE INDEX ({quoted(index.name)})" if index is not None else ""
    return f"FROM {quoted(table.name)}{hint} WHERE time_acked IS NULL"


def _union(connection: Connection, selects: Iterable[str]) -> list[Row]:
    rows: list[Row] = []
    left = [f"({select})" for select in selects]
    while left:
        rows += connection.execute(WITHOUT_WAIT + " UNION ALL ".join(left[:MOST_BRANCHES])).rows
        left = left[MOST_BRANCHES:]
    return rows
