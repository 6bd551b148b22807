"""Tables of plain values, with readable durations, times and sizes.

The end of a field's name decides how its value is written: ``_at_ms`` and ``_until_ms`` are times,
``_in_ms`` is the rough time left, ``_ms`` is a duration, ``_bytes`` is a size. Columns are
separated only by spaces. Control characters are escaped. If the output is not a terminal, columns
are never cut, so that programs can search it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from escapement.cli.output.printable import printable
from escapement.durations import format as duration_text
from escapement.storage.catalog.rule import FOREVER_MS

# The width, in characters, of output that is not a terminal: wider than any table.
_NO_EDGE: Final = 10_000
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_UNITS: Final = ("_at_ms", "_ms", "_bytes")


def console() -> Console:
    """Return the console that tables are printed to."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_NO_EDGE)


def counted(count: int, what: str) -> str:
    """Return a count with its noun: ``1 message``, ``2,000 messages``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], empty: str) -> None:
    """Print a table with one line for each row, or the text ``empty`` if ``rows`` is empty.

    A broker of an earlier version may not send a column. Its cells are then ``-``.
    """
    to = console()
    if not rows:
        to.print(Text(empty))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        values = [value for row in rows if (value := row.get(name)) is not None]
        number = bool(values) and type(values[0]) in (int, float)
        table.add_column(_title(name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in columns))
    to.print(table)


def print_values(columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
    """Print a table of values as they are, or the text ``empty`` if ``rows`` is empty.

    None is printed as ``-``.
    """
    to = console()
    if not rows:
        to.print(Text(empty))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(columns):
        number = all(isinstance(row[at], int | float | None) for row in rows)
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if value is None else printable(str(value))) for value in row))
    to.print(table)


def print_record(record: Mapping[str, Any]) -> None:
    """Print a record, with one line for each field."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in record.items():
        title = _title(name)
        stem = name.removesuffix("_bytes") + "_"
        if stem != name + "_" and any(other.startswith(stem) for other in record if other != name):
            title = name.replace("_", " ")  # keep the unit: another field begins like this one
        table.add_row(title, _cell(name, value))
    console().print(table)


def _title(name: str) -> str:
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _cell(name: str, value: Any) -> Text:
    return Text(printable(_in_words(name, value)))


def _in_words(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text}" for key, text in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if name.endswith("_at_ms"):
        return _moment(value)
    if name.endswith("_until_ms"):
        return "-" if not value else "forever" if value == FOREVER_MS else _moment(value)
    if name.endswith("_in_ms"):
        return _roughly(value)
    if name.endswith("_ms"):
        return duration_text(value)
    if name.endswith("_bytes"):
        return decimal(value)
    return str(value)


def _roughly(span_ms: int) -> str:
    """Return a duration in its two largest units, such as ``2h 5m``; below a second, in full."""
    if span_ms < 1000:
        return duration_text(span_ms)
    left = span_ms
    words: list[str] = []
    for unit, unit_ms in _SPANS:
        count, left = divmod(left, unit_ms)
        if count or words:
            words.append(f"{count}{unit}")
    return " ".join(words[:2])


def _moment(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().isoformat(" ", "seconds")
    except (OverflowError, ValueError):
        return f"{at_ms} ms"  # after the year 9999, the last of ``datetime``
