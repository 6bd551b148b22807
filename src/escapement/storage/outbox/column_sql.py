"""SQL expressions for the columns of an outbox, and for the names and values of its statements.

Pure. In our sessions double quotes quote names, and a backslash has no special meaning in a string.
"""

from __future__ import annotations

import re
from typing import Final

from escapement.errors import InvalidRequest
from escapement.storage.outbox.mapping import NOW
from escapement.storage.outbox.shape import BYTES, NUMBERS, TIMES, Column

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_WORDS: Final = {"true": "1", "false": "0"}


def quoted(name: str) -> str:
    """Return a name for our sessions, in which double quotes quote names."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    """Return a string for our sessions, in which a backslash has no special meaning."""
    return "'" + value.replace("'", "''") + "'"


def shown(name: str) -> str:
    """Return a name for a statement that an operator runs."""
    return "`" + name.replace("`", "``") + "`"


def id_of(column: Column) -> str:
    """Return the id of a row, as an integer, a text or bytes."""
    name = quoted(column.name)
    return name if column.type in NUMBERS | {"binary", "varbinary"} else f"CAST({name} AS CHAR)"


def text_of(column: Column) -> str:
    """Return the text of a column. Bytes of a fixed length, such as UUIDs, are hexadecimal."""
    name = quoted(column.name)
    return f"LOWER(HEX({name}))" if column.type == "binary" else f"CAST({name} AS CHAR)"


def json_of(column: Column) -> str:
    """Return the value of a column for a JSON object. Longer bytes are in base64."""
    name = quoted(column.name)
    if column.type == "binary" or column.type == "uuid":
        return text_of(column)
    if column.type in BYTES:
        return f"REPLACE(TO_BASE64({name}), CHAR(10 USING utf8mb4), '')"
    if column.type == "bit":
        return f"CAST({name} AS UNSIGNED)"
    return name


def value_of(column: Column, value: str) -> str:
    """Return a value of a done column as SQL."""
    if value.lower() == NOW and column.type in TIMES:
        return "UTC_TIMESTAMP(6)"
    if column.type in NUMBERS or column.type == "bit":
        number = _WORDS.get(value.lower(), value)
        if _NUMBER.fullmatch(number) is None:
            raise InvalidRequest(f"{value} is not a value of column {column.name}: give a number")
        return number
    return literal(value)


def default_of(column: Column) -> str | None:
    """Return the default of a done column; None for NULL, or if there is none."""
    found = column.default
    if found is None or found.upper() == "NULL":
        return None
    if "default_generated" in column.extra or "(" in found:
        raise InvalidRequest(
            f"the default of column {column.name} is an expression; give the value of rows that "
            "wait with --pending"
        )
    found = found.removeprefix("b") if found.startswith("b'") else found
    return found[1:-1].replace("''", "'") if found.startswith("'") else found
