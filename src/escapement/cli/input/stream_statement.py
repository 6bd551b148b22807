"""The statement of `escapement stream`: STREAM * FROM shop.my_message."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import click

# A name as MySQL writes it: plain, or in backticks, which are doubled inside.
_NAME: Final = r"(?:[\w$]+|`(?:[^`]|``)+`)"
_STATEMENT: Final = re.compile(
    rf"\s*STREAM(?:\s*\*\s*|\s+(?P<columns>{_NAME}(?:\s*,\s*{_NAME})*)\s+)"
    rf"FROM\s+(?:(?P<database>{_NAME})\s*\.\s*)?(?P<table>{_NAME})\s*;?\s*",
    re.IGNORECASE,
)
_EXAMPLE: Final = "STREAM * FROM shop.my_message"


class StreamStatement(NamedTuple):
    """The table to stream, and the columns to print."""

    database: str | None  # None: the only one that the broker serves with such a table
    table: str
    columns: tuple[str, ...] | None  # None: all

    @property
    def name(self) -> str:
        """The name of the table, as it is written in the statement."""
        return self.table if self.database is None else f"{self.database}.{self.table}"


def stream_statement(text: str) -> StreamStatement:
    """Parse a statement ``STREAM columns FROM database.table``.

    Raises:
      click.BadParameter: if ``text`` is another statement. The message has a correct one.
    """
    found = _STATEMENT.fullmatch(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r:.200} is not a STREAM statement. Write it like {_EXAMPLE}, or STREAM id,"
            " message FROM shop.my_message. It has no WHERE, ORDER BY or LIMIT; --count limits the"
            " rows."
        )
    table = _plain(found["table"])
    columns = None
    if found["columns"] is not None:
        columns = tuple(map(_plain, re.findall(_NAME, found["columns"])))
        if len({name.lower() for name in columns}) < len(columns):
            raise click.BadParameter(f"{text!r:.200} names a column twice. Name each once.")
    database = None if found["database"] is None else _plain(found["database"])
    return StreamStatement(database, table, columns)


def _plain(name: str) -> str:
    """Return a name without its backticks."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
