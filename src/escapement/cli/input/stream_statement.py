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

    database: str
    table: str
    columns: tuple[str, ...] | None  # None: all

    @property
    def topic(self) -> str:
        """The topic of the table."""
        return f"table://{self.database}/{self.table}"


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
    if found["database"] is None:
        raise click.BadParameter(
            f"{text!r:.200} names no database. Write it like STREAM * FROM shop.{found['table']}."
        )
    columns = None
    if found["columns"] is not None:
        columns = tuple(map(_plain, re.findall(_NAME, found["columns"])))
        if len({name.lower() for name in columns}) < len(columns):
            raise click.BadParameter(f"{text!r:.200} names a column twice. Name each once.")
    return StreamStatement(_plain(found["database"]), table, columns)


def _plain(name: str) -> str:
    """Return a name without its backticks."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
