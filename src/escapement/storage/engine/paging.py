"""Paging: reading many rows of a table in the order of a key, with one SELECT for each page.

Each page continues after the last key of the page before it, so the table may change between pages.
The first page is small, because some callers need only a few rows. Each page has twice as many rows
as the one before it, up to a limit.

The rows after a key ``(a, b, c)`` of several columns are in three ranges of the index. They are
read one after the other: ``x = a AND y = b AND z > c``, then ``x = a AND y > b``, then ``x > a``.
One condition for all three would save the queries that find nothing. But SQLite reads only a
comparison of rows as a range, and MySQL only a chain of OR, for which MariaDB may sort the rows of
two indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from escapement.storage.engine.base import Connection, Params, Row
from escapement.storage.engine.value_lists import in_list, padded

# The number of rows in a page of a table without large columns: about a megabyte.
PAGE_ROWS: Final = 4096
# The number of rows in the first page.
_FIRST_ROWS: Final = 8


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
    """Yield the rows of a table whose keys are greater than ``after``, in the order of their keys.

    Args:
      key: the columns of the key. It must be unique, and an index must begin with the columns that
        ``where`` compares with ``=``, followed by these.
      columns: the columns to read, as SQL text. It begins with the columns of the key.
      page_rows: the number of rows in the largest pages.
      after: the key after which to begin: values of its first columns, or of all. Rows that have
        all these values are left out. Empty to begin with the first row.
      where: a condition that the rows meet, as SQL text; empty for all rows.
      params: the parameters of ``where``.
    """
    most = min(_FIRST_ROWS, page_rows)
    width = len(after)
    while True:
        conditions = [*([where] if where else []), *_follows(key[:width])]
        sql = (
            f"SELECT {columns} FROM {table}{' WHERE ' if conditions else ''}"
            f"{' AND '.join(conditions)} ORDER BY {', '.join(key)} LIMIT ?"
        )
        rows = connection.execute(sql, (*params, *after[:width], most)).rows
        yield from rows
        if len(rows) == most:
            after, width = rows[-1][: len(key)], len(key)
            most = min(2 * most, page_rows)
        elif width > 1:
            width -= 1
        else:
            return


def pages_of(
    connection: Connection,
    table: str,
    key: Sequence[str],
    columns: str,
    page_rows: int,
    owners: Sequence[int],
) -> Iterator[Row]:
    """Yield the rows of some owners in the order of their keys. Reads no other rows.

    Args:
      owners: the ids of the owners, which the first column of the key has.

    The other arguments are those of :func:`pages`.
    """
    for some in padded(sorted(owners)):
        within = f"{key[0]} {in_list(some)}"
        yield from pages(connection, table, key, columns, page_rows, (), within, some)


def by_id(
    connection: Connection, table: str, columns: str, where: str = "", params: Params = ()
) -> Iterator[Row]:
    """Yield the rows of a table in the order of the column ``id``.

    Args:
      columns: the columns to read, as SQL text. It begins with ``id``.
      where: a condition that the rows meet, as SQL text; empty for all rows.
      params: the parameters of ``where``.
    """
    return pages(connection, table, ["id"], columns, PAGE_ROWS, (), where, params)


def of_topics(
    connection: Connection, table: str, name: str, columns: str, topic_ids: Sequence[int]
) -> Iterator[Row]:
    """Yield the rows of some topics in a table with a unique key of ``topic_id`` and a name.

    Args:
      name: the column that is unique in a topic.
      columns: the columns to read, as SQL text.
    """
    key = ("topic_id", name)
    all_columns = f"{', '.join(key)}, {columns}"
    for row in pages_of(connection, table, key, all_columns, PAGE_ROWS, topic_ids):
        yield row[len(key) :]


def _follows(columns: Sequence[str]) -> list[str]:
    """Return SQL conditions: the last of some columns has a greater value, the others an equal one.

    The values are the parameters of the conditions, in the order of the columns.
    """
    if not columns:
        return []
    *equal, last = columns
    return [*(f"{column} = ?" for column in equal), f"{last} > ?"]
