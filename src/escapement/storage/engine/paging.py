"""Paging: reading many rows of a table in the order of a key, with one SELECT for each page.

Each page continues after the last key of the page before it, so the table may change between pages.
The first page is small, because some callers need only a few rows. Each page has twice as many rows
as the one before it, up to a limit.
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
      after: the key after which to begin, one value for each column of the key.
      where: a condition that the rows meet, as SQL text; empty for all rows.
      params: the parameters of ``where``.
    """
    sql = (
        f"SELECT {columns} FROM {table} WHERE {where + ' AND ' if where else ''}{_follows(key)}"
        f" ORDER BY {', '.join(key)} LIMIT ?"
    )
    most = min(_FIRST_ROWS, page_rows)
    while True:
        rows = connection.execute(sql, (*params, *_parameters(after), most)).rows
        yield from rows
        if len(rows) < most:
            return
        after = rows[-1][: len(key)]
        most = min(2 * most, page_rows)


def pages_of(
    connection: Connection,
    table: str,
    key: Sequence[str],
    columns: str,
    page_rows: int,
    after: Params,
    owner: str,
    owners: Sequence[int],
) -> Iterator[Row]:
    """Yield the rows of some owners in the order of their keys. Reads no other rows.

    Args:
      owner: the column with the owner's id: the first of the key.
      owners: the ids of the owners.

    The other arguments are those of :func:`pages`.
    """
    assert owner == key[0], "the owners divide the key into ranges"
    for some in padded(sorted(owners)):
        within = f"{owner} {in_list(some)}"
        yield from pages(connection, table, key, columns, page_rows, after, within, some)


def by_id(
    connection: Connection, table: str, columns: str, where: str = "", params: Params = ()
) -> Iterator[Row]:
    """Yield the rows of a table in the order of the column ``id``, from id 1 on.

    Args:
      columns: the columns to read, as SQL text. It begins with ``id``.
      where: a condition that the rows meet, as SQL text; empty for all rows.
      params: the parameters of ``where``.
    """
    return pages(connection, table, ["id"], columns, PAGE_ROWS, (0,), where, params)


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
    # Topic ids are positive, and no name is less than the empty one.
    after = (0, "")
    for row in pages_of(
        connection, table, key, all_columns, PAGE_ROWS, after, "topic_id", topic_ids
    ):
        yield row[len(key) :]


def _follows(key: Sequence[str]) -> str:
    """Return a SQL condition that a row's key is greater than a given key.

    :func:`_parameters` returns its parameters. The condition is a range of the first column, from
    which rows with small values in the other columns are excluded. MySQL and SQLite both find the
    first such row in the index, instead of reading all rows before it.
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
    """Return the parameters of :func:`_follows` for the key ``after``.

    The value of the last column occurs once, and each other value twice.
    """
    return [value for value in after[:-1] for _ in range(2)] + [after[-1]]
