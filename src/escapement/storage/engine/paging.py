"""Reading of many rows in the order of a key, a page at a time.

Each page continues after the last key of the page before, so a table may change meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from escapement.storage.engine.base import Connection, Params, Row

# Rows in a page of a table without large columns: about a megabyte.
PAGE_ROWS: Final = 4096


def pages(
    connection: Connection,
    table: str,
    key: Sequence[str],
    columns: str,
    page_rows: int,
    after: Params,
    where: str = "",
    params: Params = (),
) -> Iterator[Row]:
    """Yield the rows that follow the key ``after``, in the order of their keys.

    Args:
      key: columns that differ in every two rows and are those of an index, after the columns
        that ``where`` compares with ``=``.
      columns: what to read: first the columns of the key.
      where: a condition for the rows, with ``params``.
    """
    sql = (
        f"SELECT {columns} FROM {table} WHERE {where + ' AND ' if where else ''}{_follows(key)}"
        f" ORDER BY {', '.join(key)} LIMIT {page_rows}"
    )
    while True:
        rows = connection.execute(sql, (*params, *_parameters(after))).rows
        yield from rows
        if len(rows) < page_rows:
            return
        after = rows[-1][: len(key)]


def by_id(
    connection: Connection, table: str, columns: str, where: str = "", params: Params = ()
) -> Iterator[Row]:
    """Yield the rows of a table in the order of their ids. The columns begin with the id."""
    return pages(connection, table, ["id"], columns, PAGE_ROWS, (0,), where, params)


def _follows(key: Sequence[str]) -> str:
    """Return the condition that a row follows a key, for :func:`_parameters`.

    Both engines seek directly to this condition: one range of the first column, less its
    begin.
    """
    first, *others = key
    if not others:
        return f"{first} > ?"
    *middle, last = others
    before = f"{last} <= ?"
    for column in reversed(middle):
        before = f"({column} < ? OR ({column} = ? AND {before}))"
    return f"{first} >= ? AND NOT ({first} = ? AND {before})"


def _parameters(after: Params) -> Params:
    """Return the parameters of :func:`_follows` for this key: all but the last twice."""
    return [value for value in after[:-1] for _ in range(2)] + [after[-1]]
