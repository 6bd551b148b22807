"""The rows of a message table as lines of output: a table, CSV, or JSON objects.

Values appear as MySQL writes them, and bytes in hexadecimal, such as ``0x00ff``.

======  ===========================================================================================
form    lines
======  ===========================================================================================
table   names, then one line for each row; columns become wider when a value needs it
csv     names, then one line for each row; NULL is an empty field, and an empty text is ``""``
json    one object for each row; dates, times and decimals are text, and bytes are base64
======  ===========================================================================================

When the columns of the table have changed, the names are printed again.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

import click
from rich.cells import cell_len

from escapement.cli.output.printable import printable
from escapement.errors import NotFound
from escapement.field import Field
from escapement.tables.fields import decode_field, read_values

RowForm = Literal["table", "csv", "json"]

# The types whose values are aligned to the right.
_NUMBERS: Final = re.compile(
    r"(tiny|small|medium|big)?int( unsigned)?|decimal|float|double|year|bit"
)
_SPECIAL_IN_CSV: Final = re.compile(r'[",\r\n]')
_Cells = Sequence[str | None]


class RowPrinter:
    """Prints the rows of one table.

    Args:
      form: how to print them.
      columns: the names of the columns to print, in this order; None prints all.
      table: the name of the table, for errors.
    """

    def __init__(self, form: RowForm, columns: Sequence[str] | None, table: str) -> None:
        self._form = form
        self._columns = columns
        self._table = table
        self._fields: tuple[Field, ...] | None = None  # those of the last row
        self._chosen: list[int] = []  # the indexes of the fields to print
        self._widths: list[int] = []  # of the columns of a table

    def check(self, fields: tuple[Field, ...]) -> None:
        """Raise NotFound if the table has no column of a name that was chosen."""
        self._choose(fields)

    def print(self, fields: tuple[Field, ...], payloads: Iterable[bytes]) -> None:
        """Print rows at once, after the names of their fields if these are new.

        Raises:
          NotFound: if the table has no column of a name that was chosen.
          RemoteProtocolError: if a payload is not a row with these fields.
        """
        is_new = fields != self._fields
        if is_new:
            self._chosen = self._choose(fields)
            self._fields = fields
        chosen = [fields[at] for at in self._chosen]
        rows = [self._pick(read_values(fields, payload)) for payload in payloads]
        if self._form == "json":
            lines = [_json_line(chosen, row) for row in rows]
        else:
            cells: list[_Cells] = [list(map(_text, chosen, row)) for row in rows]
            if is_new:
                cells.insert(0, [field.name for field in chosen])
            if self._form == "csv":
                lines = [",".join(map(_csv_cell, row)) for row in cells]
            else:
                lines = list(self._table_lines(chosen, cells, is_new))
        if lines:
            click.echo("\n".join(lines))

    def _choose(self, fields: tuple[Field, ...]) -> list[int]:
        if self._columns is None:
            return list(range(len(fields)))
        index = {field.name.lower(): at for at, field in enumerate(fields)}
        missing = [name for name in self._columns if name.lower() not in index]
        if missing:
            raise NotFound(
                f"Table {self._table} has no column {missing[0]}. It has"
                f" {', '.join(field.name for field in fields)}."
            )
        return [index[name.lower()] for name in self._columns]

    def _pick(self, values: list[bytes | None]) -> list[bytes | None]:
        return [values[at] for at in self._chosen]

    def _table_lines(
        self, fields: Sequence[Field], rows: Sequence[_Cells], is_new: bool
    ) -> Iterator[str]:
        """Yield lines in which the columns have the width of their longest value so far."""
        texts = [["NULL" if cell is None else printable(cell) for cell in row] for row in rows]
        widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        self._widths = widths if is_new else list(map(max, self._widths, widths))
        is_number = [_NUMBERS.fullmatch(field.type) is not None for field in fields]
        for row in texts:
            cells = map(_aligned, row, self._widths, is_number)
            yield "  ".join(cells).rstrip()


def _text(field: Field, value: bytes | None) -> str | None:
    """Return a value as MySQL writes it."""
    found = decode_field(field, value)
    if value is None:
        return None
    if isinstance(found, bytes):
        return "0x" + found.hex()
    # The text of a float is that of a double, which has more digits.
    return repr(found) if field.type == "float" else value.decode()


def _aligned(text: str, width: int, is_number: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if is_number else text + padding


def _csv_cell(text: str | None) -> str:
    if text is None:
        return ""
    if text and not _SPECIAL_IN_CSV.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _json_line(fields: Sequence[Field], values: Sequence[bytes | None]) -> str:
    row = {
        field.name: _json_value(field, value) for field, value in zip(fields, values, strict=True)
    }
    return json.dumps(row, ensure_ascii=False)


def _json_value(field: Field, value: bytes | None) -> Any:
    found = decode_field(field, value)
    if value is None or isinstance(found, str | int | float | list | dict | None):
        return found
    return b64encode(found).decode() if isinstance(found, bytes) else value.decode()
