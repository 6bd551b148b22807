"""The ids of a table's messages: how they are selected, compared and held in Python.

An id may be of any type. An integer that fits into 64 bits is an ``int``. An id of a binary type is
``bytes``. Every other id is a ``str``, the text that MySQL writes for it.
"""

from __future__ import annotations

from typing import Final

from escapement.tables.columns import Column
from escapement.tables.identifier import quoted

RowId = int | str | bytes

_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "year"})
_BINARY: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
# MySQL reads the parameter of CAST(? AS UNSIGNED) as a signed number, and turns higher numbers into
# the highest signed one.
_UNSIGNED: Final = "CAST(CAST(? AS CHAR) AS UNSIGNED)"
# Unless it is converted, a text is compared with columns of these types as a floating-point number.
_CONVERSIONS: Final = {
    "bigint": _UNSIGNED,
    "decimal": "CAST(? AS DECIMAL(65, 30))",
    "bit": _UNSIGNED,
}


class RowIds:
    """The SQL expressions for the ids of one table, and the conversions of their values."""

    def __init__(self, column: Column) -> None:
        kind, name = column.data_type, quoted(column.name)
        unsigned = "unsigned" in column.column_type.lower()
        self.are_numbers = kind in _INTEGERS or (kind == "bigint" and not unsigned)
        self._are_bytes = kind in _BINARY
        self.placeholder = "?" if self.are_numbers else _CONVERSIONS.get(kind, "?")
        if self.are_numbers:
            self.selected = name
        elif self._are_bytes:
            self.selected = f"CAST({name} AS BINARY)"
        elif kind == "bit":
            self.selected = f"CAST(CAST(CAST({name} AS UNSIGNED) AS CHAR) AS BINARY)"
        else:
            self.selected = f"CAST(CAST({name} AS CHAR) AS BINARY)"

    def of(self, value: int | bytes) -> RowId:
        """Return the id of a row, given the value of the expression ``selected``."""
        if isinstance(value, int):
            return value
        return bytes(value) if self._are_bytes else bytes(value).decode()

    def in_list(self, count: int) -> str:
        """Return the SQL text ``IN (?, ?, ...)`` for ``count`` ids."""
        return f"IN ({', '.join([self.placeholder] * count)})"

    def read(self, given: object) -> RowId:
        """Return an id that a user has given.

        Raises:
          ValueError, TypeError: if it cannot be an id of this table.
        """
        if self.are_numbers:
            number = int(given)  # type: ignore[call-overload]
            if not -(1 << 63) <= number < 1 << 63:
                raise ValueError(f"{number} is out of range")
            return int(number)
        if self._are_bytes:
            if isinstance(given, int):
                raise TypeError(f"{given} is not bytes")
            return given.encode() if isinstance(given, str) else bytes(given)  # type: ignore[call-overload]
        return given if isinstance(given, str) else str(given)


def as_key(id: RowId) -> bytes:
    """Return an id as the key of its message, by which key ranges divide messages."""
    return id if isinstance(id, bytes) else str(id).encode()
